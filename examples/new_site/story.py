"""From the folders of a few sites to a model for a new one: choose, fit, check, predict, export.

    python make_sites.py work --each 20
    python story.py work

Give settings as on the command line: `python story.py work rounds=3 local_steps=5 backbone=convnet image_size=32`.
What it says also goes to work/story.json.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import unseen

METHODS = "fedavg,mixstyle,fedfd-a"


def story(work: Path, settings: dict[str, Any]) -> None:
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        print(line, flush=True)

    methods, workers = settings.pop("methods", METHODS), settings.pop("workers", None)
    common = {"data": "folder", "root": work / "sites", "workers": workers and int(workers), **settings}

    # Which method? Each site is left out in turn.
    choice = unseen.choose(methods=methods, seeds="0", out=work / "choice", **common)
    say(choice.why)

    # The model: all sites train, none is left out.
    fitted = unseen.fit(method="auto", choice=work / "choice" / "choice.json", out=work / "models", **common)
    assert fitted.directory is not None
    known = fitted.record.in_domain_accuracy
    say(f"trained {fitted.record.method} on all sites: {100 * known:.1f} % of their validation images are right")

    # At the new site, where some images have labels: how good is it here? Only metrics.json need leave the site.
    checked = unseen.check(fitted.directory, work / "new", out=work / "check")
    found = checked.accuracy
    say(
        f"at the new site {100 * found.value:.1f} % of {checked.images} labelled images are right "
        f"({100 * found.low:.1f} to {100 * found.high:.1f})"
    )
    if (more := checked.prediction_powered) is not None:
        by_both = more.accuracy
        say(
            f"with {more.unlabelled} images without labels: {100 * by_both.value:.1f} % "
            f"({100 * by_both.low:.1f} to {100 * by_both.high:.1f})"
        )
    answers = list(unseen.predict(fitted.directory, work / "new"))
    unlike = sum(one.familiar is False for one in answers)
    say(f"{unlike} of {len(answers)} images are unlike those of training")
    if checked.typical_look is not None:
        say(f"the typical one looks stranger than {100 * checked.typical_look:.0f} % of the images of the known sites")

    # For a machine without torch: the packed script gives the same answers.
    packed = unseen.export(fitted.directory, work / "packed")
    table = work / "predictions.csv"
    line = [sys.executable, "-B", packed / "predict.py", work / "new", "--out", table]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    with table.open() as file:
        rows = {row["image"]: row for row in csv.DictReader(file)}
    apart = max(
        abs(float(rows[one.image][f"p({name})"]) - p) for one in answers for name, p in one.probabilities.items()
    )
    say(f"packed: python predict.py IMAGES; its probabilities differ by at most {apart:.0e}")

    told = {"said": said, "answers": len(answers), "unlike": unlike, "apart": apart, "model": fitted.directory.name}
    (work / "story.json").write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    story(Path(sys.argv[1]), dict(word.split("=", 1) for word in sys.argv[2:]))
