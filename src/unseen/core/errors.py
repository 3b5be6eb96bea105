"""Errors for people: one sentence that names the thing and says what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input. The command line prints the sentence and exits with code 2; nothing is lost."""


def nearest(name: str, known: Iterable[str]) -> str:
    """` Did you mean "fedavg"?`, or nothing when no known name is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f' Did you mean "{close[0]}"?' if close else ""


def unknown(kind: str, name: str, known: Iterable[str], see: str) -> UserError:
    """The error for a name that is not in a list of names."""
    known = sorted(known)
    return UserError(f'There is no {kind} "{name}".{nearest(name, known)} {see}')
