"""Federated domain generalization: sites train one image classifier together, for a site that no one trained on.

    import unseen

    result = unseen.run(data="digits", target="street", method="fedavg", rounds=3)
    result.accuracy               # on the unseen domain
    result.model.predict(images)  # class probabilities

Names are imported when they are first used: `import unseen` alone does not load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from unseen.kernels import same_everywhere

if TYPE_CHECKING:
    from unseen.api import run as run
    from unseen.bench.model import Trained as Trained
    from unseen.bench.model import load_trained as load_trained
    from unseen.bench.run import Result as Result
    from unseen.errors import UserError as UserError
    from unseen.method import Method as Method
    from unseen.method import compose as compose
    from unseen.nets.net import Net as Net
    from unseen.registry import register as register
    from unseen.types import Batch as Batch
    from unseen.types import Plan as Plan
    from unseen.types import Reply as Reply
    from unseen.types import Server as Server
    from unseen.types import Share as Share
    from unseen.types import Work as Work

    __version__: str

same_everywhere()  # before torch computes anything, whoever imports it

_WHERE = {
    "run": "unseen.api",
    "Result": "unseen.bench.run",
    "Trained": "unseen.bench.model",
    "load_trained": "unseen.bench.model",
    "UserError": "unseen.errors",
    "Method": "unseen.method",
    "compose": "unseen.method",
    "register": "unseen.registry",
    "Net": "unseen.nets.net",
    **dict.fromkeys(("Batch", "Plan", "Reply", "Server", "Share", "Work"), "unseen.types"),
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
