"""Federated domain generalization: sites train one image classifier together, for a site that no one trained on.

    import unseen

    result = unseen.run(data="digits", target="street", method="fedavg", rounds=3)
    result.accuracy               # on the unseen domain
    result.model.predict(images)  # classes; predict_proba, predict_set and familiar say how sure it is

Names are imported when they are first used: `import unseen` alone does not load torch, and no import
changes the process: a run does, when it starts (`unseen.core.platform`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unseen.api import audit as audit
    from unseen.api import bench as bench
    from unseen.api import calibrate as calibrate
    from unseen.api import check as check
    from unseen.api import choose as choose
    from unseen.api import evaluate as evaluate
    from unseen.api import export as export
    from unseen.api import fit as fit
    from unseen.api import load as load
    from unseen.api import new_method as new_method
    from unseen.api import predict as predict
    from unseen.api import report as report
    from unseen.api import rollback as rollback
    from unseen.api import run as run
    from unseen.api import tune as tune
    from unseen.api import verify_ledger as verify_ledger
    from unseen.core.errors import UserError as UserError
    from unseen.core.plan import Plan as Plan
    from unseen.core.types import Batch as Batch
    from unseen.core.types import Reply as Reply
    from unseen.core.types import Server as Server
    from unseen.core.types import Share as Share
    from unseen.core.types import Work as Work
    from unseen.experiments.choose import Choice as Choice
    from unseen.method import Method as Method
    from unseen.method import Traits as Traits
    from unseen.method import compose as compose
    from unseen.nets.net import Net as Net
    from unseen.registry import register as register
    from unseen.runs.model import Trained as Trained
    from unseen.runs.model import load_trained as load_trained
    from unseen.runs.run import Result as Result

    __version__: str

_WHERE = {
    **dict.fromkeys(("run", "choose", "fit", "bench", "tune", "evaluate", "audit", "report"), "unseen.api"),
    **dict.fromkeys(("load", "predict", "check", "calibrate", "export"), "unseen.api"),
    "Choice": "unseen.experiments.choose",
    **dict.fromkeys(("rollback", "verify_ledger", "new_method"), "unseen.api"),
    "Result": "unseen.runs.run",
    "Trained": "unseen.runs.model",
    "load_trained": "unseen.runs.model",
    "UserError": "unseen.core.errors",
    **dict.fromkeys(("Method", "Traits", "compose"), "unseen.method"),
    "register": "unseen.registry",
    "Net": "unseen.nets.net",
    "Plan": "unseen.core.plan",
    **dict.fromkeys(("Batch", "Reply", "Server", "Share", "Work"), "unseen.core.types"),
}

__all__ = ["__version__", *sorted(_WHERE)]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            value: object = version("unseen")
        except PackageNotFoundError:  # run from a source tree that is not installed
            value = "0+source"
    elif name in _WHERE:
        value = getattr(importlib.import_module(_WHERE[name]), name)
    else:
        raise AttributeError(f"module 'unseen' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
