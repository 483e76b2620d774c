"""Encrypt what travels between machines, and know both ends: mutual TLS 1.3 (``certificates.py``).

    use(folder)            what Monarch's channels (``tls://HOST:PORT``) read, for this process and those that it starts
    contexts of Python     ``server_context()``, ``client_context()``: for sockets of our own, with the same files
    check_files(folder)    what the files themselves can tell is wrong, before anything is started
    ask(address)           whether a host there accepts this machine: Monarch would wait in silence

Monarch itself never says that a certificate was refused.
"""

import contextlib
import ipaddress
import os
import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from zorplex_rl.errors import ConfigError, HostError

TLS = "ZORPLEX_TLS"
"""Environment variable with the folder of this machine's files, if ``--tls`` is left out."""
AUTHORITY, CERTIFICATE, KEY = "authority.pem", "certificate.pem", "key.pem"
MONARCH_NAMES = {"HYPERACTOR_TLS_CA": AUTHORITY, "HYPERACTOR_TLS_CERT": CERTIFICATE, "HYPERACTOR_TLS_KEY": KEY}
ANSWER_SECONDS, REFUSAL_SECONDS = 3.0, 0.5
"""Time for a host's answer to a TLS greeting, and then for refusing the certificate."""


def address_towards(host: str, port: int) -> tuple[socket.AddressFamily, str]:
    """Return this machine's address on the network that leads to ``host``, and its family. Raises
    OSError if there is no way. Sends nothing: it only looks up the way."""
    family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as route:
        route.connect(target)
        return family, route.getsockname()[0]


def use(folder: Path) -> None:
    """Use the files in ``folder``, also in new processes. Before Monarch's first import."""
    folder = folder.resolve()
    os.environ |= {TLS: str(folder)} | {name: str(folder / file) for name, file in MONARCH_NAMES.items()}


def server_context() -> ssl.SSLContext | None:
    """Return how to serve others, or None where no files are in use."""
    return _context(ssl.PROTOCOL_TLS_SERVER)


def client_context() -> ssl.SSLContext | None:
    """Return how to connect to others, or None where no files are in use."""
    return _context(ssl.PROTOCOL_TLS_CLIENT)


def _context(protocol: int) -> ssl.SSLContext | None:
    if not (folder := os.environ.get(TLS)):
        return None
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(Path(folder, AUTHORITY))
    context.load_cert_chain(Path(folder, CERTIFICATE), Path(folder, KEY))
    # Encryption in the kernel, where Python (3.12 or later), OpenSSL and the kernel have it.
    context.options |= getattr(ssl, "OP_ENABLE_KTLS", 0)
    return context


def check_files(folder: Path, address: str | None = None) -> None:
    """Raise ConfigError for the first fault in ``folder``, for one that listens at ``address``."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    contents = {}
    for name in (AUTHORITY, CERTIFICATE, KEY):
        try:
            contents[name] = (folder / name).read_bytes()
        except OSError as error:
            raise ConfigError(
                f"--tls is {str(folder)!r}, where {name} cannot be read ({error.strerror}); copy there the folder that "
                "`zorplex-rl certificates` has made for this machine"
            ) from None
    if (mode := (folder / KEY).stat().st_mode) & 0o077:
        raise ConfigError(
            f"{folder / KEY} can be read by others (mode {mode & 0o777:o}); make it yours alone: chmod 600 {folder / KEY}"
        )
    try:
        # An authority's file may hold several, as while one follows another.
        name = AUTHORITY
        authorities = x509.load_pem_x509_certificates(contents[name])
        name = CERTIFICATE
        certificate = x509.load_pem_x509_certificate(contents[name])
        names, of_certificate = _names_of(certificate), certificate.public_key()
        name = KEY
        public = load_pem_private_key(contents[name], None).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{folder / name} is damaged ({error}); copy it again from where it was made") from None
    if public != of_certificate:
        raise ConfigError(
            f"{folder / KEY} does not belong to {folder / CERTIFICATE}; copy both from one folder of `zorplex-rl certificates`"
        )

    def has_issued(authority: x509.Certificate) -> bool:
        with contextlib.suppress(InvalidSignature, ValueError, TypeError):
            certificate.verify_directly_issued_by(authority)
            return True
        return False

    if not (issuers := [*filter(has_issued, authorities)]):
        raise ConfigError(
            f"{folder / CERTIFICATE} is of another authority than {folder / AUTHORITY}; copy all three files from one folder"
        )
    # One that was renewed has the same key: the newest counts.
    authority = max(issuers, key=lambda issuer: issuer.not_valid_after_utc)
    for name, found in ((AUTHORITY, authority), (CERTIFICATE, certificate)):
        if (now := datetime.now(UTC)) > found.not_valid_after_utc:
            raise ConfigError(
                f"{folder / name} has expired ({found.not_valid_after_utc:%Y-%m-%d %H:%M} UTC); make new certificates"
            )
        if now < found.not_valid_before_utc:
            raise ConfigError(
                f"{folder / name} is not valid yet (from {found.not_valid_before_utc:%Y-%m-%d %H:%M} UTC); look at this machine's clock"
            )
    if address and (host := _normal(urlsplit(address).hostname or "")) not in names:
        raise ConfigError(
            f"{folder / CERTIFICATE} is for {', '.join(names) or 'nobody'}, and not for {host}, at which this machine would listen; "
            "make one that names it"
        )


def _normal(host: str) -> str:
    """Return the name or address ``host`` as ``_names_of`` has it.

    >>> _normal("GPU1"), _normal("0:0::1")
    ('gpu1', '::1')
    """
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(host))
    return host.lower()


def _names_of(certificate: "object") -> list[str]:
    from cryptography import x509

    assert isinstance(certificate, x509.Certificate)
    with contextlib.suppress(x509.ExtensionNotFound):
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = (*found.get_values_for_type(x509.DNSName), *found.get_values_for_type(x509.IPAddress))
        return [_normal(str(name)) for name in names]
    return []


def ask(address: str) -> None:
    """Raise HostError if a host at ``address`` and this machine refuse each other."""
    there = urlsplit(address)
    if not (context := client_context()):
        raise HostError(f"no certificate is in use here; set {TLS} before the program starts")
    assert there.hostname
    try:
        connection = socket.create_connection((there.hostname, there.port or 0), timeout=ANSWER_SECONDS)
    except OSError:
        return
    with connection:
        try:
            with context.wrap_socket(connection, server_hostname=there.hostname) as secured:
                # The host looks at our certificate later. If it accepts, it says nothing.
                secured.settimeout(REFUSAL_SECONDS)
                if secured.recv(1) == b"":
                    raise HostError(f"host {there.netloc} hung up on a TLS greeting; start its worker again")
        except ssl.SSLCertVerificationError as error:
            raise HostError(
                f"the certificate of host {there.netloc} is not accepted here ({error.verify_message}); give both machines certificates "
                "of one authority, with the names by which they are reached"
            ) from None
        except TimeoutError as error:
            if "handshake" in str(error):
                raise HostError(
                    f"host {there.netloc} does not speak TLS; start its worker with --tls and --listen {address}"
                ) from None
        except OSError as error:
            if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
                raise HostError(
                    f"host {there.netloc} does not accept the certificate of this machine ({(error.reason or '').lower().replace('_', ' ')}); "
                    "use certificates of the authority that the host has"
                ) from None
            raise HostError(
                f"host {there.netloc} does not speak TLS; start its worker with --tls and --listen {address}"
            ) from None
