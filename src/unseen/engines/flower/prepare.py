"""From a user's words to a deployment. What can be wrong is said now, not after the sites have connected."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unseen.core.errors import UserError
from unseen.data.domains import index_site
from unseen.engines.flower.config import FIXED, Deployment
from unseen.methods import check_names
from unseen.runs.model import build_net
from unseen.runs.planning import file_digest, read_fields, read_method, spell_method
from unseen.runs.protocols import protocol_of
from unseen.runs.settings import absolute, settings_of


def deployment_of(
    given: Mapping[str, Any],
    *,
    sites: Sequence[str],
    method: str = "fedavg",
    fields: Sequence[str] = (),
    classes: Sequence[str] = (),
    target: str = "elsewhere",
    target_folder: Path | None = None,
    seed: int | None = None,
    timeout: float = 3600.0,
    out: Path,
) -> Deployment:
    """Settings by their names on the command line, and what only a deployment has."""
    names = tuple(sorted(name.strip() for name in sites if name.strip()))
    if not names or not all(c.isalnum() or c in "-_" for name in names for c in name):
        raise UserError("--sites takes names of letters, digits, - and _, with commas: --sites aachen,bergen,cadiz.")
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise UserError(f'--sites names "{twice[0]}" twice; each site has a name of its own.')
    check_names(method)
    settings = dict(given)
    protocol = protocol_of(settings.pop("protocol", "pacs-quick"))
    settings.pop("centralized", None)
    if str(settings.get("weights", "none")) not in ("none", "imagenet"):
        settings["weights"] = absolute(settings["weights"])
    made = read_method(method, read_fields(fields))
    named, changed = spell_method(made)
    changes = {"minimum_clients": min(2, len(names)), **settings, **FIXED}
    chosen = settings_of(protocol, method=named, fields=changed, target=target, seed=seed, changes=changes)
    if chosen.net.weights_are_a_file:
        chosen = replace(chosen, net=replace(chosen.net, content=file_digest(Path(chosen.net.weights))))
    if chosen.plan.minimum_clients > len(names):
        raise UserError(
            f"--minimum-clients {chosen.plan.minimum_clients} is more than the {len(names)} sites; give a smaller one."
        )
    if not (timeout > 0 and math.isfinite(timeout)):
        raise UserError(f"--timeout is a number of seconds above 0, not {timeout:g}.")
    deployment = Deployment(
        settings=chosen,
        sites=names,
        classes=tuple(name.strip() for name in classes if name.strip()),
        target_folder=absolute(target_folder) or "",
        timeout=timeout,
        out=str(out),
    )
    deployment.fitting()
    # A net that does not fit its weights or its method would fail in the first round, with all sites waiting.
    made.share(build_net(chosen, made, max(2, len(deployment.classes))))
    if target_folder is not None:
        index_site(target_folder, deployment.classes, target)
    return deployment
