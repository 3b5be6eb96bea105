"""Domains -> clients, and each client's images -> training, validation and in-domain test.

Rules, as written on the command line:

    domain               one client per source domain, named after it
    iid:K                K clients per domain, classes spread evenly (FedFD-A, D.1)
    dirichlet:K:ALPHA    K clients per domain, each class dealt out by Dirichlet(ALPHA) (FedFD-A, D.1)
    mixed:N:ALPHA        N clients with several domains, each domain dealt out by Dirichlet(ALPHA) (StableFDG, 4)
    pairs                as many clients as domains, each with halves of two (FedFD-A, D.2)
    pairs:duplicate      the same with whole domains: every image is then with two clients
    pooled               one client with all source domains: centralized training, the upper reference

`dirichlet` and `mixed` draw again until every client has at least 10 images; a fourth part sets another number, as
`mixed:30:0.5:70`, StableFDG's published setting.

Groups stay whole: two pictures of one handwritten digit are with one client, and on one side of its split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from unseen.core.errors import UserError, unknown
from unseen.core.seeding import numpy_generator
from unseen.core.types import ClientId, Site
from unseen.data.domains import DomainIndex, IntArray
from unseen.data.store import Store

_LEAST = 10  # images per client, unless the rule says
_TRIES = 2000  # draws of a Dirichlet partition before giving up

Partition = dict[ClientId, IntArray]


def partition(index: DomainIndex, sources: Sequence[str], rule: str, seed: int) -> Partition:
    """The rows of each client, sorted. Every row of the sources is with one client (`pairs:duplicate`: with two)."""
    name, *words = rule.split(":")
    if name not in _RULES:
        raise unknown("partition", name, _RULES, f"The partitions are {', '.join(_FORMS.values())}.")
    chosen = [index.find(source) for source in sources]
    if not chosen:
        raise UserError("A partition needs at least one source domain.")
    clients = _RULES[name](_Deal(index, chosen, rule, words, seed))
    return {client: np.sort(rows) for client, rows in clients.items()}


@dataclass(frozen=True)
class _Deal:
    """What a rule works on."""

    index: DomainIndex
    sources: Sequence[str]
    rule: str
    words: Sequence[str]
    seed: int

    def rng(self, about: str) -> np.random.Generator:
        # By the domain's name, not its place: leaving out another target does not reshuffle this domain.
        return numpy_generator(self.seed, client=about, purpose=f"partition {self.rule}")

    def numbers(self, least: int, most: int) -> list[float]:
        """The rule's numbers, or an error that shows how it is written."""
        try:
            numbers = [float(word) for word in self.words]
        except ValueError:
            numbers = []
        if not least <= len(numbers) <= most or not all(0 < number < float("inf") for number in numbers):
            form = _FORMS[self.rule.split(":")[0]]
            raise UserError(f'The partition "{self.rule}" is not understood; write {form}, with positive numbers.')
        return numbers

    def groups(self, domain: str) -> list[IntArray]:
        """The rows of a domain, by group, in order."""
        rows = self.index.rows(domain)
        return _by_group(rows, self.index.group[rows])


def _whole(rule: str, number: float) -> int:
    if number != int(number):
        raise UserError(f'The partition "{rule}" needs a whole number of clients, not {number}.')
    return int(number)


def _check_room(deal: _Deal, about: str, clients: int, least: float, images: int) -> None:
    """Before clients are counted out one by one: are there images for so many?"""
    if clients * least > images:
        raise UserError(
            f'The partition "{deal.rule}" asks for more clients of {about} than its {images:,} images are enough for, '
            f"with at least {least:g} images each; ask for fewer."
        )


def _by_group(rows: IntArray, group: IntArray) -> list[IntArray]:
    order = np.argsort(group, kind="stable")
    cuts = np.flatnonzero(np.diff(group[order])) + 1
    parts = [part for part in np.split(rows[order], cuts) if len(part)]
    # By their first row, not by the group's number: a site that numbers its groups otherwise comes to the same split.
    return sorted(parts, key=lambda part: int(part[0]))


def _shuffled(count: int, rng: np.random.Generator) -> IntArray:
    return np.argsort(rng.random(count), kind="stable").astype(np.int64)


def _name(domain: str, number: int, count: int) -> ClientId:
    """`photo-00`, with as many digits as sorting needs."""
    return f"{domain}-{number:0{max(2, len(str(count - 1)))}d}"


def _join(parts: Sequence[IntArray]) -> IntArray:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def _domain(deal: _Deal) -> Partition:
    deal.numbers(0, 0)
    return {domain: deal.index.rows(domain) for domain in deal.sources}


