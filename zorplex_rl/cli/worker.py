"""Let runs on other machines start their processes here: ``zorplex-rl worker``."""

import os
import sys
from dataclasses import dataclass

from zorplex_rl.cli.failures import FAILED
from zorplex_rl.cli.flags import Command
from zorplex_rl.errors import HostError


@dataclass(frozen=True)
class Worker(Command):
    """Let runs on another machine start their processes here, one run after the other: `train
    --hosts attach:tls://HOST:PORT,…`. Ctrl-C ends it. What a run has started here ends with it, and
    within half a minute if its controller dies or can no longer be reached. Who has a certificate
    of this machine's authority (--tls) can run programs here as you."""

    listen: str
    """tls://HOST:PORT: an address of this machine that the controller reaches; nothing else."""
    tls: str | None = None
    """The folder of this machine's files, from `zorplex-rl certificates`. None is ZORPLEX_TLS's."""
    insecure: bool = False
    """Allow --listen tcp://HOST:PORT: nothing is encrypted then, and whoever reaches that port can
    run programs here as you. With the environment variable ZORPLEX_SECRET on both sides, only who
    knows it. For trusted networks only; at 127.0.0.1 it needs no permission."""


def work(command: Worker) -> int:
    from zorplex_rl.services.tls import TLS, check_files

    if command.tls:
        os.environ[TLS] = command.tls
    from zorplex_rl.training.hosts.addresses import check_address, check_encryption, check_listen, tls_folder

    check_address(command.listen, "--listen")
    check_encryption("--listen", [command.listen], command.tls, command.insecure)
    check_listen(command.listen)
    if folder := tls_folder(command.listen, command.tls):
        check_files(folder, command.listen)
    from zorplex_rl.services.worker import serve

    try:
        serve(command.listen)
    except HostError as error:
        print(f"zorplex-rl: {error}", file=sys.stderr)
        return FAILED
    return 0
