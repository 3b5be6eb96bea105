"""`unseen export`: a folder with all that another place needs to use a model.

model.onnx   the graph: images in [0, 1] to logits (`graph.py`)
model.json   classes, image size, thresholds: what `predict.py` reads
predict.py   classifies files; needs onnxruntime, numpy and Pillow
README.md    a model card, from the run's records
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from unseen.core.errors import UserError
from unseen.core.files import atomic, write_json
from unseen.delivery.card import write_card
from unseen.delivery.graph import INPUT, OUTPUT, to_onnx
from unseen.runs.directory import RunDirectory
from unseen.runs.model import load_trained

VERSION = 1
GRAPH, ABOUT, SCRIPT, CARD = "model.onnx", "model.json", "predict.py", "README.md"


@dataclass(frozen=True)
class Thresholds:
    """What makes probabilities, sets and a warning of logits. All three are of the sources' validation images."""

    temperature: float  # logits are divided by it before the softmax
    coverage: float  # the part of images whose set has the true class
    log_odds: float  # a class with these log-odds or more is in the set
    largest_logit: float  # an image whose largest logit is below this is unlike those of training


@dataclass(frozen=True)
class ModelFile:
    """model.json. `thresholds` is None where the model was not calibrated."""

    classes: list[str]
    image_size: int
    method: str
    thresholds: Thresholds | None
    input: str = f"{INPUT}: float32 in [0, 1], B x 3 x image_size x image_size"
    output: str = f"{OUTPUT}: float32, B x classes"
    version: int = VERSION


def export(directory: Path, out: Path) -> Path:
    """Pack the selected model of a finished run."""
    run = RunDirectory.open(directory)
    trained = load_trained(directory, "cpu")
    result = run.result()
    if result is None:
        raise UserError(f"The run in {directory} has no result: go on with it by `unseen run --resume {directory}`.")
    graph = to_onnx(trained.method, trained.net)
    about = ModelFile(list(trained.classes), trained.settings.data.image_size, trained.settings.method, None)
    for name, content in ((GRAPH, graph), (SCRIPT, (Path(__file__).parent / SCRIPT).read_bytes())):
        with atomic(out / name) as temporary:
            temporary.write_bytes(content)
    with atomic(out / CARD) as temporary:
        write_card(temporary, trained.settings, result, trained.classes)
    write_json(out / ABOUT, asdict(about))
    return out