def _iid(deal: _Deal) -> Partition:
    (number,) = deal.numbers(1, 1)
    count = _whole(deal.rule, number)
    clients: Partition = {}
    for domain in deal.sources:
        groups = deal.groups(domain)
        _check_room(deal, domain, count, 1, len(groups))
        order = _shuffled(len(groups), deal.rng(domain))
        labels = np.array([deal.index.label[groups[g][0]] for g in order])
        # Dealt like cards from a deck sorted by class: sizes differ by one group at most, and so does every class.
        deck = order[np.argsort(labels, kind="stable")]
        for k in range(count):
            clients[_name(domain, k, count)] = _join([groups[g] for g in deck[k::count]])
    return clients


def _redrawn(
    deal: _Deal, about: str, draw: Callable[[np.random.Generator], list[IntArray]], least: int
) -> list[IntArray]:
    """Draw until every client has enough images."""
    rng = deal.rng(about)
    for _ in range(_TRIES):
        parts = draw(rng)
        if min(len(part) for part in parts) >= least:
            return parts
    raise UserError(
        f'The partition "{deal.rule}" finds no draw that gives each of {len(parts)} clients of {about} at least '
        f"{least} images; ask for fewer clients, a larger alpha, or fewer images (the last number)."
    )


def _dealt(
    groups: Sequence[IntArray], shares: npt.NDArray[np.float64], rng: np.random.Generator
) -> list[list[IntArray]]:
    """Groups in a random order, cut at the cumulated shares."""
    order = _shuffled(len(groups), rng)
    cuts = np.rint(np.cumsum(shares)[:-1] * len(groups)).astype(np.int64)
    return [[groups[g] for g in part] for part in np.split(order, cuts)]


def _dirichlet(deal: _Deal) -> Partition:
    number, alpha, *rest = deal.numbers(2, 3)
    count, least = _whole(deal.rule, number), int(rest[0]) if rest else _LEAST
    clients: Partition = {}
    for domain in deal.sources:
        groups = deal.groups(domain)
        _check_room(deal, domain, count, least, sum(map(len, groups)))
        labels = np.array([deal.index.label[group[0]] for group in groups])
        by_class = [[groups[g] for g in np.flatnonzero(labels == label)] for label in np.unique(labels)]

        def draw(rng: np.random.Generator, by_class: list[list[IntArray]] = by_class) -> list[IntArray]:
            dealt = [_dealt(members, rng.dirichlet(np.full(count, alpha)), rng) for members in by_class]
            return [_join([group for parts in dealt for group in parts[k]]) for k in range(count)]

        for k, rows in enumerate(_redrawn(deal, domain, draw, least)):
            clients[_name(domain, k, count)] = rows
    return clients


def _mixed(deal: _Deal) -> Partition:
    number, alpha, *rest = deal.numbers(2, 3)
    count, least = _whole(deal.rule, number), int(rest[0]) if rest else _LEAST
    groups = [deal.groups(domain) for domain in deal.sources]
    _check_room(deal, "+".join(deal.sources), count, least, sum(len(group) for part in groups for group in part))

    def draw(rng: np.random.Generator) -> list[IntArray]:
        dealt = [_dealt(members, rng.dirichlet(np.full(count, alpha)), rng) for members in groups]
        return [_join([group for parts in dealt for group in parts[k]]) for k in range(count)]

    parts = _redrawn(deal, "+".join(deal.sources), draw, least)
    return {_name("client", k, count): rows for k, rows in enumerate(parts)}


def _pairs(deal: _Deal) -> Partition:
    if list(deal.words) not in ([], ["duplicate"]):
        raise UserError(f'The partition "{deal.rule}" is not understood; write {_FORMS["pairs"]}.')
    if len(deal.sources) < 2:
        raise UserError("The partition pairs needs at least two source domains.")
    halves: dict[str, tuple[IntArray, IntArray]] = {}
    for domain in deal.sources:
        groups = deal.groups(domain)
        order = _shuffled(len(groups), deal.rng(domain))
        labels = np.array([deal.index.label[groups[g][0]] for g in order])
        deck = order[np.argsort(labels, kind="stable")]
        one, two = (_join([groups[g] for g in deck[k::2]]) for k in range(2))
        halves[domain] = (_join([one, two]),) * 2 if deal.words else (one, two)
    # A ring, as in the paper: P+A, A+C, C+P. Each domain is first in one client and second in another.
    ring = [(domain, deal.sources[(d + 1) % len(deal.sources)]) for d, domain in enumerate(deal.sources)]
    return {f"{first}+{second}": _join([halves[first][0], halves[second][1]]) for first, second in ring}


