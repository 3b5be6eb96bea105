"""The hub that timm's weights come from: asked once whether it is there, before a library tries for minutes."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

PATIENCE = 5.0  # seconds
USUAL = "https://huggingface.co"
PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


def hub_is_there(patience: float = PATIENCE) -> bool:
    """Can a connection be made? Behind a proxy nobody can tell beforehand: then yes."""
    if any(os.environ.get(name) for name in PROXIES):
        return True
    address = urlsplit(os.environ.get("HF_ENDPOINT") or USUAL)
    place = (address.hostname or "", address.port or (80 if address.scheme == "http" else 443))
    answered: list[bool] = []

    def ask() -> None:
        try:
            socket.create_connection(place, timeout=patience).close()
        except OSError:
            return
        answered.append(True)

    # In a thread: looking up a name has no time limit of its own.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(patience)
    return bool(answered)


@contextmanager
def cached_only() -> Iterator[None]:
    """Inside, the hub's library takes what was downloaded before, and asks nobody for more."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
