"""The program ``zorplex-rl``, also ``python -m zorplex_rl``."""

import atexit
import os
import sys
from typing import NoReturn

from zorplex_rl import TORCH_SETTINGS


def program() -> NoReturn:
    """Run the command line and exit with its code."""
    code = 1

    def leave() -> None:
        # Monarch's threads may still run Python while the interpreter shuts down: the process would abort.
        if "monarch" in sys.modules:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    # Registered first, so it is called last.
    atexit.register(leave)
    if not sys.flags.safe_path:
        # With -m the current folder comes first: a random.py in it would replace Python's.
        sys.path.append(sys.path.pop(0))
    # A terminal may not be able to show dashes.
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    os.environ |= TORCH_SETTINGS | os.environ  # read when torch is imported
    try:
        # This import takes seconds, so Ctrl-C is handled around it, too.
        from zorplex_rl.cli.commands import main

        code = main()
    except KeyboardInterrupt:
        print("zorplex-rl: interrupted", file=sys.stderr)
        code = 130
    raise SystemExit(code)


if __name__ == "__main__":
    program()
