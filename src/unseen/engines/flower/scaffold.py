"""What `unseen flower init` and `unseen flower keys` write: a ready Flower app, and certificates and keys to try it."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from unseen.core.errors import UserError
from unseen.core.files import atomic
from unseen.engines.flower.config import Deployment, toml_lines

PACKAGE = "unseen_app"  # the folder of the app's two modules
PUBLIC_PORT, LINK_PORT, NODE_PORT = 8443, 8000, 9094


def write_app(
    folder: Path,
    deployment: Deployment,
    *,
    host: str = "localhost",
    port: int = PUBLIC_PORT,
    link_port: int = LINK_PORT,
) -> list[Path]:
    """The app's files in a new or empty folder."""
    folder = folder.expanduser().resolve()
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"The folder {folder} is not empty; give a new one.")
    values = {
        "config": "\n".join(toml_lines(deployment.to_config())),
        "folder": str(folder),
        "host": host,
        "port": str(port),
        "link_port": str(link_port),
        "node_port": str(NODE_PORT),
        "method": deployment.settings.method,
        "sites": ", ".join(deployment.sites),
        "first": deployment.sites[0],
        "register": "\n".join(
            f"flwr supernode register {folder}/keys/{site}.pub coordinator" for site in deployment.sites
        ),
        "out": deployment.out,
        "package": PACKAGE,
        "home": f"{folder}/flower",
    }
    written = []
    for source, target in {
        "pyproject.toml.txt": "pyproject.toml",
        "client_app.py.txt": f"{PACKAGE}/client_app.py",
        "server_app.py.txt": f"{PACKAGE}/server_app.py",
        "init.py.txt": f"{PACKAGE}/__init__.py",
        "nginx.conf.txt": "nginx.conf",
        "config.toml.txt": "flower/config.toml",
        "environment.txt": "environment.sh",
        "README.md.txt": "README.md",
    }.items():
        written.append(folder / target)
        _write(folder / target, _filled(source, values))
    return written


def _filled(name: str, values: Mapping[str, str]) -> str:
    text = (files("unseen.engines.flower") / "templates" / name).read_text()
    return Template(text).substitute(values)


def _write(path: Path, text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(text)


def write_keys(folder: Path, sites: Sequence[str], hosts: Sequence[str] = ("localhost", "127.0.0.1")) -> list[Path]:
    """A certificate authority, a server certificate for `hosts`, and a key pair per site: for trials."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise UserError("Keys are made with the package cryptography: `pip install unseen[flower]`.") from None
    folder = folder.expanduser()
    if (folder / "ca.crt").exists():
        raise UserError(f"{folder} has keys already; delete it to make new ones, or give another folder.")
    now = datetime.datetime.now(datetime.UTC)
    plain = serialization.NoEncryption()
    pem, openssh = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH

    def certificate(
        name: str, key: ec.EllipticCurvePrivateKey, issuer: str, signer: ec.EllipticCurvePrivateKey, authority: bool
    ) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=365))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        )
        if authority:
            usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
            builder = builder.add_extension(usage, critical=True)
        else:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False
            )
        return bytes(builder.sign(signer, hashes.SHA256()).public_bytes(pem))

    def _name(host: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            return x509.DNSName(host)

    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    made: dict[str, tuple[bytes, int]] = {
        "ca.crt": (certificate("unseen test authority", authority, "unseen test authority", authority, True), 0o644),
        "server.crt": (certificate(hosts[0], server, "unseen test authority", authority, False), 0o644),
        "server.key": (server.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain), 0o600),
    }
    # The authority's own key is not kept: nobody can sign another certificate with it.
    for site in sites:
        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        made[site] = (key.private_bytes(pem, openssh, plain), 0o600)
        made[f"{site}.pub"] = (public + b"\n", 0o644)
    folder.mkdir(parents=True, exist_ok=True)
    for name, (content, mode) in made.items():
        # A private key is never readable by others, not even for a moment.
        with open(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    return [folder / name for name in made]
