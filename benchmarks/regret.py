"""Is `unseen choose` right? Its recommendation by the sources alone, against the best method in hindsight.

    python benchmarks/regret.py digits --work DIR --rounds 10
    python benchmarks/regret.py pacs --work DIR --root PACS --weights FILE --rounds 3 --hindsight \\
        --methods fedavg,mixstyle,gperxan,stablefdg

For a target T, `choose` gets the three other domains: it leaves each of them out in turn and trains on the two that remain.
A model that trained on two domains is measured on both others: it serves both of them as the target, with the other one left
out. So six pairs of domains are trained on, and not twelve. No choice for T ever sees T.

What `choose` decides from these runs goes to benchmarks/results/regret/DATA-T.json. `python benchmarks/results.py write` puts
it beside models that trained on all three: the recommended method, the best in hindsight, and FedAvg. These are the recorded
runs of DATA; with --hindsight they are made here, with the same short budget, and go to DATA-hindsight.json.

The same command again goes on where it was stopped. Target by target, so that whole rows come first. One run at a time.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from PIL import Image

import unseen
from unseen.core.files import read_json, write_json
from unseen.data.catalog import load_index
from unseen.data.domains import DomainIndex
from unseen.data.store import open_store
from unseen.experiments.choose import Choice, Runner, decide
from unseen.experiments.sweep import Job
from unseen.federation.measure import measure
from unseen.runs.directory import RunDirectory
from unseen.runs.model import load_trained
from unseen.runs.results import RunResult, label_of
from unseen.runs.run import one_thread
from unseen.runs.settings import NO_TARGET, Settings

RECORDS = Path(__file__).parent / "results" / "regret"
METHODS = "fedavg,fedfd,fedfd-a,gperxan,stablefdg,fedadg"  # those of which there are runs on every target
PROTOCOLS = {"digits": "digits", "pacs": "pacs-quick"}


def as_folders(index: DomainIndex, work: Path) -> dict[str, Path]:
    """Each domain's folder of images: digits are written as PNG files once, which keeps every bit."""
    if index.draw is None:
        first = {index.domains[k]: path for path, k in zip(reversed(index.paths), index.domain[::-1], strict=True)}
        return {domain: index.root / Path(first[domain]).parts[0] for domain in index.domains}
    folders = {domain: work / "all" / domain for domain in index.domains}
    done = work / "all" / "whole"
    if not done.exists():
        pixels = index.draw()
        for row in range(len(index)):
            place = folders[index.domains[index.domain[row]]] / index.classes[index.label[row]] / f"{row:05d}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[row]).save(place)
        done.touch()
    return folders


def linked(folders: Mapping[str, Path], place: Path) -> Path:
    """A folder with links to some domains."""
    place.mkdir(parents=True, exist_ok=True)
    for domain, folder in folders.items():
        if not (place / domain).exists():
            (place / domain).symlink_to(folder.resolve(), target_is_directory=True)
    return place


@dataclass
class Finished:
    """A run as `choose` reads its own: the site that was left out is in the settings."""

    settings: Settings
    result: RunResult
    status: str = "finished"
    reason: str = ""


class Trainings:
    """Models by the domains that they trained on, and their accuracy on the others."""

    def __init__(self, data: str, root: Path | None, work: Path, settings: dict[str, Any]) -> None:
        self.data, self.index, self.work, self.settings = data, load_index(data, root), work, settings
        self.folders = as_folders(self.index, work)

    def on(self, domains: Sequence[str], method: str, seed: int) -> list[Finished]:
        """One training; an entry for each domain that was not in it."""
        place = linked({domain: self.folders[domain] for domain in domains}, self.work / "-".join(domains))
        made = unseen.fit(
            data="folder", root=place, protocol=PROTOCOLS[self.data], method=method, seed=seed, workers=1,
            out=self.work / "runs", progress=False, **self.settings,
        )  # fmt: skip
        assert made.directory is not None
        found = self._accuracies(made.directory, [d for d in self.index.domains if d not in domains])
        settings = RunDirectory.open(made.directory).settings()
        return [
            Finished(replace(settings, target=target), replace(made.record, accuracy=accuracy))
            for target, accuracy in found.items()
        ]

    def _accuracies(self, run: Path, domains: Sequence[str]) -> dict[str, float]:
        """On whole domains. Kept beside the run: measuring takes a part of the time of training."""
        file = run / "elsewhere.json"
        if not file.exists():
            trained = load_trained(run, "cpu")
            store = open_store(self.index, trained.settings.data.image_size)
            with one_thread():
                scores = {
                    d: measure(trained.method.predict, trained.net, store.domain(d), trained.settings.plan)
                    for d in domains
                }
            write_json(file, {d: score.accuracy for d, score in scores.items()})
            print(f"{run.name}: {', '.join(f'{d} {100 * s.accuracy:.1f} %' for d, s in scores.items())}", flush=True)
        kept: dict[str, float] = read_json(file)
        return kept

    def choice(self, target: str, methods: Sequence[str], seeds: Sequence[int]) -> Choice:
        """What `choose` says of the other three domains."""
        sites = [domain for domain in self.index.domains if domain != target]
        runners = []
        for method in methods:
            runs = [
                one
                for seed in seeds
                for pair in itertools.combinations(sites, 2)
                for one in self.on(pair, method, seed)
                if one.settings.target != target
            ]
            first = load_trained(self._directory(runs[0]), "cpu")
            runners.append(Runner(first.method, label_of(runs[0].settings), cast(list[Job], runs)))
        return decide(runners, sites, seeds, runners[0].jobs[0].settings)

    def _directory(self, run: Finished) -> Path:
        return RunDirectory.of(replace(run.settings, target=NO_TARGET), self.work / "runs").path


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("data", choices=sorted(PROTOCOLS))
    asked.add_argument("--root", type=Path)
    asked.add_argument("--weights")
    asked.add_argument("--work", type=Path, required=True)
    asked.add_argument("--methods", default=METHODS)
    asked.add_argument("--targets", default="all")
    asked.add_argument("--seeds", default="0")
    asked.add_argument("--rounds", type=int)
    asked.add_argument("--local-steps", type=int)
    asked.add_argument("--hindsight", action="store_true", help="also train on all three others")
    asked.add_argument("--records", type=Path, default=RECORDS)
    given = asked.parse_args()
    budget = {"weights": given.weights, "rounds": given.rounds, "local_steps": given.local_steps}
    settings = {name: value for name, value in budget.items() if value is not None}
    trainings = Trainings(given.data, given.root, given.work / given.data, settings)
    domains = trainings.index.domains
    methods, seeds = given.methods.split(","), [int(word) for word in given.seeds.split(",")]
    hindsight: dict[str, dict[str, list[float]]] = {}
    for target in domains if given.targets == "all" else given.targets.split(","):
        choice = trainings.choice(target, methods, seeds)
        assert target not in choice.sites
        choice.write(given.records / f"{given.data}-{target}.json")
        print(f"{target}: {choice.why}", flush=True)
        if given.hindsight:
            others = [domain for domain in domains if domain != target]
            hindsight[target] = {
                method: [one.result.accuracy or 0.0 for seed in seeds for one in trainings.on(others, method, seed)]
                for method in methods
            }
            write_json(given.records / f"{given.data}-hindsight.json", hindsight)


if __name__ == "__main__":
    sys.exit(main())
