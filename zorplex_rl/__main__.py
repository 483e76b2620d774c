"""The program ``zorplex-rl``, also ``python -m zorplex_rl``. Stopped, it says so; exit code 130.

``train`` takes the signals itself once it has something to save (``cli/train.py``).
"""

import atexit
import contextlib
import os
import secrets
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

from zorplex_rl.services import orphans

BAD_INPUT, INTERRUPTED = 2, 130
IMPORTS = "<frozen importlib._bootstrap>"
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN_SECONDS = 0.1
MARK = "ZORPLEX_PROGRAM"
"""In the environment of every process that this program starts: which program it was."""
_is_waiting = False


def main() -> int:
    """Run the command line. Returns the exit code."""
    _open_standard_files()
    try:
        os.getcwd()
    except OSError as error:
        # Libraries fail without one in ways that nobody understands.
        print(
            f"zorplex-rl: the working directory cannot be found ({error.strerror}); cd to another one", file=sys.stderr
        )
        return BAD_INPUT
    for number in STOPS:
        # A program that was started with the signal ignored (``nohup``) is to ignore it.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        from zorplex_rl.cli import commands

        return commands.main()
    except KeyboardInterrupt:
        print("zorplex-rl: interrupted", file=sys.stderr)
        return INTERRUPTED
    finally:
        # What ends now ends within seconds, and would only be torn.
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)


def program() -> NoReturn:
    """Run the command line, and end the process with its exit code."""
    code = 1

    # All that it starts inherits this, and stays below it.
    os.environ[MARK] = secrets.token_hex(8)
    orphans.adopt()

    def leave() -> None:
        orphans.end()
        if processes := sys.modules.get("zorplex_rl.services.processes"):
            processes.kill_marked(f"{MARK}={os.environ[MARK]}")
        # Monarch's threads may still run Python at the interpreter's end: the process would abort.
        if "monarch" in sys.modules:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            os._exit(code)

    # The first to be registered is the last to be called.
    atexit.register(leave)
    code = main()
    raise SystemExit(code)


def _open_standard_files() -> None:
    """Open the null device for files 0 to 2 if closed: else a new file gets the number."""
    while (file := os.open(os.devnull, os.O_RDWR)) <= 2:
        # What this process starts is to have it, too.
        os.set_inheritable(file, True)
    os.close(file)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, during imports later: libraries take it for a missing module."""
    global _is_waiting
    while frame and frame.f_code.co_filename != IMPORTS:
        frame = frame.f_back
    if frame is None:
        raise KeyboardInterrupt
    if not _is_waiting:
        _is_waiting = True
        threading.Timer(AGAIN_SECONDS, _send_again, [number]).start()


def _send_again(number: int) -> None:
    global _is_waiting
    _is_waiting = False
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    program()
