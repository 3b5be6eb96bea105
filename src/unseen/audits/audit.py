"""`unseen audit`: every attack that fits what crossed in a run, one after the other, and what they found.

AUDIT/findings.jsonl     one line per attack, appended: a stopped audit goes on after the last one
AUDIT/*.png              originals above, reconstructions below
AUDIT/audit.json         written last: all findings
AUDIT/recorded/          the replies that were looked at; removed at the end
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from unseen.audits.attack import Attack, Known, Observed, Truth
from unseen.audits.attacks.classes import ToldClasses
from unseen.audits.attacks.domain import DomainOfUpdate
from unseen.audits.attacks.features import HeadFeatures
from unseen.audits.attacks.generator import GeneratorDistance
from unseen.audits.attacks.labels import LabelCounts
from unseen.audits.attacks.matching import GradientMatching
from unseen.audits.attacks.membership import FinalModelMembership
from unseen.audits.attacks.norms import NormCounts
from unseen.audits.attacks.spectra import SpectrumMatching
from unseen.audits.attacks.style_decoder import StyleDecoder
from unseen.audits.attacks.styles import StyleMatching
from unseen.audits.attacks.update_membership import UpdateMembership
from unseen.audits.findings import AUDIT_FILE, AuditResult, Finding, read_audit
from unseen.audits.record import read_recorded
from unseen.audits.replay import replay, replayable
from unseen.core.errors import UserError, unknown
from unseen.core.files import append_line, atomic, read_json, read_lines, read_tensors, write_json
from unseen.core.platform import prepare_process, source_version
from unseen.core.seeding import torch_generator
from unseen.core.types import Batch
from unseen.runs.directory import RunDirectory
from unseen.runs.model import build_net
from unseen.runs.progress import Silent, Watcher
from unseen.runs.results import label_of
from unseen.runs.run import Assembly, PlannedRun, assemble, augmenter, load_data, one_thread
from unseen.runs.settings import Settings

ATTACKS: dict[str, Attack] = {
    "features": HeadFeatures(),
    "labels": LabelCounts(),
    "norms": NormCounts(),
    "classes": ToldClasses(),
    "styles": StyleMatching(),
    "decoder": StyleDecoder(),
    "spectra": SpectrumMatching(),
    "membership": FinalModelMembership(),
    "updates": UpdateMembership(),
    "generator": GeneratorDistance(),
    "domain": DomainOfUpdate(),
    "matching": GradientMatching(),  # last: it takes longest
}
PUBLIC = 256  # images of the unseen domain that the attacker has


def attacks_named(words: Sequence[str] | None) -> dict[str, Attack]:
    if words is None:
        return ATTACKS
    for word in words:
        if word not in ATTACKS:
            raise unknown("attack", word, ATTACKS, f"The attacks are {', '.join(ATTACKS)}.")
    return {name: attack for name, attack in ATTACKS.items() if name in words}


def check_auditable(settings: Settings) -> None:
    """An error for a run of which no single reply was seen."""
    if settings.plan.secure:
        raise UserError(
            "In a run with --secure the coordinator sees no single reply that could be attacked: audit the same run without "
            "it to see what it hides."
        )


def audit_run(
    run: RunDirectory,
    folder: Path,
    *,
    effort: float = 1.0,
    attacks: Sequence[str] | None = None,
    watcher: Watcher | None = None,
) -> AuditResult:
    """A finished run, attacked. What was found before by the same effort is not done again."""
    watcher, chosen = watcher or Silent(), attacks_named(attacks)
    if not effort > 0:
        raise UserError(f"--effort must be above 0, not {effort:g}.")
    result = run.result()
    if result is None or not run.finished:
        raise UserError(f"The run in {run.path} is not finished: go on with it by `unseen run --resume {run.path}`.")
    done = _done(folder, effort)
    if (folder / AUDIT_FILE).exists() and set(chosen) <= set(done):
        return read_audit(folder)
    settings = run.settings()
    check_auditable(settings)
    prepare_process(settings.plan.precision, settings.plan.device)
    with one_thread():
        planned = PlannedRun.of(settings)
        data = load_data(planned, watcher)
        recorded, rounds = folder / "recorded", replayable(run, settings.plan.rounds)
        kept = folder / "replayed.json"
        if not kept.exists() or len(read_recorded(recorded, rounds)) == 0:
            same = replay(lambda: assemble(planned, data), run, rounds, recorded, watcher)
            write_json(kept, {"same_bits": same})
        same_bits = read_json(kept)["same_bits"]
        if same_bits is False:
            watcher.said(
                "the replayed round has other bits than the run: it was computed on another machine or version"
            )
        observed = Observed(tuple(read_recorded(recorded, rounds)), read_tensors(run.model_path)[0])
        known = _known(planned, assemble(planned, data), effort)
        truth = Truth(data.sites, settings.seed)
        for number, (name, attack) in enumerate(chosen.items(), start=1):
            if name in done or not attack.fits(observed, known):
                continue
            watcher.said(f"[{number}/{len(chosen)}] {attack.name}")
            done[name] = _carried_out(attack, observed, known, truth, folder)
            line = {"attack": name, "effort": effort, "findings": [finding.to_json() for finding in done[name]]}
            append_line(folder / "findings.jsonl", line)
    method = planned.method
    audit = AuditResult(
        run=run.path.name,
        method=settings.method,
        label=label_of(settings, result.remark),
        data=settings.data.name,
        target=settings.target,
        seed=settings.seed,
        protocol=settings.protocol,
        accuracy=result.accuracy,
        beyond_weights=result.beyond_weights,
        rounds=rounds,
        same_bits=same_bits,
        budget=_budget(settings.plan),
        epsilon=method.about.epsilon(settings.plan.rounds),
        delta=method.about.delta,
        effort=effort,
        commit=source_version(),
        seconds=sum(finding.seconds for found in done.values() for finding in found),  # of all starts
        findings=tuple(finding for found in done.values() for finding in found),
    )
    write_json(folder / AUDIT_FILE, audit.to_json())
    shutil.rmtree(recorded, ignore_errors=True)
    kept.unlink(missing_ok=True)
    return audit


def _done(folder: Path, effort: float) -> dict[str, list[Finding]]:
    lines = [line for line in read_lines(folder / "findings.jsonl") if line.get("effort") == effort]
    return {line["attack"]: [Finding.from_json(found) for found in line["findings"]] for line in lines}


def _budget(plan: Any) -> str:
    count, unit = (plan.local_steps, "steps") if plan.local_steps else (plan.local_epochs, "epochs")
    return f"{plan.rounds} rounds of {count} {unit} of {plan.batch_size}"


def _known(planned: PlannedRun, assembly: Assembly, effort: float) -> Known:
    settings, classes = planned.settings, len(assembly.data.classes)
    target = assembly.data.target
    rng = torch_generator(settings.seed, purpose="audit public")
    if target is not None:
        public = target.batch(torch.randperm(len(target), generator=rng)[:PUBLIC])
    else:  # no domain was left out: the attacker has noise only
        size = settings.data.image_size
        labels = torch.randint(classes, (PUBLIC,), generator=rng)
        public = Batch(torch.rand(PUBLIC, 3, size, size, generator=rng), labels, torch.zeros_like(labels))
    return Known(
        method=planned.method,
        build=lambda: build_net(settings, planned.method, classes),
        plan=settings.plan,
        augment=augmenter(settings),
        public=public,
        seed=settings.seed,
        effort=effort,
    )


def _carried_out(attack: Attack, observed: Observed, known: Known, truth: Truth, folder: Path) -> list[Finding]:
    started = time.monotonic()
    try:
        found = attack.attack(observed, known, truth)
    except (UserError, RuntimeError, KeyError, ValueError, StopIteration) as error:
        # A method may do what an attack cannot simulate; the table says so, and the other attacks go on.
        found = [Finding(attack.name, attack.plays, "", real=False, failed=f"{type(error).__name__}: {error}")]
    each = (time.monotonic() - started) / max(1, len(found))
    for finding in found:
        for name, picture in finding.pictures.items():
            with atomic(folder / name) as temporary:
                Image.fromarray(picture).save(temporary, format="PNG")
    return [replace(finding, seconds=each, files=tuple(finding.pictures)) for finding in found]
