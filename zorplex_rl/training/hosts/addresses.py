"""Check addresses of hosts: ``tls://HOST:PORT``, or ``tcp://…`` where allowed. Sends nothing.

check_address       it can be an address at all
check_encryption    it is encrypted, or somebody has allowed that it is not
check_listen        this machine can listen there
"""

import contextlib
import ipaddress
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from zorplex_rl.errors import ConfigError
from zorplex_rl.services.tls import TLS


def check_address(address: str, flag: str) -> None:
    """Raise ConfigError unless ``address`` is ``tls://HOST:PORT`` or ``tcp://…``, and reachable."""
    shown = repr(address[:60])
    if not re.fullmatch(r"(?:tls|tcp)://([^\s/:@*?#\[\]]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}", address):
        raise ConfigError(f"{flag} is given the address {shown}; expected tls://HOST:PORT, or tcp://HOST:PORT")
    if not 0 < int(address.rpartition(":")[2]) < 65536:
        raise ConfigError(f"{flag} is given the address {shown}; a port is between 1 and 65535")
    try:
        host, _ = place_of(address)
    except ValueError:
        what = "IPv6 address" if "[" in address else "name that a machine can have"
        raise ConfigError(f"{flag} is given the address {shown}, whose host is no {what}; correct it") from None
    if host in ("0.0.0.0", "::"):
        raise ConfigError(f"{flag} is given the address {shown}, which means all networks; name one of this machine's")


def place_of(address: str) -> tuple[str, int]:
    """Return host and port of ``address``, in normal form. Raises ValueError for no such host.

    >>> place_of("tcp://LocalHost:04444"), place_of("tcp://[0:0::1]:4444"), place_of("tcp://127.1:4444")
    (('localhost', 4444), ('::1', 4444), ('127.0.0.1', 4444))
    """
    host, _, port = address.partition("://")[2].rpartition(":")
    if host.startswith("["):
        return str(ipaddress.IPv6Address(host[1:-1])), int(port)
    with contextlib.suppress(OSError):
        # Also the short forms that the system takes, as 0 for 0.0.0.0.
        return socket.inet_ntoa(socket.inet_aton(host)), int(port)
    return host.encode("idna").decode().lower(), int(port)


def check_encryption(flag: str, addresses: Sequence[str], tls: str | None, insecure: bool) -> None:
    """Raise ConfigError if ``addresses`` of ``flag`` lack TLS, without permission, or its files."""
    schemes = {address.partition("://")[0] for address in addresses}
    if len(schemes) > 1:
        raise ConfigError(f"{flag} and --listen have tls:// and tcp://; all machines of a run use one of them")
    if schemes == {"tls"}:
        if insecure:
            raise ConfigError(f"--insecure allows tcp://, and {flag} says {addresses[0]}; leave one of them out")
        if not tls_folder(addresses[0], tls):
            raise ConfigError(
                f"{flag} says {addresses[0]}, but not where this machine's certificate is; give --tls FOLDER, which `zorplex-rl certificates` makes"
            )
        return
    if tls:
        raise ConfigError(f"--tls is {tls!r}, but {flag} says {addresses[0]}; write tls://, or leave --tls out")
    for address in addresses:
        host, _ = place_of(address)
        if not (insecure or host in ("localhost", "::1") or host.startswith("127.")):
            raise ConfigError(
                f'{flag} says {address}, where nothing is encrypted and everybody may run programs as you; use tls:// (README, "Several '
                'machines"), or give --insecure if you trust that network'
            )


def tls_folder(address: str, given: str | None) -> Path | None:
    """Return the folder of TLS files if ``address`` needs it: ``given``, or the environment's."""
    folder = given or os.environ.get(TLS)
    return Path(folder) if address.startswith("tls://") and folder else None


def check_listen(address: str) -> None:
    """Raise ConfigError if nothing can listen at ``address``: not this machine's, or taken."""
    host, port = place_of(address)
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(place)
    except OSError as error:
        raise ConfigError(
            f"--listen is {address!r}, where this machine cannot listen ({error.strerror}); give an address of this machine with a free port"
        ) from error
