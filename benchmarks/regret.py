"""Is `unseen choose` right? For each target: what it recommends from the other domains alone, and what that costs.

    python benchmarks/regret.py digits --work /work/runs/regret [--targets street,ink] [--rounds 10]
    python benchmarks/regret.py pacs --root PACS --weights FILE --work /work/runs/regret

For a target T, `choose` gets a folder of the three other domains, so that no run ever has T: it leaves each of them out
in turn and trains on the two that remain. Its recommendation goes to benchmarks/results/regret/DATA-T.json, and
`python benchmarks/results.py write` puts it beside the recorded runs on T (those that trained on all three): the
recommended method, the best in hindsight, and FedAvg. The same command again goes on where it was stopped.

--rounds shortens the runs of `choose` alone; the table says so. One run at a time.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from PIL import Image

import unseen
from unseen.data.catalog import load_index

RECORDS = Path(__file__).parent / "results" / "regret"
METHODS = (
    "fedavg",
    "fedfd",
    "fedfd-a",
    "gperxan",
    "stablefdg",
    "fedadg",
)  # those of which there are runs on every target
PROTOCOLS = {"digits": "digits", "pacs": "pacs"}


def as_folders(data: str, root: Path | None, work: Path) -> dict[str, Path]:
    """Each domain's folder of images: digits are written as PNG files once, which keeps every bit."""
    index = load_index(data, root)
    if index.draw is None:
        assert root is not None
        first = {d: next(p for p, k in zip(index.paths, index.domain, strict=True) if index.domains[k] == d)
                 for d in index.domains}  # fmt: skip
        return {d: index.root / Path(first[d]).parts[0] for d in index.domains}
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


def without(target: str, folders: dict[str, Path], work: Path) -> Path:
    """A folder with links to all domains but the target."""
    root = work / f"without-{target}"
    root.mkdir(parents=True, exist_ok=True)
    for domain, folder in folders.items():
        if domain != target and not (root / domain).exists():
            (root / domain).symlink_to(folder.resolve(), target_is_directory=True)
    return root


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("data", choices=sorted(PROTOCOLS))
    asked.add_argument("--root", type=Path)
    asked.add_argument("--weights")
    asked.add_argument("--work", type=Path, required=True)
    asked.add_argument("--targets", default="all")
    asked.add_argument("--seeds", default="0")
    asked.add_argument("--rounds", type=int)
    given = asked.parse_args()
    work = given.work / given.data
    folders = as_folders(given.data, given.root, work)
    targets = list(folders) if given.targets == "all" else given.targets.split(",")
    for target in targets:
        print(f"{given.data}, without {target}", flush=True)
        choice = unseen.choose(
            data="folder",
            root=without(target, folders, work),
            protocol=PROTOCOLS[given.data],
            methods=list(METHODS),
            seeds=given.seeds,
            rounds=given.rounds,
            weights=given.weights,
            out=work / f"choice-{target}",
            workers=1,
            progress=True,
        )
        assert target not in choice.sites
        choice.write(RECORDS / f"{given.data}-{target}.json")
        print(f"{target}: {choice!r}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
