"""The run directory: what a run writes, and how it goes on after a crash.

config.json             the settings; the same settings name the same directory
results.jsonl           one line per round, appended; after a crash a round may stand there twice, with the same numbers
checkpoints/            round-NNNNNN.safetensors (the last three) and best-NNNNNN.safetensors
audit.jsonl             who was asked what and what came back, in a chain of hashes
clients/                what each client keeps (local engine)
own/                    copies of the user's own method files, where the method is theirs
ledger.json             every tensor that crossed, by name
model.safetensors       the selected model, with all that `predict` needs in its header
calibration.json        temperature, prediction sets and familiarity of that model, from the clients' validation images
result.json             written last: a run with a result is finished
evaluations.jsonl       one line per `unseen evaluate`: the model under another inference rule
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from unseen.core.calibration import Calibration
from unseen.core.errors import UserError
from unseen.core.files import (
    append_line,
    disk_error,
    read_json,
    read_lines,
    read_sealed_json,
    read_tensors,
    shortened,
    write_json,
    write_lines,
    write_sealed_json,
    write_tensors,
)
from unseen.core.tensors import prefixed, unprefixed
from unseen.core.types import Server, Tensors
from unseen.federation.audit import BEGINNING, AuditLog, Chain, read_chain
from unseen.federation.audit import NAME as AUDIT
from unseen.federation.client_state import VERSIONS, ClientStates
from unseen.federation.ledger import Ledger
from unseen.runs import own_methods
from unseen.runs.results import EvaluationLine, RoundLine, RunResult
from unseen.runs.selection import Selection
from unseen.runs.settings import Settings

if sys.platform != "win32":
    import fcntl

KEEP = VERSIONS  # checkpoints: the last, and two more to fall back on or to roll back to; clients keep as many


def directory_for(settings: Settings, out: Path) -> Path:
    """The directory of these settings: readable, and unique by a digest of what differs from the defaults."""
    name = f"{settings.data.name}-{settings.target}-{settings.method}-s{settings.seed}"
    return out / f"{shortened(name)}-{settings.digest()}"


@dataclass(frozen=True)
class RunDirectory:
    """Reads and writes one run's files."""

    path: Path

    @classmethod
    def at(cls, path: Path, settings: Settings) -> RunDirectory:
        """The directory of these settings, begun or not. Another run in its place is an error."""
        self = cls(path)
        if self.begun and self.settings().differences() != settings.differences():
            raise UserError(f"{self.path} holds a run with other arguments; move it away or give another --out.")
        return self

    @classmethod
    def of(cls, settings: Settings, out: Path) -> RunDirectory:
        """The directory of these settings below `out`, begun or not."""
        return cls.at(directory_for(settings, out), settings)

    @property
    def begun(self) -> bool:
        return self.config_path.exists()

    def begin(self, settings: Settings) -> RunDirectory:
        """Make the directory, unless it was begun before."""
        if self.begun:
            own_methods.check(self.path, settings.method)
            return self
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"The folder {self.path} could not be made ({error.strerror}); give another --out."
            ) from None
        own_methods.keep(self.path, settings.method)
        write_json(self.config_path, settings.to_json())
        return self

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run directory."""
        self = cls(path)
        if not path.is_dir():
            raise UserError(f"There is no run directory {path}; `unseen run` makes one under --out.")
        if not self.config_path.exists():
            raise UserError(f"{path} is not a run directory: it has no config.json.")
        return self

    @property
    def config_path(self) -> Path:
        return self.path / "config.json"

    @property
    def model_path(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def calibration_path(self) -> Path:
        return self.path / "calibration.json"

    def calibration(self) -> Calibration | None:
        """Of the selected model; None in runs of earlier versions."""
        if not self.calibration_path.exists():
            return None
        try:
            return Calibration.from_json(read_sealed_json(self.calibration_path))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{self.calibration_path} is not a calibration of unseen ({error}).") from None

    def save_calibration(self, found: Calibration) -> None:
        write_sealed_json(self.calibration_path, found.to_json())

    @property
    def finished(self) -> bool:
        """Is there a result, and the model that it speaks of?"""
        return (self.path / "result.json").exists() and self.model_path.exists()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Inside, no other process works on this run. A sweep that holds the lock hands it to the process it starts."""
        lock = take_lock(self.path, inherited=os.environ.get(LOCK_VARIABLE))
        if lock is None:
            raise UserError(f"Another process is working on {self.path}; wait for it, or stop it first.")
        try:
            yield
        finally:
            lock.close()

    @property
    def client_states(self) -> ClientStates:
        return ClientStates(self.path / "clients")

    def settings(self) -> Settings:
        try:
            return Settings.from_json(read_json(self.config_path))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{self.config_path} is not a config of this version of unseen ({error}).") from None

    def result(self) -> RunResult | None:
        """The result of a finished run."""
        path = self.path / "result.json"
        if not path.exists():
            return None
        try:
            return RunResult.from_json(read_json(path))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path} is not a result of unseen ({error}).") from None

    def classes(self) -> list[str] | None:
        """The names of the classes, from the model's header; None where there is no model."""
        if not self.model_path.exists():
            return None
        try:
            return [str(name) for name in header_of(self.model_path)["classes"]]
        except (KeyError, ValueError, OSError):
            return None

    def rounds(self) -> list[RoundLine]:
        """The lines of results.jsonl, one per round: the last one wins where a crash made two."""
        path = self.path / "results.jsonl"
        try:
            lines = [RoundLine.from_json(line) for line in read_lines(path) if "round" in line]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path} has a line that is not of unseen ({error}); delete that line.") from None
        return sorted({line.round: line for line in lines}.values(), key=lambda line: line.round)

    def append(self, line: RoundLine) -> None:
        append_line(self.path / "results.jsonl", line.to_json())

    def evaluations(self) -> dict[str, EvaluationLine]:
        """What `unseen evaluate` found, by rule: the last of each."""
        path = self.path / "evaluations.jsonl"
        lines = [line for line in read_lines(path) if "rule" in line]
        try:
            return {line["rule"]: EvaluationLine.from_json(line) for line in lines}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path} has a line that is not of unseen ({error}); delete that line.") from None

    def append_evaluation(self, line: EvaluationLine) -> None:
        append_line(self.path / "evaluations.jsonl", line.to_json())

    def ledger(self) -> Ledger | None:
        """What crossed in a finished run."""
        path = self.path / "ledger.json"
        if not path.exists():
            return None
        try:
            return Ledger.from_json(read_json(path))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path} is not a ledger of unseen ({error}).") from None

    # --- checkpoints ---------------------------------------------------------------------------------------------
    def _checkpoints(self, kind: str) -> dict[int, Path]:
        folder = self.path / "checkpoints"
        return {int(path.stem.rpartition("-")[2]): path for path in sorted(folder.glob(f"{kind}-[0-9]*.safetensors"))}

    def save_best(self, selection: Selection) -> None:
        path = self.path / "checkpoints" / f"best-{selection.round:06d}.safetensors"
        write_tensors(path, selection.state, selection.to_json())

    def save(
        self, server: Server, selection: Selection, ledger: Ledger, seconds: float, audited: str = BEGINNING
    ) -> None:
        """The server after a round. Older files go only once this one is whole. `audited`: the audit log's last hash."""
        about = {
            "round": server.round,
            "seed": server.seed,
            "met": sorted(server.met),
            "enrolled": server.enrolled,
            "selection": selection.to_json(),
            "ledger": ledger.to_json(),
            "seconds": seconds,
            "audited": audited,
        }
        tensors = prefixed("state/", server.state) | prefixed("memory/", dict(server.memory))
        write_tensors(self.path / "checkpoints" / f"round-{server.round:06d}.safetensors", tensors, about)
        rounds = self._checkpoints("round")
        kept = sorted(r for r in rounds if r <= server.round)[-KEEP:]
        for number, path in rounds.items():
            if number not in kept:
                path.unlink(missing_ok=True)
        # An older checkpoint may be needed if this one is spoilt, and with it the best round that it names.
        needed = {selection.round, *(_best_round(rounds[r]) for r in kept if r in rounds)}
        for number, path in self._checkpoints("best").items():
            if number not in needed:
                path.unlink(missing_ok=True)

    def restore(self) -> tuple[Server, Selection, Ledger, float] | None:
        """The newest whole checkpoint, or None for a run that has not finished a round.

        One that is cut off is passed over for the one before it; if none is whole, that is an error: nothing is overwritten.
        """
        rounds = self._checkpoints("round")
        spoilt: list[Path] = []
        for number in sorted(rounds, reverse=True):
            try:
                return self._read(rounds[number])
            except UserError:
                spoilt.append(rounds[number])
        if spoilt:
            raise UserError(
                f"The checkpoint {spoilt[0]} is cut off and no other is whole; delete {spoilt[0].parent} to begin this run "
                f"again from round 1."
            )
        return None

    def server_after(self, round: int) -> Server | None:
        """The server as it was after a round, if that checkpoint is still there and whole."""
        path = self._checkpoints("round").get(round)
        if path is None:
            return None
        try:
            return self._read(path)[0]
        except (UserError, KeyError):  # the file, or that of the best round that it names
            return None

    def _read(self, path: Path) -> tuple[Server, Selection, Ledger, float]:
        tensors, about = read_tensors(path)
        try:
            server = Server(
                state=unprefixed("state/", tensors),
                seed=about["seed"],
                round=about["round"],
                memory=unprefixed("memory/", tensors),
                met=set(about["met"]),
                enrolled={str(client): int(count) for client, count in about.get("enrolled", {}).items()},
            )
            chosen = about["selection"]
            selection = Selection(chosen["rule"])
            if chosen["score"] is not None:
                best, _ = read_tensors(self._checkpoints("best")[chosen["round"]])
                selection = Selection(chosen["rule"], chosen["round"], chosen["score"], best)
            return server, selection, Ledger.from_json(about["ledger"]), float(about["seconds"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path} is not a checkpoint of unseen, or its best round is lost ({error}).") from None

    def rollback(self, round: int) -> None:
        """Go back to the checkpoint of a round: what came later is deleted, and the run goes on from there."""
        rounds = self._checkpoints("round")
        there = ", ".join(map(str, sorted(rounds))) or "none"
        if round not in rounds:
            raise UserError(
                f"{self.path} has no checkpoint of round {round}: the last {KEEP} are kept, and there are {there}."
            )
        with self.locked():
            self._read(rounds[round])  # must be whole
            # The result first: from here on the run is not finished. The lines last: nobody counts on them.
            for name in ("result.json", "calibration.json", "model.safetensors", "ledger.json"):
                (self.path / name).unlink(missing_ok=True)
            for number, path in sorted(rounds.items(), reverse=True):
                if number > round:
                    path.unlink(missing_ok=True)
            write_lines(self.path / "results.jsonl", [line.to_json() for line in self.rounds() if line.round <= round])
            log = self.audit()
            log.note("rollback", round=round)
            log.write()

    # --- the audit log -------------------------------------------------------------------------------------------
    def audit(self) -> AuditLog:
        return AuditLog.at(self.path / AUDIT)

    def verify_audit(self) -> Chain:
        """The chain of the audit log, held against the newest whole checkpoint."""
        chain = read_chain(self.path / AUDIT)
        for number, path in sorted(self._checkpoints("round").items(), reverse=True):
            known = header_of(path).get("audited", BEGINNING)
            if not chain.fault and known not in chain.hashes | {BEGINNING}:
                return replace(chain, fault=f"its end is missing: the checkpoint of round {number} knows a later entry")
        return chain

    # --- the end -------------------------------------------------------------------------------------------------
    def finish(
        self,
        state: Tensors,
        about: dict[str, Any],
        calibration: Calibration | None,
        ledger: Ledger,
        result: RunResult,
    ) -> None:
        """Model, its calibration, ledger and, last, the result."""
        write_tensors(self.model_path, state, about)
        if calibration is not None:
            self.save_calibration(calibration)
        write_json(self.path / "ledger.json", ledger.to_json())
        write_json(self.path / "result.json", result.to_json())


LARGEST_HEADER = 100_000_000  # safetensors' own limit
LOCK_VARIABLE = "UNSEEN_LOCK"  # the number of an open lock file that a process inherits, and its directory


def take_lock(path: Path, inherited: str | None = None) -> IO[bytes] | None:
    """The run's lock, held until the file is closed, here and in a process that inherits it. None: another has it."""
    number, _, place = (inherited or "").partition(":")
    if number.isdecimal() and place == str(path.resolve()):
        return open(int(number), "ab", closefd=False)
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = (path / "lock").open("ab")
    except OSError as error:
        raise disk_error(path / "lock", error) from error
    if sys.platform != "win32":
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return None
    return file


def header_of(path: Path) -> dict[str, Any]:
    """What a file of tensors says beside them, which are not read; nothing of one that is damaged."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            about = json.loads(json.loads(file.read(min(size, LARGEST_HEADER)))["__metadata__"]["about"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def _best_round(path: Path) -> int:
    """The best round that a checkpoint names."""
    selection = header_of(path).get("selection")
    return int(selection["round"]) if isinstance(selection, dict) else 0


def find_runs(folder: Path) -> list[RunDirectory]:
    """Every run directory at or below a folder."""
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.")
    found = []
    for root, folders, files in os.walk(folder):
        if "config.json" in files:
            found.append(RunDirectory(Path(root)))
            folders.clear()
        folders.sort()
    return found
