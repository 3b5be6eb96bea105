"""Secure aggregation: the server learns the weighted mean of the clients' models, and no single one of them.

Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth: Practical Secure Aggregation for
Privacy-Preserving Machine Learning. CCS 2017 (the protocol for parties that are curious and keep to it).

The box: in each round a client makes two key pairs and a seed. (1) `keys`: it tells its public keys. (2) `shares`: it
splits its second private key and the seed among all clients, each share encrypted for the one that gets it; the server
only carries them. (3) `train`: it trains, writes weight * model and the weight as integers (`fixed`), and adds modulo
2^64 a mask from its seed and, for each other client, one from their common secret: added by the one whose name comes
first, subtracted by the other. (4) `unmask`: the server says who answered. A client gives its share of the seed of those
who did, and of the key of those who did not; never both of one client. More than half must answer. Then the masks of
the sum are known, and of nothing else.

`client` is the clients' side, `server` the server's; both need the libraries of `crypto`, so that they are looked for only
where a run asks for them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from torch import Tensor

from unseen.core.errors import UserError
from unseen.core.plan import Plan
from unseen.federation.client import ClientRunner
from unseen.federation.server import Exchange, Gather


def runner_for(plan: Plan) -> type[ClientRunner]:
    """What carries out a client's orders under this plan."""
    if not plan.secure:
        return ClientRunner
    _check_installed()
    from unseen.federation.secure.client import MaskingRunner

    return MaskingRunner


def gather_for(plan: Plan, like: Mapping[str, Tensor]) -> Gather:
    """How the server gets the replies of a round under this plan; `like` has the names and shapes of a client's model."""
    if not plan.secure:
        return Exchange.replies
    _check_installed()
    from unseen.federation.secure.server import SecureSum

    return SecureSum(like).replies


def _check_installed() -> None:
    if any(importlib.util.find_spec(module) is None for module in ("cryptography", "Crypto")):
        raise UserError("--secure needs two libraries of cryptography: `pip install unseen[secure]`.")
