"""Where every random draw comes from: (seed, round, client, purpose).

Nothing in `unseen` draws from a generator that is shared between clients, rounds or purposes. Hence the same seed gives the
same bits for any number of workers, on every engine, and after a crash.
"""

from __future__ import annotations

import hashlib

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
