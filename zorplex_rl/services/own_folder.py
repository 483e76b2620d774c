"""Folders for temporary files; what ``kill -9`` leaves is swept by the next process that makes one.

A process locks each folder of its own. The lock ends with the process, however that ends.
"""

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from zorplex_rl.errors import ConfigError

PREFIX = "zorplex-tmp-"
GRACE_SECONDS = 60.0
"""A folder this young may have been made, and not yet been locked."""
MOST_BYTES = 103
"""Of the path of a socket: 107 on Linux, 103 on macOS."""
_locks: list[int] = []


def temporary_folder() -> Path:
    """Return the folder for temporary files, which Monarch uses too: it tries no other one."""
    return Path(os.environ.get("TMPDIR") or "/tmp")


def own_folder(kind: str = "", socket: str = "host") -> Path:
    """Return a new folder for this user only. It is removed when this process ends, or later.
    ``socket`` is the longest path of a socket in it. Raises ConfigError if none can be made."""
    above = temporary_folder()
    longest = len(os.fsencode(above.absolute())) + len(f"/{PREFIX}{kind}12345678/{socket}")
    if longest > MOST_BYTES:
        raise _unusable(above, f"has a path that is {longest - MOST_BYTES} bytes too long for the sockets in it")
    sweep()
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}", dir=above))
    except OSError as error:
        raise _unusable(above, f"cannot be written ({error.strerror})") from error
    _locks.append(lock := os.open(folder, os.O_RDONLY))
    fcntl.flock(lock, fcntl.LOCK_EX)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextlib.contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Have the processes that are started meanwhile make their temporary files in ``folder``."""
    usual = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        if usual is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = usual


def sweep() -> None:
    """Remove the folders of this user's processes that have ended."""
    for folder in temporary_folder().glob(f"{PREFIX}*"):
        # Another process may remove it at the same time.
        with contextlib.suppress(OSError):
            state = folder.lstat()
            if state.st_uid == os.getuid() and time.time() - state.st_mtime > GRACE_SECONDS and _is_free(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _unusable(folder: Path, why: str) -> ConfigError:
    return ConfigError(
        f"the folder for temporary files, {str(folder)!r}, {why}; set the environment variable TMPDIR to another one"
    )


def _is_free(folder: Path) -> bool:
    """Return whether nobody holds the lock on ``folder``. Raises OSError if it is no folder."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
