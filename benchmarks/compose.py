"""Which composition of at most three parts is best for a new domain, as far as the *sources* can tell?

    python benchmarks/compose.py digits --work /work/runs/compose [--rounds 8] [--methods all] [--minutes 50]
    python benchmarks/compose.py digits --work /work/runs/compose --final --seeds 0-2

For an unseen domain T each of its sources is left out in turn; the two others train, and the one left out is the test. A
candidate's score for T is its mean accuracy over the sources left out; T is in no run that counts for T. The run that
trains without A and B serves twice: as T = A with B left out, and as T = B with A left out. Four domains need six runs
per candidate, and not twelve.

The search is greedy, and each T has its own: every single method, then T's best ones, each with its best partners that
compose with it, then the best pairs with a third part. Of each size all candidates meet one left-out source, and the best
go on to the others. What T's search looks at is T's own scores; the four searches only share runs. All runs have the same
budget. Which methods are searched is no question of results: METHODS has some of every idea, `--methods all` has all
but those of LEFT_OUT. A search with few methods goes on as one with more.

Runs and choices go to benchmarks/results/compose/DATA.json after every run, and the same command goes on where it was
stopped. --minutes starts no run after so long; --again tries those once more that failed; --set PART.FIELD=VALUE gives a
part another field wherever it stands, and the record says so. --final then trains T's choice
on all of T's sources under the protocol of the table of results and tests it on T:
`python benchmarks/results.py keep WORK/DATA/final compose/DATA`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations, islice
from pathlib import Path
from typing import Any

from regret import PROTOCOLS, as_folders, linked

import unseen
from unseen.core.errors import UserError
from unseen.core.files import read_json, write_json
from unseen.experiments.collect import BASELINE
from unseen.experiments.inference import score
from unseen.experiments.inference_rules import Inference
from unseen.experiments.sweep import Job, make_jobs, sweep
from unseen.registry import parse, registered
from unseen.runs.images import store_of
from unseen.runs.model import load_trained
from unseen.runs.planning import Experiment

RECORDS = Path(__file__).parent / "results" / "compose"
# Of every idea some methods that can be had on a plain convolutional net with one domain per client; of those that differ
# little, one. What only bends weights between clients, which are two here, is left out but for a few.
METHODS = (
    "fedavg", "scaffold", "fedgma", "fedomg", "ga", "swad", "fedsam", "fedlgf", "mixup", "randaug", "randconv", "rsc",
    "mixstyle", "dsu", "efdmix", "styleddg", "selfreg", "fedsr", "fpl", "guide", "ibn", "bin", "fedfd", "fedfd-a", "gperxan",
    "stablefdg", "fedadg",
)  # fmt: skip
# Methods that no search has, by why. `--methods all` is all others.
LEFT_OUT = {
    "with one domain per client and equal budgets they are FedAvg":
        ("erm", "fednova", "silobn", "dann", "coral", "mmd"),
    "they need a vision transformer": ("doprompt", "fedclip", "feddgmoe", "fedins", "promptfl"),
    "they are against liars and leaks, and not for accuracy":
        ("krum", "median", "trimmedmean", "geomedian", "normbound", "dp", "centraldp"),
}  # fmt: skip
FINAL = {"digits": "digits", "pacs": "pacs"}  # the protocols of the tables of results
# What a search must keep to the word when it goes on, beside its data.
BUDGET = ("rounds", "local_steps", "image_size", "seed", "weights")
SAME = ({"gperxan", "guide"},)  # the second is in the first already, and no part to add
PARTS = 3  # of a composition at most

Pair = frozenset[str]  # the two domains that a run did without
Known = Mapping[tuple[str, Pair], Mapping[str, float] | None]  # accuracy on both of them; None: the run failed


@dataclass(frozen=True)
class Widths:
    """How wide the search is."""

    kept: tuple[int, int, int] = (6, 3, 2)  # of one, two and three parts: those that meet all left-out sources
    stems: int = 3  # the best of one part, and of two, that get one more
    partners: int = 3  # the best single methods that compose with a stem


@dataclass
class Found:
    """What the search for one unseen domain came to."""

    target: str
    wanted: list[tuple[str, Pair]] = field(default_factory=list)  # runs without which it cannot go on; none: finished
    ranked: dict[int, list[tuple[str, float]]] = field(default_factory=dict)  # by number of parts, best first
    looked: int = 0  # candidates that met at least one left-out source

    @property
    def best(self) -> tuple[str, float]:
        return max((one for ranked in self.ranked.values() for one in ranked), key=lambda one: one[1])


def meetings(domains: Sequence[str]) -> list[Pair]:
    """All pairs, in an order in which the first ones serve every domain once, then again."""
    left, ordered = [frozenset(pair) for pair in combinations(domains, 2)], list[Pair]()
    while left:
        busy: set[str] = set()
        for pair in list(left):
            if not pair & busy:
                ordered.append(pair)
                left.remove(pair)
                busy |= pair
    return ordered


def search(target: str, domains: Sequence[str], singles: Sequence[str], known: Known, widths: Widths) -> Found:
    """As far as the known runs go. Reads nothing of them but accuracies on sources of the target."""
    found = Found(target)
    others = [next(iter(pair - {target})) for pair in meetings(domains) if target in pair]

    def accuracy(name: str, other: str) -> float | None:
        told = known[name, frozenset({target, other})]
        return None if told is None else told[other]

    def met(names: Sequence[str], these: Sequence[str]) -> list[tuple[str, float]] | None:
        """Names with their mean over these left-out sources, best first; None if runs are wanted."""
        pairs = [(name, frozenset({target, other})) for other in these for name in names]
        found.wanted = [pair for pair in pairs if pair not in known]
        if found.wanted:
            return None
        means = []
        for name in names:
            told = [value for other in these if (value := accuracy(name, other)) is not None]
            if len(told) == len(these):  # one that failed somewhere is out
                means.append((name, sum(told) / len(told)))
        return sorted(means, key=lambda one: -one[1])

    names = list(singles)
    for parts, kept in zip(range(1, PARTS + 1), widths.kept, strict=True):
        first = met(names, others[:1])
        if first is None:
            return found
        found.looked += len(names)
        going = [name for name, _ in first[:kept]]
        if parts == 1 and BASELINE in names and BASELINE not in going:
            going.append(BASELINE)  # what all others are compared with
        ranked = met(going, others)
        if ranked is None:
            return found
        found.ranked[parts] = ranked
        if parts == 1:  # partners: those that met all sources, then those that met one
            rest = [one for one in first if one[0] not in going]
            partners = [name for name, _ in (*ranked, *rest) if name != BASELINE]
        stems = [name for name, _ in ranked if name != BASELINE][: widths.stems]
        names = list(dict.fromkeys(grown(stems, partners, singles, widths.partners)))
    return found


def grown(stems: Sequence[str], partners: Sequence[str], order: Sequence[str], most: int) -> Iterator[str]:
    """Each stem with one more part: its first partners that compose with it. Parts are in the order of the methods.

    One that clashes takes no place: where the best methods all own the loss, a stem goes on to those that do not.
    """
    for stem in stems:
        yield from islice(_composed(stem, partners, order), most)


def _composed(stem: str, partners: Sequence[str], order: Sequence[str]) -> Iterator[str]:
    parts = stem.split("+")
    for part in partners:
        if part in parts or any({part, own} in SAME for own in parts):
            continue
        whole = "+".join(sorted((*parts, part), key=order.index))
        try:
            parse(whole)
        except UserError:
            continue
        yield whole


# --- runs ------------------------------------------------------------------------------------------------------------
def own_fields(name: str, fields: Mapping[str, str] | None) -> dict[str, str]:
    """Those of the fields (PART.FIELD) whose part is in a composition."""
    return {key: value for key, value in (fields or {}).items() if key.partition(".")[0] in name.split("+")}


def read_fields(words: Sequence[str], methods: Sequence[str]) -> dict[str, str] | None:
    """`PART.FIELD=VALUE` of parts that are searched, each with a value that its part takes."""
    fields = {}
    for word in words:
        key, given, value = word.partition("=")
        part = key.partition(".")[0]
        if not given or "." not in key or part not in methods:
            raise UserError(
                f'--set "{word}" is not PART.FIELD=VALUE with a part that is searched: {", ".join(methods)}.'
            )
        parse(part, {key: value})
        fields[key] = value
    return fields or None


@dataclass
class Record:
    """All runs of a search, on disk after each of them."""

    path: Path
    about: dict[str, Any]
    runs: list[dict[str, Any]]

    @classmethod
    def open(cls, path: Path, about: dict[str, Any]) -> Record:
        if not path.exists():
            return cls(path, about, [])
        value = read_json(path)
        before = {name: value["about"].get(name) for name in ("data", "fields", *BUDGET)}
        if before != {name: about[name] for name in before}:
            raise UserError(f"{path} is a search with {before}; move it away, or go on with the same words.")
        return cls(path, about, value["runs"])

    @property
    def known(self) -> dict[tuple[str, Pair], dict[str, float] | None]:
        return {(run["method"], frozenset(run["without"])): run["accuracy"] for run in self.runs}

    def write(self, founds: Sequence[Found]) -> None:
        told = [
            {"target": one.target, "finished": not one.wanted, "looked": one.looked,
             "ranked": {str(parts): ranked for parts, ranked in one.ranked.items()}}
            for one in founds
        ]  # fmt: skip
        write_json(self.path, {"version": 1, "about": self.about, "found": told, "runs": self.runs})


class Trials:
    """Runs that do without two domains."""

    def __init__(self, given: argparse.Namespace, work: Path) -> None:
        self.given, self.work = given, work
        whole = Experiment.of({
            "data": given.data, "root": given.root, "protocol": PROTOCOLS[given.data], "image_size": given.image_size,
        })  # fmt: skip
        self.folders = as_folders(whole.index, work)
        self.domains = list(self.folders)
        self.store = store_of(whole.settings, whole.index)
        self.experiments: dict[str, Experiment] = {}

    def job(self, method: str, pair: Pair) -> Job:
        target, other = sorted(pair, key=self.domains.index)
        if other not in self.experiments:
            here = {domain: folder for domain, folder in self.folders.items() if domain != other}
            words = {
                "data": "folder", "root": linked(here, self.work / f"without-{other}"),
                "protocol": PROTOCOLS[self.given.data], "test_every": 0,
                **{name: getattr(self.given, name) for name in BUDGET if name != "seed"},
            }  # fmt: skip
            self.experiments[other] = Experiment.of(words)
        run = self.experiments[other].run(parse(method, own_fields(method, self.given.fields)), target, self.given.seed)
        return make_jobs([run.settings], self.work / "trials")[0]

    def outcome(self, method: str, pair: Pair, job: Job) -> dict[str, Any]:
        target, other = sorted(pair, key=self.domains.index)
        told: dict[str, Any] = {"method": method, "without": [target, other], "accuracy": None, "why": job.reason}
        if (result := job.result) is not None:
            trained = load_trained(job.directory.path)
            elsewhere = score(trained, Inference(), self.store.domain(other))[0].accuracy
            told |= {
                "accuracy": {target: result.accuracy, other: elsewhere},
                "seconds": result.seconds, "commit": result.commit,
            }  # fmt: skip
        return told


class Silent:
    def looked(self, jobs: Sequence[Job]) -> None: ...

    def ended(self, job: Job) -> None: ...


def carry_out(given: argparse.Namespace) -> None:
    work = given.work / given.data
    trials, widths = Trials(given, work), Widths(tuple(given.kept), given.stems, given.partners)
    singles = searched(given.methods)
    about = {
        "data": given.data, "protocol": PROTOCOLS[given.data], **{name: getattr(given, name) for name in BUDGET},
        "weights": given.weights and Path(given.weights).name, "fields": given.fields,
        "methods": singles, "widths": asdict(widths), "domains": trials.domains, "left_out": LEFT_OUT,
    }  # fmt: skip
    record = Record.open(given.records / f"{given.data}.json", about)
    if given.again:
        record.runs = [run for run in record.runs if run["accuracy"] is not None]
    ends = time.monotonic() + 60 * given.minutes
    while True:
        founds = [search(target, trials.domains, singles, record.known, widths) for target in trials.domains]
        record.write(founds)
        wanted = list(dict.fromkeys(run for found in founds for run in found.wanted))
        if not wanted:
            break
        # Runs that the first pairs of all four searches want come first: each of them serves two.
        place = {pair: number for number, pair in enumerate(meetings(trials.domains))}
        for number, (method, pair) in enumerate(sorted(wanted, key=lambda run: place[run[1]])):
            if time.monotonic() > ends:
                print(f"stopped after {given.minutes:g} minutes; the same command goes on", flush=True)
                return
            job = trials.job(method, pair)
            sweep([job], 1, Silent(), every=0.2)
            outcome = trials.outcome(method, pair, job)
            record.runs.append(outcome)
            record.write(founds)
            told = outcome["accuracy"]
            words = ", ".join(f"{d} {100 * a:.1f}" for d, a in told.items()) if told else f"failed: {outcome['why']}"
            print(f"{number + 1} of {len(wanted)}: {method}, without {' and '.join(sorted(pair))}: {words}", flush=True)
    for found in founds:
        name, value = found.best
        print(
            f"{found.target}: {name}, {100 * value:.1f} % on left-out sources, of {found.looked} candidates", flush=True
        )


def searched(words: str) -> list[str]:
    return every_method() if words == "all" else words.split(",")


def every_method() -> list[str]:
    """FedAvg and all that may be better on a new domain: fixed by what methods are, and not by results."""
    out = {name for names in LEFT_OUT.values() for name in names}
    return [BASELINE, *(name for name in registered() if name not in out and name != BASELINE)]


def finish(given: argparse.Namespace) -> None:
    """Each target's choice, trained on all of its sources with the whole budget."""
    path = given.records / f"{given.data}.json"
    value = read_json(path)
    fields = value["about"].get("fields")
    if given.fields not in (None, fields):
        raise UserError(f"{path} is a search with --set {fields or 'nothing'}: leave --set out, or say the same.")
    if open_yet := [found["target"] for found in value["found"] if not found["finished"]]:
        raise UserError(f"The search for {', '.join(open_yet)} is not finished: run it again without --final.")
    for found in value["found"]:
        best = max((one for ranked in found["ranked"].values() for one in ranked), key=lambda one: one[1])[0]
        unseen.bench(
            data=given.data, root=given.root, protocol=FINAL[given.data], weights=given.weights,
            methods=[{"name": best, "set": own_fields(best, fields)}], targets=[found["target"]], seeds=given.seeds,
            out=given.work / given.data / "final", workers=1, progress=False,
        )  # fmt: skip
        print(f"{found['target']}: {best} is trained", flush=True)


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("data", choices=sorted(PROTOCOLS))
    asked.add_argument("--root", type=Path)
    asked.add_argument("--weights")
    asked.add_argument("--work", type=Path, required=True)
    asked.add_argument("--records", type=Path, default=RECORDS)
    asked.add_argument("--methods", default=",".join(METHODS), help="by commas, or all")
    asked.add_argument("--rounds", type=int, default=8)
    asked.add_argument("--local-steps", type=int)
    asked.add_argument("--image-size", type=int)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--minutes", type=float, default=1e9)
    asked.add_argument("--kept", type=int, nargs=PARTS, default=Widths.kept)
    asked.add_argument("--stems", type=int, default=Widths.stems)
    asked.add_argument("--partners", type=int, default=Widths.partners)
    asked.add_argument("--again", action="store_true", help="runs that failed are tried once more")
    asked.add_argument("--set", action="append", default=[], metavar="PART.FIELD=VALUE", help="repeatable")
    asked.add_argument("--final", action="store_true")
    asked.add_argument("--seeds", default="0-2")
    given = asked.parse_args()
    given.fields = read_fields(given.set, searched(given.methods))
    finish(given) if given.final else carry_out(given)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
