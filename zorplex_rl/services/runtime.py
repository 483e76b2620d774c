"""Start Monarch in this process, once. Import ``Actor``, endpoints and Monarch's names from here.

monarch_settings.py   what Monarch reads when it is first imported
endpoints.py          endpoints that count what their process serves
runtime.py            this process's client, and its private host, on which it starts processes
listening.py          other machines as hosts
"""

import atexit
import contextlib
import functools
import logging
import os
import warnings
from collections.abc import Iterator

from zorplex_rl.services.endpoints import Refused, concurrent_endpoint, endpoint, is_made, uncounted_endpoint  # noqa: F401, others import them from here
from zorplex_rl.services.monarch_settings import (  # noqa: F401, others import them from here
    Actor,
    ActorError,
    BindSpec,
    ChannelTransport,
    ReplicaDied,
    configure,
    monarch,
)
from zorplex_rl.services.own_folder import own_folder
from zorplex_rl.services.tasks import fail_if_cancelled_inside, run_together  # noqa: F401, as above

context, current_rank = monarch.actor.context, monarch.actor.current_rank
get_or_spawn_controller, this_host = monarch.actor.get_or_spawn_controller, monarch.actor.this_host
SECRET = "ZORPLEX_SECRET"
"""Environment variable with the secret that the hosts of a run share with its controller."""


@functools.cache
def start_runtime() -> None:
    """Configure Monarch and start this process's client. Does nothing on later calls."""
    configure(streams=2 if _transport() == BindSpec(ChannelTransport.Unix) else 1)
    # The default hook ends this process when any actor dies. Here its caller gets an exception.
    monarch.actor.unhandled_fault_hook = lambda failure: _note_fault(failure.report())
    with quiet_stderr(), _private_host():
        context()
    # Registered after Monarch's own handler, so it runs before it.
    atexit.register(_shut_down)


def _note_fault(report: str) -> None:
    """Log what Monarch reports of a fault. It reports one for every actor of a dead process, so not
    under this package's name. A message that no host takes is no news: its sender waits for the
    host, and says so."""
    is_news = "undeliverable message to host_agent." not in report
    logging.getLogger("monarch.supervision").log(logging.WARNING if is_news else logging.DEBUG, "%s", report)


def _transport() -> BindSpec:
    return monarch.config.get_global_config()["default_transport"]


def _shut_down() -> None:
    """End Monarch's client at exit. One second, as Monarch has it, a busy machine does not keep."""
    with contextlib.suppress(TimeoutError):
        monarch.actor.shutdown_context(host_timeout=0.3).get(timeout=10.0)


@contextlib.contextmanager
def _private_host() -> Iterator[None]:
    """Have this process's host, where Monarch starts processes, reachable for this user only.

    By default it listens in Linux's abstract namespace, to which any user of the machine can
    connect; Monarch authenticates nobody, and runs what it is sent. A transport that has been
    chosen already, for several hosts, stays. README, "On a shared machine", says what is left.
    """
    usual = ChannelTransport.Unix
    if _transport() != BindSpec(usual):
        yield
        return
    folder = own_folder()
    monarch.configure(default_transport=f"ipc://{folder}/host")
    try:
        yield
    finally:
        # One address serves one socket; RDMABuffer opens more.
        monarch.configure(default_transport=usual)


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Hide the start messages of native code, which writes to file descriptor 2 directly."""
    warnings.filterwarnings("ignore", message=".*TCP.*fallback.*")
    saved = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
