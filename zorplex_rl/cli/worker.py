"""Let a run on another machine start its processes here: ``zorplex-rl worker``."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Worker:
    """Let a run on another machine start its processes here, one run after the other: `train
    --hosts attach:tls://HOST:PORT,…`. Ctrl-C ends the worker. The processes of a run end with the run,
    or with its lease if its controller dies or cannot be reached (docs/HOSTS.md)."""

    listen: str
    """tls://HOST:PORT: an address of this machine that the controller can reach."""
    insecure: bool = False
    """Allow tcp://HOST:PORT: not encrypted, and anyone who reaches it can run programs here as you."""

    def run(self) -> int:
        from zorplex_rl.hosts.hosts import check_encryption
        from zorplex_rl.hosts.worker import serve

        check_encryption([self.listen], self.insecure)
        serve(self.listen)
        return 0
