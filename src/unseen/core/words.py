"""Numbers as people read them, and foreign text as it may be shown."""

from __future__ import annotations

import unicodedata

PEEKS = "PEEKS"  # stands wherever the unseen domain itself chose the model


def megabytes(size: float) -> str:
    """2.31 MB, or kB where that says more."""
    return "0" if size == 0 else f"{size / 1e6:.2f} MB" if size >= 1e5 else f"{size / 1e3:.2f} kB"


# Verbs of a method that only one part of a composed method may define. Here, because a list of methods does without torch.
ONE_OWNER = ("loss", "step", "weigh", "merge", "evaluated", "predict")


# --- foreign text: names of files, classes and sites, and sentences that came from elsewhere -------------------------
JOINERS = "\u200c\u200d"  # some scripts need them between letters
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # controls, bidi marks, halves of letters, ends of lines
FORMULA = ("=", "+", "-", "@")  # how a cell begins that a spreadsheet carries out


def plain(text: str) -> str:
    """Text that moves no cursor, turns no line round and ends none: what cannot be seen becomes a question mark.

    The one place where foreign text is cleaned, before it reaches a terminal, a log, a table or a page.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        letter if letter in JOINERS or unicodedata.category(letter) not in HIDDEN else "?" for letter in text
    )


def cell(text: str) -> str:
    """Foreign text in a CSV file: an apostrophe before what a spreadsheet would carry out as a formula."""
    shown = plain(text)
    if not shown.lstrip().startswith(FORMULA) or shown in FORMULA or _is_number(shown):
        return shown
    return f"'{shown}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
