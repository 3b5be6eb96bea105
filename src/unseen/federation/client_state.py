"""What a client keeps between rounds, on its own disk: BatchNorm of its own, a discriminator, control variates.

Kept by round, because a server that was killed goes on from its last checkpoint: the order for round r then finds what the
client had before round r, not what a lost round left behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from unseen.core.files import read_tensors, write_tensors
from unseen.core.tensors import prefixed, unprefixed
from unseen.core.types import ClientId, Tensors

VERSIONS = 3  # the newest, and two more for a server that had to fall back on an older checkpoint


@dataclass(frozen=True)
class ClientStates:
    """One folder per client, one safetensors file per round in which it trained."""

    root: Path

    def _versions(self, client: ClientId) -> dict[int, Path]:
        folder = self.root / quote(client, safe="")
        return {int(path.stem): path for path in sorted(folder.glob("[0-9]*.safetensors"))}

    def load(self, client: ClientId, round: int) -> tuple[Tensors, Tensors]:
        """(state, memory) as they were before `round`; empty for a client that never trained."""
        versions = {r: path for r, path in self._versions(client).items() if r < round}
        if not versions:
            return {}, {}
        tensors, _ = read_tensors(versions[max(versions)])
        return unprefixed("state/", tensors), unprefixed("memory/", tensors)

    def save(self, client: ClientId, round: int, state: Tensors, memory: Tensors) -> None:
        """Keep this after `round`. Later rounds are of a future that did not happen; old ones are no longer needed."""
        if not state and not memory:
            return
        path = self.root / quote(client, safe="") / f"{round:06d}.safetensors"
        write_tensors(path, prefixed("state/", state) | prefixed("memory/", memory))
        versions = self._versions(client)
        past = sorted(r for r in versions if r <= round)
        for r in [r for r in versions if r > round] + past[:-VERSIONS]:
            versions[r].unlink(missing_ok=True)
