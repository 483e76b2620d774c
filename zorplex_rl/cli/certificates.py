"""Make what the machines of a run know each other by: ``zorplex-rl certificates``."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from zorplex_rl.cli.flags import Command
from zorplex_rl.config import check_range
from zorplex_rl.errors import ConfigError


@dataclass(frozen=True)
class Certificates(Command):
    """Make an authority, and certificates for the controller and for each host, so that hosts and
    controller know each other and all between them is encrypted (TLS 1.3). Copy FOLDER/HOST to that
    host, and nothing else. Run again, it adds hosts; nothing is overwritten."""

    hosts: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Each host's names and addresses, with commas: gpu1,10.0.0.2. The first names its folder."""
    to: Path
    """The folder to write. FOLDER/authority stays here: its key can make certificates."""
    controller: str | None = None
    """Names and addresses of the machine that trains. None is its own, as the hosts see them."""
    days: float = 365.0
    """For how long the certificates are valid."""


def certify(command: Certificates) -> int:
    from zorplex_rl.services.certificates import AUTHORITY_FOLDER, CONTROLLER, make_certificates

    if not command.hosts:
        raise ConfigError("no host is named; expected one or more: zorplex-rl certificates --to FOLDER gpu1,10.0.0.2")
    check_range("days", command.days, 0.01, 36500)
    for folder in make_certificates(command.to, command.hosts, command.controller, command.days):
        if folder.name == CONTROLLER:
            print(f"{folder}    for the machine that trains: train --tls {shlex.quote(str(folder))}")
        else:
            print(f"{folder}    copy it to {folder.name}, and there: worker --tls FOLDER")
    print(
        f"{command.to / AUTHORITY_FOLDER}    keep it to yourself: its key makes certificates; no machine of a run needs it"
    )
    return 0
