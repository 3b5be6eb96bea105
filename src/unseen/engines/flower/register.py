"""Keys and names of the sites, told to the SuperLink: a name is bound to its key from then on."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from unseen.core.errors import UserError


def register(app: Path, sites: list[str]) -> list[str]:
    """Register APP/keys/SITE.pub under the site's name. The sites that are new; an error if a name has another key."""
    connection = tomllib.loads((app / "flower" / "config.toml").read_text())["superlink"]["coordinator"]
    client: Any = ControlHttpClient.from_server_address(
        str(connection["address"]),
        False,
        Path(str(connection["root-certificates"])).read_bytes(),
        [RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    try:
        listed = client.ListNodes(ListNodesRequest()).nodes_info
        known = {bytes(node.public_key): str(node.name) for node in listed if node.status != "unregistered"}
        new = []
        for site in sites:
            key = _public_key(app / "keys" / f"{site}.pub")
            if known.get(key) == site:
                continue
            if key in known or site in known.values():
                raise UserError(
                    f'The SuperLink has "{site}" with another key, or this key under the name "{known.get(key, "")}"; '
                    f"`flwr supernode list coordinator` shows them, `flwr supernode unregister` removes one."
                )
            client.RegisterNode(RegisterNodeRequest(public_key=key, name=site))
            new.append(site)
        return new
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
