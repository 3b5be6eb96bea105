"""What the coordinator tells its own SuperLink: which key belongs to which site, and that a run begins."""

from __future__ import annotations

import contextlib
import hashlib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import Status
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import ListNodesRequest, ListRunsRequest, RegisterNodeRequest, StartRunRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from unseen.core.errors import UserError


def register(app: Path, sites: list[str]) -> list[str]:
    """Register APP/keys/SITE.pub under the site's name. The sites that are new; an error if a name has another key."""
    keys = {site: _public_key(app / "keys" / f"{site}.pub") for site in sites}
    with _superlink(app) as link:
        listed = link.ListNodes(ListNodesRequest()).nodes_info
        known = {bytes(node.public_key): str(node.name) for node in listed if node.status != "unregistered"}
        new = []
        for site, key in keys.items():
            if known.get(key) == site:
                continue
            if key in known or site in known.values():
                raise UserError(
                    f'The SuperLink has "{site}" with another key, or this key under the name "{known.get(key, "")}"; '
                    f"`flwr supernode list coordinator` shows them, `flwr supernode unregister` removes one."
                )
            link.RegisterNode(RegisterNodeRequest(public_key=key, name=site))
            new.append(site)
        return new


def start_run(app: Path) -> int:
    """What `flwr run APP coordinator` does, without the start of a process. The run's id."""
    bundle = build_fab_from_disk(app)
    fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
    with _superlink(app) as link:
        return int(link.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id)


def how_it_ended(app: Path, run: int) -> str:
    """Flower's word for the end of a run: completed, failed or stopped; empty while it goes on."""
    with _superlink(app) as link:
        status = link.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
    return str(status.sub_status) if status.status == Status.FINISHED else ""


@contextlib.contextmanager
def _superlink(app: Path) -> Iterator[Any]:
    """The control API of the app's SuperLink; its errors as sentences."""
    connection = tomllib.loads((app / "flower" / "config.toml").read_text())["superlink"]["coordinator"]
    client = ControlHttpClient.from_server_address(
        str(connection["address"]),
        False,
        Path(str(connection["root-certificates"])).read_bytes(),
        [RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    try:
        yield client
    except httpx.HTTPError as error:
        raise UserError(
            f"The SuperLink at {connection['address']} could not be asked ({type(error).__name__}: {error})."
        ) from None
    finally:
        client.close()


def _public_key(path: Path) -> bytes:
    key: Any = None
    try:
        key = load_ssh_public_key(path.read_bytes())
    except OSError:
        raise UserError(f"There is no {path}: the site sends it (`unseen flower key` prints it).") from None
    except ValueError:
        pass
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UserError(f"{path} is not an ECDSA public key in OpenSSH's format.")
    return bytes(public_key_to_bytes(key))
