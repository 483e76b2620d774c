"""Make the files with which the machines of a run know each other: ``zorplex-rl certificates``.

    FOLDER/authority/     authority.pem  authority-key.pem           stays where it was made, on no host
    FOLDER/controller/    authority.pem  certificate.pem  key.pem    for ``train --tls FOLDER/controller``
    FOLDER/HOST/          authority.pem  certificate.pem  key.pem    goes to that host, for ``worker --tls``

Whoever has a certificate of the authority may use every host, and be used. All others are refused.
"""

import ipaddress
import os
import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from zorplex_rl.errors import ConfigError
from zorplex_rl.services.tls import AUTHORITY, CERTIFICATE, KEY, address_towards

CONTROLLER, AUTHORITY_FOLDER, AUTHORITY_KEY = "controller", "authority", "authority-key.pem"
CLOCKS_DIFFER = timedelta(hours=1)
"""A certificate is valid from so long ago on, for machines whose clock is behind."""
NAME = re.compile(
    r"(?!.{254})(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*(?![0-9]+$)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
)
"""A name that a machine can have. Its last part is no number: what ends in one is an address, perhaps a wrong one."""
Signer = tuple[x509.Certificate, Any]
"""A certificate, and its key."""


def make_certificates(folder: Path, hosts: Sequence[str], controller: str | None, days: float) -> list[Path]:
    """Make the certificates of ``hosts``, and, if missing, the authority's and the controller's.

    Each host is its names and addresses, separated by commas; so is ``controller`` (None: this
    machine's own). Returns the new folders. Raises ConfigError for no name, or an existing folder.
    """
    wanted = {names[0]: names for names in map(_names, hosts)}
    if len(wanted) < len(hosts) or wanted.keys() & {CONTROLLER, AUTHORITY_FOLDER}:
        raise ConfigError(
            f"the hosts are {', '.join(hosts)}; give each a name of its own, other than controller and authority"
        )
    if controller or not (folder / CONTROLLER).exists():
        wanted[CONTROLLER] = _names(controller) if controller else own_names(hosts)
    for name in wanted:
        if (folder / name).exists():
            raise ConfigError(
                f"{str(folder / name)!r} exists already, and is not overwritten; remove it, or leave {name} out"
            )
    try:
        authority = _authority(folder / AUTHORITY_FOLDER, days)
        for name, known_as in wanted.items():
            _issue(folder / name, known_as, authority, days)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"--to is {str(folder)!r}, which cannot be used ({error}); choose another folder") from error
    return [folder / name for name in wanted]


def own_names(hosts: Sequence[str] = ()) -> list[str]:
    """Return the names and addresses of this machine: those that lead to ``hosts``, too."""
    found = dict.fromkeys((socket.gethostname().lower(), "localhost", "127.0.0.1", "::1"))
    for host in hosts:
        for name in host.split(","):
            with suppress(OSError):
                found[address_towards(name, 9)[1]] = None
    return list(found)


def _names(text: str) -> list[str]:
    names = [name.lower() for name in text.split(",")]
    for name in names:
        if not (NAME.fullmatch(name) or _address(name)):
            raise ConfigError(
                f"a host is called {name[:60]!r}; expected names and addresses, separated by commas, as in gpu1,10.0.0.2"
            )
    return names


def _address(name: str) -> Any:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _authority(folder: Path, days: float) -> Signer:
    """Return the authority in ``folder``, which is made if there is none."""
    if not folder.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"zorplex-rl {os.urandom(4).hex()}")])
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        made = (
            _dated(x509.CertificateBuilder(), days)
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        _write(folder, {AUTHORITY: _pem(made), AUTHORITY_KEY: _pem_of_key(key)})
        return made, key
    certificate = x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes())
    kept: Any = serialization.load_pem_private_key((folder / AUTHORITY_KEY).read_bytes(), None)
    if kept.public_key() != certificate.public_key():
        raise ValueError(f"{AUTHORITY_KEY} does not belong to its {AUTHORITY}")
    if datetime.now(UTC) > (end := certificate.not_valid_after_utc):
        raise ValueError(f"its authority has expired ({end:%Y-%m-%d %H:%M} UTC)")
    return certificate, kept


def _issue(folder: Path, names: Sequence[str], authority: Signer, days: float) -> None:
    """Write ``folder``, with a certificate for a machine that is known by ``names``."""
    (signer, signing_key), key = authority, ec.generate_private_key(ec.SECP256R1())
    alternatives = [x509.IPAddress(found) if (found := _address(name)) else x509.DNSName(name) for name in names]
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    made = (
        _dated(x509.CertificateBuilder(), days)
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])]))
        .issuer_name(signer.subject)
        .public_key(key.public_key())
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(both, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
        .sign(signing_key, hashes.SHA256())
    )
    _write(folder, {AUTHORITY: _pem(signer), CERTIFICATE: _pem(made), KEY: _pem_of_key(key)})


def _dated(builder: x509.CertificateBuilder, days: float) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    begins = now - CLOCKS_DIFFER
    return (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(max(now + timedelta(days=days), begins + timedelta(seconds=1)))
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_of_key(key: Any) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(folder: Path, files: dict[str, bytes]) -> None:
    """Write files that only this user can read. Raises OSError if there is one already."""
    folder.mkdir(parents=True, mode=0o700)
    for name, content in files.items():
        with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