def _pooled(deal: _Deal) -> Partition:
    deal.numbers(0, 0)
    return {"all sources": _join([deal.index.rows(domain) for domain in deal.sources])}


_RULES: Mapping[str, Callable[[_Deal], Partition]] = {
    "domain": _domain,
    "iid": _iid,
    "dirichlet": _dirichlet,
    "mixed": _mixed,
    "pairs": _pairs,
    "pooled": _pooled,
}
_FORMS = {
    "domain": "domain",
    "iid": "iid:CLIENTS_PER_DOMAIN",
    "dirichlet": "dirichlet:CLIENTS_PER_DOMAIN:ALPHA[:LEAST_IMAGES]",
    "mixed": "mixed:CLIENTS:ALPHA[:LEAST_IMAGES]",
    "pairs": "pairs or pairs:duplicate",
    "pooled": "pooled",
}
RULES = tuple(_FORMS.values())


class Split(NamedTuple):
    """The rows of one client, each part sorted."""

    train: IntArray
    validation: IntArray  # select by these
    test: IntArray  # measure with these


def split(
    rows: IntArray,
    labels: IntArray,
    groups: IntArray,
    fraction: float,
    seed: int,
    client: ClientId,
    domains: IntArray | None = None,
    test_fraction: float = 0.0,
) -> Split:
    """Training, validation and test rows of one client: `fraction` is validation's part, `test_fraction` the test's.

    `labels`, `groups` and `domains` have one entry per entry of `rows`. Stratified by class (and domain), whole groups,
    at least one training group per stratum. Depends on the client's own images and (seed, client) alone: a site that
    has nothing but its own folder comes to the same split as a simulation that has them all. The validation images are
    the same whatever the test's part is.
    """
    if not 0 <= fraction < 1:
        raise UserError(f"The validation fraction must be at least 0 and below 1, not {fraction}.")
    if not (test_fraction >= 0 and fraction + test_fraction < 1 - 1e-9):
        raise UserError(
            f"The fraction for the in-domain test must be at least 0 and, with validation's {fraction}, below 1; it is "
            f"{test_fraction}."
        )
    places = np.arange(len(rows), dtype=np.int64)
    members = _by_group(places, np.asarray(groups))
    _, label = np.unique(labels, return_inverse=True)
    stratum = (
        label if domains is None else label + (label.max(initial=0) + 1) * np.unique(domains, return_inverse=True)[1]
    )
    # Strata in the order of first appearance: their numbers may differ between a site and the simulation.
    strata: dict[int, list[IntArray]] = {}
    for group in members:
        strata.setdefault(int(stratum[group[0]]), []).append(group)
    sizes = [sum(len(group) for group in parts) for parts in strata.values()]
    validation, rest = _hold_back(
        list(strata.values()),
        [fraction * size for size in sizes],
        numpy_generator(seed, client=client, purpose="split"),
    )
    test, rest = _hold_back(
        rest, [test_fraction * size for size in sizes], numpy_generator(seed, client=client, purpose="in-domain test")
    )
    training = np.setdiff1d(places, np.concatenate([validation, test]))
    return Split(np.sort(rows[training]), np.sort(rows[validation]), np.sort(rows[test]))


def _hold_back(
    strata: Sequence[Sequence[IntArray]], wanted: Sequence[float], rng: np.random.Generator
) -> tuple[IntArray, list[list[IntArray]]]:
    """So many images of each stratum, in whole groups, and the groups that are left."""
    held: list[IntArray] = []
    left: list[list[IntArray]] = []
    owed = 0.0
    for parts, count in zip(strata, wanted, strict=True):
        # What a stratum's whole groups give too much or too little, the next one makes up for.
        owed += count
        taken: set[int] = set()
        for g in _shuffled(len(parts), rng)[:-1]:  # the last one always trains
            if len(parts[g]) / 2 > owed + 1e-9:
                break
            held.append(parts[g])
            taken.add(int(g))
            owed -= len(parts[g])
        left.append([group for g, group in enumerate(parts) if g not in taken])
    return _join(held), left


def make_sites(
    store: Store, clients: Mapping[ClientId, IntArray], fraction: float, seed: int, test_fraction: float = 0.0
) -> list[Site]:
    """A desk per client: its training, validation and test images."""
    index = store.index
    sites = []
    for client, rows in clients.items():
        parts = split(
            rows, index.label[rows], index.group[rows], fraction, seed, client, index.domain[rows], test_fraction
        )
        sites.append(Site(client, *(store.images.subset(part) for part in parts)))
    return sites
