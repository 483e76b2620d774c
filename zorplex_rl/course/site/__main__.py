"""Build the site into DIR with ``python -m zorplex_rl.course.site [DIR]``."""

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from zorplex_rl.course.site.build import build_site
from zorplex_rl.errors import ConfigError, SiteError


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the site. Returns the exit code: 2 for bad arguments, 1 if a
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
        say = functools.partial(print, flush=True)
        build_site(asked.notebooks, asked.site, say, asked.record, asked.jobs)
    except (ConfigError, SiteError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1 if isinstance(error, SiteError) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
