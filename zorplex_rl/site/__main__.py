"""``python -m zorplex_rl.site [DIR]``: build the site into DIR; with ``--serve``, then serve it on this machine."""

from __future__ import annotations

import argparse
import functools
import http.server
import sys
from pathlib import Path

from zorplex_rl.errors import SiteError
from zorplex_rl.site.build import build_site


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./build_site.sh", description="Run every notebook and publish the course as static pages."
    )
    parser.add_argument(
        "site", nargs="?", type=Path, default=Path("site"), metavar="DIR", help="where to (default: site)"
    )
    parser.add_argument(
        "--notebooks", type=Path, default=Path("notebooks"), help="the folder of notebooks (default: notebooks)"
    )
    parser.add_argument("--serve", action="store_true", help="then serve it on this machine until Ctrl-C")
    parser.add_argument("--port", type=int, default=8000, help="where to serve it (default: 8000)")
    arguments = parser.parse_args()
    try:
        build_site(arguments.notebooks, arguments.site, say=functools.partial(print, flush=True))
    except SiteError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if arguments.serve:
        serve(arguments.site, arguments.port)
    return 0


def serve(site: Path, port: int) -> None:
    """Serve ``site`` to this machine until Ctrl-C."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"http://localhost:{server.server_port} until Ctrl-C", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    sys.exit(main())
