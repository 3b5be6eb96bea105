"""Where every random draw comes from: (seed, round, client, purpose).

Nothing in `unseen` draws from a generator that is shared between clients, rounds or purposes. Hence the same seed gives the
same bits for any number of workers, on every engine, and after a crash.
"""

from __future__ import annotations

import hashlib
import secrets

import numpy as np
import torch


def derive(seed: int, *, round: int = 0, client: str = "", purpose: str) -> int:
    """A 63-bit seed that depends on all four and on nothing else."""
    text = f"{seed}|{round}|{client}|{purpose}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def torch_generator(seed: int, *, round: int = 0, client: str = "", purpose: str) -> torch.Generator:
    """A CPU generator: draws are made on the CPU and moved, so that every device sees the same ones."""
    return torch.Generator().manual_seed(derive(seed, round=round, client=client, purpose=purpose))


def numpy_generator(seed: int, *, round: int = 0, client: str = "", purpose: str) -> np.random.Generator:
    return np.random.default_rng(derive(seed, round=round, client=client, purpose=purpose))


# --- noise that others must not know -----------------------------------------------------------------------------------
_SECRET: list[str] = []  # empty in simulations, where the same seed must give the same bits


def keep_secret() -> None:
    """From now on private noise in this process comes from a secret of its own: a real site's, or a real coordinator's.

    The run's seed is known to all who take part; whoever knows it could take noise that came from it away again.
    """
    if not _SECRET:
        _SECRET.append(secrets.token_hex(16))


def private_generator(seed: int, *, round: int = 0, client: str = "", purpose: str) -> torch.Generator:
    """For noise that protects: by the run's seed in a simulation, by a secret in a deployment."""
    return torch_generator(seed, round=round, client=client, purpose="".join([purpose, *_SECRET]))
