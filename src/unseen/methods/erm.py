"""ERM: plain training by cross-entropy. With `--centralized`, on all source domains in one place: the upper reference.

Vapnik: Statistical Learning Theory. Wiley 1998.

The method: minimise the mean cross-entropy over all training images. `--centralized` puts the images of all source domains
on one client, so that a round is a share of ordinary training and the server averages nothing. In a federation it is
FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unseen.method import Method


@dataclass(frozen=True)
class ERM(Method):
    name: ClassVar[str] = "erm"
    year: ClassVar[int] = 1998
    family: ClassVar[str] = "averaging"
