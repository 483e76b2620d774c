"""The program ``zorplex-rl``, also ``python -m zorplex_rl``."""

import atexit
import os
import sys
from typing import NoReturn

from zorplex_rl import TORCH_SETTINGS


def program() -> NoReturn:
    """Run the command line, and end the process with its exit code."""
    code = 1

    def leave() -> None:
        # Monarch's threads may still run Python at the interpreter's end: the process would abort.
        if "monarch" in sys.modules:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    # The first to be registered is the last to be called.
    atexit.register(leave)
    if not sys.flags.safe_path:
        # With -m the current folder is the first: a random.py in it would be taken for Python's own.
        sys.path.append(sys.path.pop(0))
    # A terminal may have no dashes.
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    os.environ |= TORCH_SETTINGS | os.environ  # read when torch is imported
    try:
        # Seconds pass here in which nothing but Ctrl-C is to be heard.
        from zorplex_rl.cli.commands import main

        code = main()
    except KeyboardInterrupt:
        print("zorplex-rl: interrupted", file=sys.stderr)
        code = 130
    raise SystemExit(code)


if __name__ == "__main__":
    program()
