"""A finished run's model, calibrated afterwards: its evaluate orders are carried out once more, on its own data."""

from __future__ import annotations

from unseen.core.calibration import Calibration
from unseen.core.errors import UserError
from unseen.core.files import read_tensors, tensors_digest
from unseen.core.platform import prepare_process
from unseen.data.store import content_of
from unseen.federation.calibrate import pooled
from unseen.federation.ledger import Ledger
from unseen.federation.server import evaluate
from unseen.runs.directory import RunDirectory
from unseen.runs.progress import Silent, Watcher
from unseen.runs.run import OpenEngine, PlannedRun, assemble, load_data, one_thread


def calibration_of(run: RunDirectory, open_engine: OpenEngine, watcher: Watcher | None = None) -> Calibration:
    """As the run itself would have found it. Needs the images of all its clients here."""
    if not run.model_path.exists():
        raise UserError(f"The run in {run.path} is not finished: go on with it by `unseen run --resume {run.path}`.")
    planned = PlannedRun.of(run.settings())
    settings = planned.settings
    assert planned.index is not None
    if settings.data.content and settings.data.content != content_of(planned.index):
        raise UserError(f"The images of {run.path} have changed since its training: nothing can be calibrated by them.")
    prepare_process(settings.plan.precision, settings.plan.device)
    with one_thread():
        assembly = assemble(planned, load_data(planned, watcher or Silent()))
        state, about = read_tensors(run.model_path)
        with open_engine(assembly, run) as engine:
            found = evaluate(engine, state, int(about["selected_round"]), Ledger(), calibrate=True)
    calibration = pooled(found.calibrating, tensors_digest(state))
    if calibration is None:
        raise UserError(f"The clients of {run.path} have no validation images: nothing can be calibrated by them.")
    return calibration
