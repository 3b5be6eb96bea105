"""What `unseen flower init`, `keys` and `key` write: a ready Flower app, a package per site, certificates and keys."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

import unseen
from unseen.core.errors import UserError
from unseen.core.files import atomic
from unseen.engines.flower.config import Deployment, toml_lines
from unseen.engines.flower.site_file import NAME as SITE_FILE
from unseen.methods import OWN_FILES, listed_files

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

PACKAGE = "unseen_app"  # the folder of the app's two modules
PUBLIC_PORT, LINK_PORT = 8443, 8000
SITE_KEY, SITE_CERTIFICATE = "site.key", "site.pem"  # in a site's package
# Requests of one address at a time and per second. A site has at most four under way and asks ten times a second; on a
# loopback trial, or behind one router, all sites come from one address.
AT_A_TIME, PER_SECOND, FEWEST = 6, 40, 6
PLAIN = "/._-+@~,="  # besides letters and digits, what a path may have in nginx.conf and a shell's script

APP = {
    "pyproject.toml.txt": "pyproject.toml",
    "client_app.py.txt": f"{PACKAGE}/client_app.py",
    "server_app.py.txt": f"{PACKAGE}/server_app.py",
    "init.py.txt": f"{PACKAGE}/__init__.py",
    "nginx.conf.txt": "nginx.conf",
    "config.toml.txt": "flower/config.toml",
    "environment.txt": "environment.sh",
    "superlink.sh.txt": "superlink.sh",
    "proxy.sh.txt": "proxy.sh",
    "unseen-superlink.service.txt": "services/unseen-superlink.service",
    "unseen-proxy.service.txt": "services/unseen-proxy.service",
    "compose.yaml.txt": "compose.yaml",
    "Dockerfile.txt": "Dockerfile",
    "README.md.txt": "README.md",
}
SITE = {
    "site.toml.txt": SITE_FILE,
    "site_README.md.txt": "README.md",
    "unseen-site.service.txt": "unseen-site.service",
    "site_compose.yaml.txt": "compose.yaml",
    "Dockerfile.txt": "Dockerfile",
}


def write_app(
    folder: Path,
    deployment: Deployment,
    *,
    host: str = "localhost",
    port: int = PUBLIC_PORT,
    link_port: int = LINK_PORT,
    bind: str = "",
    allow: Sequence[str] = (),
    client_certificates: bool = False,
    images: Mapping[str, Path] | None = None,
) -> list[Path]:
    """The app's files in a new or empty folder, and a package for each site.

    `bind` is the address that the proxy listens on (all of them without), `allow` the networks that may come in, and
    `images` the sites' folders where this machine knows them.
    """
    folder = folder.expanduser().resolve()
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"The folder {folder} is not empty; give a new one.")
    if not all(letter.isalnum() or letter in PLAIN for letter in str(folder)):
        raise UserError(
            f"The path {folder} has a space or a sign that nginx and shells read as their own; give another folder."
        )
    check_host(host)
    for option, number in {"--port": port, "--link-port": link_port}.items():
        if not 0 < number < 65536:
            raise UserError(f"{option} is a number from 1 to 65535, not {number}.")
    together = max(FEWEST, len(deployment.sites))
    own_files = os.pathsep.join(map(str, listed_files()))
    values = {
        "config": "\n".join(toml_lines(deployment.to_config())),
        "folder": str(folder),
        "bin": str(Path(sys.executable).parent),
        "host": host,
        "port": str(port),
        "link_port": str(link_port),
        "listen": f"{bind}:{port}" if bind else str(port),
        "access": _access(folder, allow, client_certificates),
        "connections": str(AT_A_TIME * together),
        "rate": str(PER_SECOND * together),
        "burst": str(2 * PER_SECOND * together),
        "method": deployment.settings.method,
        "sites": ", ".join(deployment.sites),
        "first": deployment.sites[0],
        "out": deployment.out,
        "package": PACKAGE,
        "home": f"{folder}/flower",
        "own_files": f'export {OWN_FILES}="{own_files}"  # methods of your own' if own_files else "",
        "version": unseen.__version__,
    }
    written = [_write(folder / target, _filled(source, values)) for source, target in APP.items()]
    for site in deployment.sites:
        place = folder / "sites" / site
        own = {
            **values,
            "site": site,
            "images": str((images or {}).get(site, "/data/images")),
            "images_mount": "/data/images",
            "certificate": (
                f'certificate = "{SITE_CERTIFICATE}"      # certificate and key: the coordinator asks for it'
                if client_certificates
                else ""
            ),
        }
        written += [_write(place / target, _filled(source, own)) for source, target in SITE.items()]
    return written


def check_host(host: str) -> None:
    """An error unless it is a name or an address: it goes into files that other programs read."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]+\]|[0-9A-Fa-f:.]+", host):
        raise UserError(f'--host is a name or an address, as fl.example.org, not "{host}".')


