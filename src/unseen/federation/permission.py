"""What may leave a client. The server refuses a method that says it sends more, before the run, and a reply that does.

Also which methods secure aggregation can serve: those that read replies through their weighted mean alone.
"""

from __future__ import annotations

from unseen.core.errors import UserError
from unseen.core.plan import Allow
from unseen.core.types import Reply
from unseen.method import Method, name_of, overrides, parts_of


def check_allowed(method: Method, allow: Allow) -> None:
    """An error for a method whose traits say that more leaves a client than is allowed."""
    if allow == "weights" and method.about.sends:
        raise UserError(
            f'"{name_of(method)}" sends more than weights ({method.about.sends}), and only weights are allowed: take a '
            f"method that `unseen methods` shows without a star, or --allow weights,statistics."
        )


def beyond(reply: Reply, allow: Allow) -> str:
    """What a reply carries that is not allowed, in words; empty when there is nothing."""
    if allow == "weights" and reply.report:
        return f'it carries "{sorted(reply.report)[0]}" beyond the weights, and only weights are allowed'
    return ""


READ_SINGLE_REPLIES = ("admit", "hear", "weigh", "merge")  # verbs of the server that are given them


def check_secure(method: Method) -> None:
    """An error for a method that needs more of the replies than the weighted mean of their models."""
    for part in parts_of(method):
        why = [verb for verb in READ_SINGLE_REPLIES if overrides(part, verb)]
        if part.about.averages:
            why = [verb for verb in why if verb != "merge"]
        beside = part.about.sends and (overrides(part, "survey") or overrides(part, "report"))
        if why or beside:
            reads = f"its {' and '.join(why)} reads single replies" if why else f"it also sends {part.about.sends}"
            raise UserError(
                f'"{part.name}" does not go with --secure: {reads}, and secure aggregation gives the server the weighted '
                f"mean of the models alone."
            )
