"""What a client keeps between rounds, on its own disk: BatchNorm of its own, a discriminator, control variates.

Kept by round, because a server that was killed goes on from its last checkpoint: the order for round r then finds what the
client had before round r, not what a lost round left behind.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from unseen.core.errors import UserError
from unseen.core.files import read_tensors, shortened, write_tensors
from unseen.core.tensors import prefixed, unprefixed
from unseen.core.types import ClientId, Tensors

SESSION = "session.safetensors"
VERSIONS = 3  # the newest, and two more for a server that had to fall back on an older checkpoint


@dataclass(frozen=True)
class ClientStates:
    """One folder per client, one safetensors file per round in which it trained."""

    root: Path

    def _folder(self, client: ClientId) -> Path:
        name = quote(client, safe="")
        if shortened(name) != name:  # two long names may begin alike
            name = f"{shortened(name)}-{hashlib.blake2b(client.encode(), digest_size=8).hexdigest()}"
        return self.root / name

    def _versions(self, client: ClientId) -> dict[int, Path]:
        return {int(path.stem): path for path in sorted(self._folder(client).glob("[0-9]*.safetensors"))}

    def load(self, client: ClientId, round: int) -> tuple[Tensors, Tensors]:
        """(state, memory) as they were before `round`; empty for a client that never trained."""
        versions = {r: path for r, path in self._versions(client).items() if r < round}
        if not versions:
            return {}, {}
        newest = versions[max(versions)]
        tensors, _ = read_tensors(newest)
        if not tensors or not all(name.startswith(("state/", "memory/")) for name in tensors):
            raise UserError(f'{newest} is not what the client "{client}" kept; put it back, or begin the run again.')
        return unprefixed("state/", tensors), unprefixed("memory/", tensors)

    def save(self, client: ClientId, round: int, state: Tensors, memory: Tensors) -> None:
        """Keep this after `round`. Later rounds are of a future that did not happen; old ones are no longer needed."""
        if not state and not memory:
            return
        path = self._folder(client) / f"{round:06d}.safetensors"
        write_tensors(path, prefixed("state/", state) | prefixed("memory/", memory))
        versions = self._versions(client)
        past = sorted(r for r in versions if r <= round)
        for r in [r for r in versions if r > round] + past[:-VERSIONS]:
            versions[r].unlink(missing_ok=True)

    # --- the model that came with a survey: the train order of the round does not bring it again -----------------
    def hold(self, client: ClientId, round: int, received: Tensors) -> None:
        """Put the received model aside until the client has trained."""
        self.release(client)
        write_tensors(self._folder(client) / f"received-{round:06d}.safetensors", received)

    def held(self, client: ClientId, round: int) -> Tensors:
        path = self._folder(client) / f"received-{round:06d}.safetensors"
        if not path.exists():
            raise UserError(
                f'The client "{client}" no longer has the model of round {round} that came with the survey; run the same '
                f"command again to go on after the last finished round."
            )
        return read_tensors(path)[0]

    def release(self, client: ClientId) -> None:
        for path in self._folder(client).glob("received-*.safetensors"):
            path.unlink(missing_ok=True)

    # --- the secrets of a round of secure aggregation: for the user alone, and only until the round is over ------
    def keep_session(self, client: ClientId, round: int, secrets: Tensors) -> None:
        write_tensors(self._folder(client) / SESSION, secrets, {"round": round}, mode=0o600)

    def session(self, client: ClientId, round: int) -> Tensors:
        path = self._folder(client) / SESSION
        secrets, about = read_tensors(path) if path.exists() else ({}, {})
        if about.get("round") != round:
            raise UserError(f'The client "{client}" has no keys for round {round}: it sends no model without a mask.')
        return secrets

    def end_session(self, client: ClientId) -> None:
        (self._folder(client) / SESSION).unlink(missing_ok=True)
