"""How much privacy a run spends: the exact account of Gaussian noise over rounds.

One release with sensitivity s and noise of standard deviation m * s is mu-GDP with mu = 1 / m; T of them, each chosen after
the ones before were seen, are together mu * sqrt(T) (Dong, Roth, Su: Gaussian Differential Privacy, 2022, Cor. 3.3). And
mu-GDP is (epsilon, delta)-DP exactly for

    delta = Phi(-epsilon / mu + mu / 2) - exp(epsilon) Phi(-epsilon / mu - mu / 2)

(Balle, Wang: Improving the Gaussian Mechanism, ICML 2018, Thm. 8). No bound is tighter, and no sampling is counted on: a
site that takes part in every round spends this, one that takes part in fewer spends less. Nothing here needs torch.
"""

from __future__ import annotations

import math


def _phi(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def delta_of(epsilon: float, multiplier: float, rounds: int) -> float:
    """The delta of `rounds` releases with noise of `multiplier` times the sensitivity."""
    mu = math.sqrt(rounds) / multiplier
    # exp(epsilon) alone may overflow where its product does not.
    second = _phi(-epsilon / mu - mu / 2)
    return _phi(-epsilon / mu + mu / 2) - (math.exp(epsilon + math.log(second)) if second > 0 else 0.0)


def epsilon_of(delta: float, multiplier: float, rounds: int) -> float:
    """The smallest epsilon of `rounds` releases; infinite without noise."""
    if multiplier <= 0:
        return math.inf
    low, high = 0.0, 1.0
    if delta_of(0.0, multiplier, rounds) <= delta:
        return 0.0
    while delta_of(high, multiplier, rounds) > delta:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, multiplier, rounds) > delta else (low, middle)
    return high


def multiplier_of(epsilon: float, delta: float, rounds: int) -> float:
    """The least noise, in multiples of the sensitivity, with which `rounds` releases stay within (epsilon, delta)."""
    low, high = 0.0, 1.0
    while delta_of(epsilon, high, rounds) > delta:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if middle == 0 or delta_of(epsilon, middle, rounds) > delta else (low, middle)
    return high
