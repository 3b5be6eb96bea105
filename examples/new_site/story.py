"""From the folders of a few sites to a model for a new one: choose, fit, check, predict, export.

    python make_sites.py work --each 20
    python story.py work

Give settings as on the command line: `python story.py work rounds=3 local_steps=5 backbone=convnet image_size=32`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import unseen

METHODS = "fedavg,mixstyle,fedfd-a"


def story(work: Path, settings: Mapping[str, str]) -> None:
    common = {"data": "folder", "root": work / "sites", **settings}

    # Which method? Each site is left out in turn.
    choice = unseen.choose(methods=METHODS, seeds="0", out=work / "choice", **common)
    print(choice.why)

    # The model: all sites train, none is left out.
    fitted = unseen.fit(method="auto", choice=work / "choice" / "choice.json", out=work / "models", **common)
    assert fitted.directory is not None
    print(f"trained {fitted.record.method}: {fitted.directory}")

    # At the new site, where some images have labels: how good is it here? Only metrics.json need leave the site.
    checked = unseen.check(fitted.directory, work / "new", out=work / "check")
    found = checked.accuracy
    print(f"at the new site {100 * found.value:.1f} % are right ({100 * found.low:.1f} to {100 * found.high:.1f})")
    said = list(unseen.predict(fitted.directory, work / "new"))
    print(f"{sum(one.familiar is False for one in said)} of {len(said)} images are unlike those of training")

    # For a machine without torch.
    packed = unseen.export(fitted.directory, work / "packed")
    print(f"packed: python {packed / 'predict.py'} IMAGES")


if __name__ == "__main__":
    story(Path(sys.argv[1]), dict(word.split("=", 1) for word in sys.argv[2:]))
