"""What may leave a client. The server refuses a method that says it sends more, before the run, and a reply that does."""

from __future__ import annotations

from unseen.core.errors import UserError
from unseen.core.plan import Allow
from unseen.core.types import Reply
from unseen.method import Method, name_of


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
