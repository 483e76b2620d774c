"""Remember which task code the user has run by name: a folder from elsewhere runs no other.

    train --task FILE             remember the digest of the file's text and its data
    train --resume RUN            known: the copy in the folder runs       unknown: refused, unless --trust-task is given

The list is outside of every run's folder: ``zorplex-rl/tasks`` where the user's programs keep what
they remember (``XDG_STATE_HOME``, else ``~/.local/state``).
"""

import contextlib
import os
from pathlib import Path

from zorplex_rl.task.source import EnvironmentSource


def remember(source: EnvironmentSource) -> None:
    """Note that the user has named ``source``'s code, where anything can be written."""
    if source.code is None or is_known(source):
        return
    with contextlib.suppress(OSError, RuntimeError):
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as opened:
            opened.write(f"{source.digest}\n")


def is_known(source: EnvironmentSource) -> bool:
    """Whether ``source`` brings no code (Zorplex, installed packages) or code named before."""
    if source.code is None:
        return True
    try:
        return source.digest in _file().read_text().split()
    except (OSError, RuntimeError, ValueError):
        return False


def _file() -> Path:
    """Return where it is kept. Raises RuntimeError if the user has no home."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "zorplex-rl" / "tasks"
