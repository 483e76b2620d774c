"""How long until a reader sees the text of a page of the site, and how large is the page?

    python benchmarks/pages.py                        every page five times, about a minute; appends to LOG.md

Opens every page of a built site (``site/`` in the repository, unless another folder is named) in
Chromium, from a server on this machine. Each visit is a fresh browser context: nothing is cached.
The browser itself counts the seconds, from the request: until the first text or figure is painted,
and until everything has loaded and all scripts have run.
"""

from __future__ import annotations

import functools
import http.server
import shutil
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import tyro
from log import Report, append_report, print_report

ASKED = "How long until a reader sees the text of a page of the site, and how many bytes is that page?"
EXPECTED = "The first paint within 1 s on every page, in the median of five visits; no page above 5 MB."
TIMES = """async () => {
  const painted = () => performance.getEntriesByName("first-contentful-paint")[0]?.startTime;
  while (painted() === undefined) await new Promise((resolve) => setTimeout(resolve, 20));
  return [painted() / 1000, performance.getEntriesByType("navigation")[0].loadEventEnd / 1000];
}"""


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    site: Annotated[Path, tyro.conf.Positional] = Path(__file__).parents[1] / "site"
    """A folder that ./build_site.sh has written."""
    visits: int = 5
    """How often every page is opened."""
    log: bool = True
    """Append the result to LOG.md."""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing about single requests."""


def measure(browser: Any, address: str, visits: int) -> tuple[float, float]:
    """Open ``address`` ``visits`` times. Returns the median seconds until the first paint, and
    until all is loaded."""
    found = []
    for _ in range(visits):
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.goto(address)
        found.append(page.evaluate(TIMES))
        context.close()
    painted, loaded = zip(*found, strict=True)
    return median(painted), median(loaded)


def main(options: Options) -> None:
    from playwright.sync_api import sync_playwright

    files = sorted(options.site.glob("*.html"))
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not files or chromium is None:
        sys.exit(
            f"{options.site} has no page; build it first: ./build_site.sh" if not files else "there is no Chromium here"
        )
    handler = functools.partial(_Quiet, directory=str(options.site))
    rows = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, sync_playwright() as playwright:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        for file in files:
            painted, loaded = measure(browser, f"http://127.0.0.1:{server.server_port}/{file.name}", options.visits)
            rows.append([file.name, f"{file.stat().st_size / 1e6:.2f}", f"{painted:.2f}", f"{loaded:.2f}"])
        browser.close()
        server.shutdown()
    report = Report("Pages of the site", ["page", "MB", "first paint, s", "loaded, s"], rows)
    print_report(report)
    if options.log:
        append_report("benchmarks/pages.py", ASKED, EXPECTED, {"visits": options.visits}, [report])


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
