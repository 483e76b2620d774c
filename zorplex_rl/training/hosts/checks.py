"""Check, before a run, that its hosts can be had; show what a scheduler would be asked.

attach                  every address is found, no two are the same, and the certificates fit
slurm, kubernetes       the programs, packages and settings that ``slurm.py`` and ``kubernetes.py`` need
"""

import contextlib
import json
import socket

from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError, HostError
from zorplex_rl.services.tls import check_files
from zorplex_rl.training.hosts.addresses import check_encryption, check_listen, place_of, tls_folder
from zorplex_rl.training.hosts.attached import own_address
from zorplex_rl.training.hosts.kubernetes import check_kubernetes, kubernetes_objects
from zorplex_rl.training.hosts.slurm import check_slurm, slurm_script
from zorplex_rl.training.hosts.spec import HostsSpec, parse_hosts


def check_cluster(config: Config) -> None:
    """Raise ConfigError if ``--hosts`` lacks a scheduler's programs, or a network's machines."""
    spec, settings = parse_hosts(config.cluster.hosts), config.cluster
    match spec.kind:
        case "attach":
            addresses = [*spec.addresses, *filter(None, [settings.listen])]
            check_encryption("--hosts", addresses, settings.tls, settings.insecure)
            _check_network(spec, settings.listen)
            if folder := tls_folder(spec.addresses[0], settings.tls):
                with contextlib.suppress(HostError):
                    check_files(folder, settings.listen or own_address(spec.addresses[0]))
        case "slurm":
            check_slurm(settings)
        case "kubernetes" if not settings.insecure:
            raise ConfigError(
                f"--hosts is {settings.hosts!r}, and Monarch's channel to pods is plain TCP, which others may read and use; "
                "give --insecure if you trust that network"
            )
        case "kubernetes":
            check_kubernetes(settings)


def _check_network(spec: HostsSpec, listen: str | None) -> None:
    """Raise ConfigError for a host without an address of its own, or a ``listen`` that fails."""
    seen: dict[tuple[str, int], str] = {}
    for address in spec.addresses:
        host, port = place_of(address)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4]
        except OSError as error:
            raise ConfigError(
                f"--hosts names {host}, whose address cannot be found ({error.strerror}); correct the name, or give the host's address"
            ) from error
        if other := seen.get(place := (str(found[0]), port)):
            raise ConfigError(f"--hosts names {address}, which is {other}; each host has an address of its own")
        seen[place] = address
    if listen:
        check_listen(listen)


def cluster_request(config: Config) -> str:
    """Return what the scheduler of ``--hosts`` would be sent, if there is one. Sends nothing."""
    spec = parse_hosts(config.cluster.hosts)
    match spec.kind:
        case "slurm":
            return f"submitted {spec.count} times, each with its own names and ids:\n\n{slurm_script(config.cluster)}"
        case "kubernetes":
            return json.dumps(kubernetes_objects(spec.count, config.cluster), indent=2)
    return ""
