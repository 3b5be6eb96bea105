"""From the folders of a few sites to a model for a new one: choose, fit, predict, export.

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

    # At the new site, whose folders are its labels.
    said = list(unseen.predict(fitted.directory, work / "new"))
    right = sum(Path(one.image).parts[0] == one.label for one in said)
    print(f"at the new site {right} of {len(said)} images are right")

    # For a machine without torch.
    packed = unseen.export(fitted.directory, work / "packed")
    print(f"packed: python {packed / 'predict.py'} IMAGES")


if __name__ == "__main__":
    story(Path(sys.argv[1]), dict(word.split("=", 1) for word in sys.argv[2:]))
