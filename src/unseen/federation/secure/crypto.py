"""Keys, shares and masks, by `cryptography` and `pycryptodome`. All that is secret comes from the system's own source.

These are the libraries under Flower's functions for secure aggregation. Two of Flower's (1.41) cannot be used here: its
masks come from a seed of 32 bits, which can be tried out, and its rounding draws from NumPy's global generator.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor

from unseen.core.errors import UserError

Ring = npt.NDArray[np.uint64]  # integers modulo 2^64
SECRET = 32  # bytes of a key, a seed and a share of one
BLOCK = 16  # bytes that the library shares at a time
NONCE, TAG = 12, 16
SEALED = NONCE + 2 * SECRET + TAG  # bytes of two shares, encrypted


def threshold(sites: int) -> int:
    """How many must answer to unmask a sum: more than half of those who told their keys, and never one alone."""
    return max(2, sites // 2 + 1)


def as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def as_bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()


# --- keys ------------------------------------------------------------------------------------------------------------
def new_secret() -> bytes:
    """A private key, or a seed."""
    return secrets.token_bytes(SECRET)


def public_of(private: bytes) -> bytes:
    return bytes(X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw())


def agreed(private: bytes, public: bytes, *about: str | int) -> bytes:
    """The secret that two have in common, for one purpose."""
    try:
        common = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise UserError("A public key of secure aggregation is not one; the round cannot be masked.") from None
    return bytes(HKDF(SHA256(), SECRET, None, _words(*about)).derive(common))


def _words(*about: str | int) -> bytes:
    return json.dumps(about).encode()


# --- shares ----------------------------------------------------------------------------------------------------------
def split(secret: bytes, needed: int, count: int) -> list[bytes]:
    """Shamir's shares, the i-th for the i-th client: `needed` of them give the secret back, fewer tell nothing."""
    parts = [Shamir.split(needed, count, secret[start : start + BLOCK], False) for start in range(0, SECRET, BLOCK)]
    return [b"".join(share for _, share in shares) for shares in zip(*parts, strict=True)]


def joined(shares: Mapping[int, bytes]) -> bytes:
    """The secret, from at least as many shares as are needed, by the clients' place."""
    return b"".join(
        Shamir.combine([(place + 1, share[start : start + BLOCK]) for place, share in shares.items()], False)
        for start in range(0, SECRET, BLOCK)
    )


def sealed(key: bytes, shares: Sequence[bytes], *about: str | int) -> bytes:
    """Shares for one other client: nobody else can read or change them, or say that they are from somebody else."""
    nonce = secrets.token_bytes(NONCE)
    return nonce + bytes(AESGCM(key).encrypt(nonce, b"".join(shares), _words(*about)))


def opened(key: bytes, data: bytes, *about: str | int) -> bytes:
    try:
        return bytes(AESGCM(key).decrypt(data[:NONCE], data[NONCE:], _words(*about)))
    except InvalidTag:
        raise UserError("A share of secure aggregation was changed on its way; the round cannot be masked.") from None


# --- masks -----------------------------------------------------------------------------------------------------------
def mask(key: bytes, length: int) -> Ring:
    """Numbers that look random to all who do not have the key: AES-256 in counter mode."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(BLOCK))).encryptor()
    return np.frombuffer(stream.update(bytes(8 * length)), dtype="<u8")
