"""Numbers as people read them."""

from __future__ import annotations

PEEKS = "PEEKS"  # stands wherever the unseen domain itself chose the model


def megabytes(size: float) -> str:
    """2.31 MB, or kB where that says more."""
    return "0" if size == 0 else f"{size / 1e6:.2f} MB" if size >= 1e5 else f"{size / 1e3:.2f} kB"


# Verbs of a method that only one part of a composed method may define. Here, because a list of methods does without torch.
ONE_OWNER = ("loss", "step", "weigh", "merge", "evaluated", "predict")
