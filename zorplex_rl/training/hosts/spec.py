"""Read ``--hosts``: a kind of hosts, their number, and their addresses if they have any.

"processes:2"                      ──parse_hosts──► HostsSpec("processes", 2)
"attach:tls://a:4444,tls://b:4444" ──parse_hosts──► HostsSpec("attach", 2, ("tls://a:4444", "tls://b:4444"))
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError
from zorplex_rl.training.hosts.addresses import check_address, place_of


@dataclass(frozen=True, slots=True)
class HostsSpec:
    """What ``--hosts`` asks for: a kind, a number of hosts, and their addresses, if any."""

    kind: str
    count: int = 0
    addresses: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Return one name for each host."""
        if self.addresses:
            return [address.partition("://")[2] for address in self.addresses]
        return [f"{self.kind} {number}" for number in range(self.count)]


def parse_hosts(text: str) -> HostsSpec:
    """Return what ``text``, the value of ``--hosts``, asks for. Raises ConfigError.

    >>> parse_hosts("attach:tls://10.0.0.2:4444,tls://10.0.0.3:4444").names
    ['10.0.0.2:4444', '10.0.0.3:4444']
    """
    kind, _, rest = text.partition(":")
    if kind not in PARSERS:
        raise ConfigError(f"--hosts is {text[:60]!r}; expected one of {', '.join(FORMS)}")
    return PARSERS[kind](rest)


def check_hosts(config: Config) -> None:
    """Raise ConfigError for the first setting of ``config.cluster`` that cannot work."""
    spec, settings = parse_hosts(config.cluster.hosts), config.cluster
    if settings.listen is not None:
        check_address(settings.listen, "--listen")
        if spec.kind != "attach":
            raise ConfigError("--listen is for --hosts attach:…; leave it out")
    if settings.trainer_host >= max(1, spec.count):
        raise ConfigError(
            f"--trainer-host is {settings.trainer_host}, but --hosts names {spec.count}; they are numbered from 0"
        )


def _parse_this(rest: str) -> HostsSpec:
    if rest:
        raise ConfigError(f"--hosts is 'this:{rest[:60]}'; expected this, alone")
    return HostsSpec("this")


def _parse_attach(rest: str) -> HostsSpec:
    addresses = tuple(rest.split(","))
    for address in addresses:
        check_address(address, "--hosts")
    seen: set[tuple[str, int]] = set()
    for address in addresses:
        if (place := place_of(address)) in seen:
            raise ConfigError(f"--hosts names {address} twice; each host has an address of its own")
        seen.add(place)
    return HostsSpec("attach", len(addresses), addresses)


def _parse_number(kind: str, rest: str) -> HostsSpec:
    if not (rest.isdecimal() and 1 <= len(rest) <= 3 and int(rest) > 0):
        raise ConfigError(f"--hosts is '{kind}:{rest[:60]}'; expected a number of 1 to 999, as in {kind}:2")
    return HostsSpec(kind, int(rest))


PARSERS: dict[str, Callable[[str], HostsSpec]] = {
    "this": _parse_this,
    "attach": _parse_attach,
    **{kind: partial(_parse_number, kind) for kind in ("processes", "slurm", "kubernetes")},
}


FORMS = ("this", "processes:N", "attach:tls://HOST:PORT,…", "slurm:N", "kubernetes:N")
