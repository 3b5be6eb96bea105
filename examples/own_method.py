"""FedNudge: FedAvg whose clients are pulled towards confident predictions."""

from dataclasses import dataclass
from typing import ClassVar

import unseen
from unseen import Method


@unseen.register
@dataclass(frozen=True)
class FedNudge(Method):
    name: ClassVar[str] = "fednudge"

    strength: float = 0.1  # weight of the entropy of the predictions

    def penalty(self, work, batch, features):
        p = work.net.head(features).softmax(1)
        return self.strength * -(p * p.clamp_min(1e-8).log()).sum(1).mean()


if __name__ == "__main__":
    result = unseen.run(data="digits", target="street", method="fednudge", rounds=5)
    print(f"unseen {result.accuracy:.1%}, in-domain {result.in_domain_accuracy:.1%}")

    result = unseen.run(data="digits", target="street", method="fedbn+fednudge", rounds=5)  # it composes
    print(f"with local BatchNorm: {result.accuracy:.1%}")
