"""`unseen export`: a folder with all that another place needs to use a model.

model.onnx    the graph: images in [0, 1] to logits (`graph.py`)
model.json    classes, image size, thresholds: what `predict.py` reads
predict.py    classifies files; needs onnxruntime, numpy and Pillow
pictures.py   image files to pixels, by the rules of training
look.py       how pictures look, as in training
README.md     a model card, from the run's records
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

from unseen.core import look
from unseen.core.calibration import Calibration
from unseen.core.errors import UserError
from unseen.core.files import atomic, write_json
from unseen.data import pictures
from unseen.data.domains import DICOM, SUFFIXES
from unseen.delivery.card import write_card
from unseen.delivery.graph import INPUT, OUTPUT, to_onnx
from unseen.runs.directory import RunDirectory
from unseen.runs.model import load_trained

VERSION = 2  # 1 had no looks
GRAPH, ABOUT, SCRIPT, CARD = "model.onnx", "model.json", "predict.py", "README.md"
DECODER, LOOKING = "pictures.py", "look.py"


@dataclass(frozen=True)
class Thresholds:
    """What makes probabilities, sets and a warning of logits. All are of the sources' validation images."""

    temperature: float  # logits are divided by it before the softmax
    coverage: float  # the part of images whose set has the true class
    log_odds: (
        float | None
    )  # a class with these log-odds or more is in the set; None: all are, there were too few images
    largest_logit: float  # an image whose largest logit is below this is unlike those of training in its content
    looks: list[look.Look]  # of the sites; none: nothing is known of them
    furthest_look: float | None  # an image that is further from all of them is unlike those of training in its look

    @classmethod
    def of(cls, found: Calibration, coverage: float) -> Thresholds:
        floor = found.threshold(coverage)
        odds = floor if math.isfinite(floor) else None
        furthest = found.furthest_look if found.looks else None
        return cls(found.temperature, coverage, odds, found.least_familiar, found.looks, furthest)


@dataclass(frozen=True)
class ModelFile:
    """model.json. `thresholds` is None where the model has no calibration."""

    classes: list[str]
    image_size: int
    method: str
    thresholds: Thresholds | None
    input: str = f"{INPUT}: float32 in [0, 1], B x 3 x image_size x image_size"
    output: str = f"{OUTPUT}: float32, B x classes"
    version: int = VERSION


def export(directory: Path, out: Path, coverage: float = 0.9) -> Path:
    """Pack the selected model of a finished run."""
    run = RunDirectory.open(directory)
    trained = load_trained(directory, "cpu")
    result = run.result()
    if result is None:
        raise UserError(f"The run in {directory} has no result: go on with it by `unseen run --resume {directory}`.")
    known = trained.calibration
    limits = None if known is None else Thresholds.of(known, coverage)  # a wrong coverage is said before the long part
    graph = to_onnx(trained.method, trained.net)
    script = (Path(__file__).parent / SCRIPT).read_bytes()
    looking = Path(look.__file__).read_bytes()
    for name, content in ((GRAPH, graph), (SCRIPT, script), (DECODER, decoder().encode()), (LOOKING, looking)):
        with atomic(out / name) as temporary:
            temporary.write_bytes(content)
    with atomic(out / CARD) as temporary:
        write_card(temporary, trained.settings, result, trained.classes, known)
    size = trained.settings.data.image_size
    write_json(out / ABOUT, asdict(ModelFile(list(trained.classes), size, trained.settings.method, limits)))
    return out


# What `unseen.data.pictures` takes from the rest of the library, as lines that stand by themselves.
ALONE = {
    "from unseen.core.errors import UserError\n": "UserError = ValueError\n",
    "from unseen.data.domains import DICOM, Pixels\n": (
        f"DICOM = frozenset({sorted(DICOM)})\nSUFFIXES = frozenset({sorted(SUFFIXES)})\nPixels = Any\n"
    ),
}


def decoder() -> str:
    """The library's own file that decodes images, without the library."""
    text = Path(pictures.__file__).read_text()
    for line, own in ALONE.items():
        assert line in text, f"{pictures.__file__} no longer says: {line}"
        text = text.replace(line, own)
    assert "import unseen" not in text and "from unseen" not in text
    return text
