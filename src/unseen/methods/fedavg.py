"""FedAvg: the mean of the clients' models, weighted by their number of training images.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized Data.
AISTATS 2017.

The method: the server sends its model to the chosen clients; each trains it on its own images by cross-entropy; the server
averages what comes back with weights n_k / n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unseen.method import Method


@dataclass(frozen=True)
class FedAvg(Method):
    name: ClassVar[str] = "fedavg"
    year: ClassVar[int] = 2017
    family: ClassVar[str] = "averaging"
