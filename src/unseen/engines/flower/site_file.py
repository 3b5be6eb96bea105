"""`site.toml`: all that a site's node is told, by the site itself. Paths in it are relative to the file; no Flower here.

    superlink            host and port of the coordinator
    key                  this site's private key
    root-certificates    the authority that signed the coordinator's certificate
    certificate          this site's own certificate with its key, where the coordinator asks for one

and the keys of the node config, which `site` reads (site, folder, keep, device, ...).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unseen.core.errors import UserError, nearest
from unseen.core.files import read_toml

NAME = "site.toml"
LINK = ("superlink", "key", "root-certificates", "certificate")
PATHS = ("folder", "keep", "weights")  # of the node config
NODE = ("site", *PATHS, "device", "threads", "allow", "secure", "epsilon", "delta", "clip", "fields")


@dataclass(frozen=True)
class SiteFile:
    """How a site reaches its coordinator, and what it says of itself."""

    superlink: str
    key: Path
    root_certificates: Path | None
    certificate: Path | None
    node: Mapping[str, Any]  # the node config

    @classmethod
    def read(cls, place: Path) -> SiteFile:
        """A site's folder, or its file."""
        path = place.expanduser()
        path = (path / NAME if path.is_dir() else path).resolve()
        if not path.exists():
            raise UserError(f"There is no file {path}; `unseen flower init` writes one for every site.")
        given = read_toml(path)
        for name in given:
            if name not in LINK + NODE:
                raise UserError(f'{path} has an unknown key "{name}".{nearest(name, LINK + NODE)}')
        for name in ("superlink", "key", "site", "folder"):
            if not given.get(name):
                raise UserError(f'{path} has no "{name}".')
            if not isinstance(given[name], str):
                raise UserError(f'"{name}" in {path} is text in quotes, not {given[name]}.')

        def found(name: str) -> Path | None:
            word = str(given.get(name) or "")
            return path.parent / Path(word).expanduser() if word else None

        key = found("key")
        assert key is not None
        node = {name: given[name] for name in NODE if name in given}
        node |= {name: str(found(name)) for name in PATHS if given.get(name)}
        return cls(str(given["superlink"]), key, found("root-certificates"), found("certificate"), node)

    def with_folder(self, folder: Path) -> SiteFile:
        """The same site with its images elsewhere."""
        return replace(self, node={**self.node, "folder": str(folder.expanduser().resolve())})
