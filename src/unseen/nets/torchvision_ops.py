"""Lets `import timm` work where torchvision's compiled operators cannot be loaded.

timm imports torchvision, and torchvision registers shape rules for its operators `nms` and `qnms` while it is imported.
Its wheel from PyPI is built for CUDA; beside the CPU build of torch (torchvision 0.28, torch 2.13) its compiled library
does not load, the two operators do not exist, and the import ends with `operator torchvision::nms does not exist`.
`unseen` never calls them, so they are declared here without an implementation, before timm is imported and not
earlier. Where the library loads, nothing is done.
"""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder
from importlib.util import find_spec

import torch

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

# Declarations live as long as the library object that made them.
_libraries: list[torch.library.Library] = []


def operators_exist() -> bool:
    """Whether both operators are declared, by torchvision's library or by us."""
    return hasattr(torch.ops.torchvision, "nms") and hasattr(torch.ops.torchvision, "qnms")


def _compiled_library_loads() -> bool:
    """Load torchvision's compiled library as torchvision itself will; loading twice is harmless."""
    package = find_spec("torchvision")  # finds, does not import
    if package is None or not package.submodule_search_locations:
        return False
    finder = FileFinder(package.submodule_search_locations[0], (ExtensionFileLoader, list(EXTENSION_SUFFIXES)))
    library = finder.find_spec("_C")
    if library is None or library.origin is None:
        return False
    try:
        torch.ops.load_library(library.origin)  # type: ignore[no-untyped-call]
    except (ImportError, OSError):
        return False
    return True


def declare_missing_operators() -> bool:
    """Declare the operators if they are missing and torchvision cannot bring them. True if it had to."""
    if operators_exist() or (_compiled_library_loads() and operators_exist()):
        return False
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema in SCHEMAS:
        if not hasattr(torch.ops.torchvision, schema.partition("(")[0]):
            library.define(schema)  # type: ignore[no-untyped-call]
    _libraries.append(library)
    return True