def _access(folder: Path, allow: Sequence[str], client_certificates: bool) -> str:
    """Lines of the proxy's server: who may send a request at all. Others are refused before their body is read."""
    lines = []
    for network in allow:
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError:
            raise UserError(
                f'"{network}" is not a network: write --allow-network 192.0.2.0/24, or an address.'
            ) from None
        lines.append(f"allow {network};")
    lines += ["deny all;"] if allow else []
    if client_certificates:
        lines += [f"ssl_client_certificate {folder}/keys/ca.crt;", "ssl_verify_client on;"]
    return "".join(f"        {line}\n" for line in lines)


def _filled(name: str, values: Mapping[str, str]) -> str:
    text = (files("unseen.engines.flower") / "templates" / name).read_text()
    return Template(text).substitute(values)


def _write(path: Path, text: str) -> Path:
    with atomic(path) as temporary:
        temporary.write_text(text)
    return path


# --- keys ------------------------------------------------------------------------------------------------------------
def write_keys(app: Path, sites: Sequence[str], hosts: Sequence[str] = ("localhost", "127.0.0.1")) -> list[Path]:
    """For trials: an authority, a certificate for `hosts` in APP/keys, and each site's key in its package."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise UserError("Keys are made with the package cryptography: `pip install unseen[flower]`.") from None
    app = app.expanduser()
    folder = app / "keys"
    for host in hosts:
        check_host(host)
    if (folder / "ca.crt").exists():
        raise UserError(f"{folder} has keys already; delete it to make new ones, or give another folder.")
    now = datetime.datetime.now(datetime.UTC)
    pem = serialization.Encoding.PEM
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())

    def certificate(name: str, key: ec.EllipticCurvePrivateKey, kind: str) -> bytes:
        names = {True: "unseen test authority", False: name}
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[kind == "authority"])]))
            .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[True])]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=365))
            .add_extension(x509.BasicConstraints(ca=kind == "authority", path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        )
        if kind == "authority":
            usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
            builder = builder.add_extension(usage, critical=True)
        elif kind == "server":
            names_of_it = x509.SubjectAlternativeName([_name(host) for host in hosts])
            builder = builder.add_extension(names_of_it, critical=False)
        else:
            usage_of_it = x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH])
            builder = builder.add_extension(usage_of_it, critical=False)
        return bytes(builder.sign(authority, hashes.SHA256()).public_bytes(pem))

    def _name(host: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            return x509.DNSName(host)

    def secret(key: ec.EllipticCurvePrivateKey) -> bytes:
        return bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))

    root = certificate("", authority, "authority")
    made: dict[Path, tuple[bytes, int]] = {
        folder / "ca.crt": (root, 0o644),
        folder / "server.crt": (certificate(hosts[0], server, "server"), 0o644),
        folder / "server.key": (secret(server), 0o600),
    }
    # The authority's own key is not kept: nobody can sign another certificate with it.
    for site in sites:
        place = app / "sites" / site
        private, public = _pair()
        client = ec.generate_private_key(ec.SECP384R1())
        made[folder / f"{site}.pub"] = (public, 0o644)
        made[place / SITE_KEY] = (private, 0o600)
        made[place / SITE_CERTIFICATE] = (certificate(site, client, "site") + secret(client), 0o600)
        made[place / "ca.crt"] = (root, 0o644)
    for path, (content, mode) in made.items():
        _write_new(path, content, mode)
    return list(made)


def write_site_key(place: Path) -> str:
    """The key of one site, made where it is used. Its public half, as a line to send to the coordinator."""
    if not (place / SITE_FILE).exists():
        raise UserError(f"{place} is not a site's package: it has no {SITE_FILE}.")
    try:
        private, public = _pair()
    except ImportError:
        raise UserError("Keys are made with the package cryptography: `pip install unseen[flower]`.") from None
    if (place / SITE_KEY).exists():
        raise UserError(f"{place / SITE_KEY} exists already; delete it to make another one.")
    _write_new(place / SITE_KEY, private, 0o600)
    _write_new(place / "site.pub", public, 0o644)
    return public.decode().strip()


def _pair() -> tuple[bytes, bytes]:
    """A site's key: the private half and the public one, as OpenSSH writes them."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private, public + b"\n"


def _write_new(path: Path, content: bytes, mode: int) -> None:
    """A private key is never readable by others, not even for a moment, and nothing is overwritten."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
