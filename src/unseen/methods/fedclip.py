"""FedCLIP: a frozen tower, and an attention adapter on its features that is all that is trained and sent.

Lu, Hu, Wang, Xie: FedCLIP: Fast Generalization and Personalization for CLIP in Federated Learning. IEEE Data Engineering
Bulletin, 2023.

The method: z is the tower's embedding of an image. The adapter is a(z) = softmax(W2 tanh(W1 z)); its features are a(z) * z,
feature by feature. An answer is the cosine of these with the text embedding of each class, times a scale. The adapter is
averaged over clients. Without a file of text embeddings (`text`) the head is trained and sent too: ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import nn

from unseen.core.types import Share
from unseen.method import ALONE, BATCH_NORM, Method, Range, Traits
from unseen.nets.net import Net
from unseen.nets.parts.towers import Attention, OnSphere, freeze, share_trained, text_head


@dataclass(frozen=True)
class FedCLIP(Method):
    name: ClassVar[str] = "fedclip"
    year: ClassVar[int] = 2023
    family: ClassVar[str] = "adapters"
    passes: ClassVar[float] = 0.33  # without backward: no gradient goes into the tower
    traits: ClassVar[Traits] = Traits(
        remark="trained head, ours", counts_images=False, without=frozenset({ALONE, BATCH_NORM})
    )
    ranges: ClassVar[Mapping[str, Range]] = {"scale": Range(5.0, 100.0)}

    text: str = ""  # file with the classes' text embeddings and the projection of image features; none: a trained head
    scale: float = 100.0  # of the cosines; CLIP's own is 100

    @property
    def about(self) -> Traits:
        return replace(self.traits, remark="", head="one of texts") if self.text else self.traits

    def build(self, net: Net) -> Net:
        freeze(net, self.name)
        before: list[nn.Module] = [net.neck]
        if self.text:
            projection, net.head = text_head(self.text, net)
            before.append(projection)
            net.feature_size = projection.out_features
        net.neck = nn.Sequential(*before, Attention(net.feature_size), OnSphere(self.scale))
        return net

    def share(self, net: Net) -> Share:
        return share_trained(net)
