"""Build the site into DIR with ``python -m zorplex_rl.course.site [DIR]``; with ``--serve``, serve
it on this machine afterwards."""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.server
import sys
from collections.abc import Sequence
from pathlib import Path

from zorplex_rl.course.site.build import build_site
from zorplex_rl.errors import ConfigError, SiteError


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the site and serve it on request. Returns the exit code: 2 for bad arguments, 1 if a
    notebook cannot be published."""
    description = "Run every notebook and publish the course as static pages."
    parser = argparse.ArgumentParser(prog="./build_site.sh", description=description)
    parser.add_argument(
        "site",
        nargs="?",
        type=Path,
        default=Path("site"),
        metavar="DIR",
        help="where to (default: site)",
    )
    parser.add_argument(
        "--notebooks",
        type=Path,
        default=Path("notebooks"),
        help="the folder of notebooks (default: notebooks)",
    )
    parser.add_argument(
        "--serve", action="store_true", help="then serve it on this machine until Ctrl-C"
    )
    parser.add_argument("--port", type=int, default=8000, help="where to serve it (default: 8000)")
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="write how long each notebook took (workshop/notebook_seconds.json)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="notebooks that run at a time: 2 is faster and disturbs what they measure",
    )
    asked = parser.parse_args(arguments)
    try:
        # Take the port before the build, which takes minutes: a busy port fails at once.
        with (
            server_of(asked.site, asked.port) if asked.serve else contextlib.nullcontext() as server
        ):
            build_site(
                asked.notebooks,
                asked.site,
                functools.partial(print, flush=True),
                asked.record,
                asked.jobs,
            )
            if server:
                print(f"http://localhost:{server.server_port} until Ctrl-C", flush=True)
                with contextlib.suppress(KeyboardInterrupt):
                    server.serve_forever()
                print()
    except (ConfigError, SiteError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1 if isinstance(error, SiteError) else 2
    return 0


def server_of(site: Path, port: int) -> http.server.ThreadingHTTPServer:
    """Return a server of ``site`` that only this machine can reach. Raises ConfigError if ``port``
    is not available."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    try:
        return http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--port {port} cannot be had ({error}); give another") from error


if __name__ == "__main__":
    sys.exit(main())
