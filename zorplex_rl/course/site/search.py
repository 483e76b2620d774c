"""Build the page that searches the whole course, with an index that Pagefind makes.

    pages ──Pagefind──► its program and index, some dozen small files ──► search.html

Pagefind asks its files from a server. Here ``search.html`` holds all of them, and ``search.js``
hands them out: it works from a folder, and no request leaves it. The other pages only hold a form
that leads to it. Without the PyPI package ``pagefind`` (the extra ``site``) a site has no search.

What a reader is meant to find out first stays out of the index: folded solutions and hints, and
results that wait for a prediction.
"""

import base64
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

PAGE = "search.html"
WITHOUT = "no search on these pages: the package pagefind is not installed here; pip install -e '.[site]' installs it"
"""What a build says where the library is missing."""

FORM = (
    f'<form class="search" role="search" action="{PAGE}" method="get">'
    '<label for="search-all">Search the course</label>'
    '<input type="search" id="search-all" name="q" autocomplete="off" placeholder="Search the course"><button>Search</button></form>'
)
"""What every page shows at its top. It needs no script."""

_SKIPPED = "svg,details,noscript,nav,button,fieldset,.lesson-reveal,.lesson-predicted,.lesson-switch,.widget"
_NEEDED = (
    "pagefind.js",
    "pagefind-entry.json",
    "wasm.en.pagefind",
    ".pf_meta",
    ".pf_index",
    ".pf_fragment",
)


def installed() -> bool:
    """Return whether Pagefind is here."""
    return find_spec("pagefind") is not None


def index_of(pages: Mapping[str, str]) -> dict[str, str]:
    """Return what a browser needs to search ``pages``, HTML by its file's name: the files of
    Pagefind in base64, by their names."""
    with TemporaryDirectory() as folder:
        for name, written in pages.items():
            Path(folder, name).write_text(_as_indexed(written), encoding="utf-8")
        made = Path(folder, "pagefind")
        options = [
            "--root-selector",
            "main",
            "--exclude-selectors",
            _SKIPPED,
            "--force-language",
            "en",
            "--silent",
        ]
        subprocess.run(
            [sys.executable, "-m", "pagefind", "--site", folder, "--output-path", made, *options],
            check=True,
        )
        needed = sorted(path for path in made.rglob("*") if path.name.endswith(_NEEDED))
        return {
            path.relative_to(made).as_posix(): base64.b64encode(path.read_bytes()).decode()
            for path in needed
        }


def _as_indexed(written: str) -> str:
    """Return a page in which a word ends where a block does, and a term is a section."""
    spaced = re.sub(
        r"(?=<(?:pre|summary|caption|figcaption|span class=\"(?:paragraph|line)\"))", " ", written
    )
    return re.sub(r'<dt( id="[^"]*")>(.*?)</dt>', r"<h2\1>\2</h2>", spaced)


def search_content(pages: Mapping[str, str]) -> str:
    """Build what the page holds below its navigation: the form, the place for results, and all that
    finds words in ``pages``, HTML by its file's name."""
    own = files("zorplex_rl").joinpath("course/site/search.js").read_text(encoding="utf-8")
    return (
        f"<main>\n<h1>Search the course</h1>\n{FORM}\n"
        '<p id="search-status" role="status">Type a word, for example <q>staleness</q>.</p>\n'
        '<noscript><p>Searching needs scripts. The <a href="index.html">contents</a> list all notebooks, and the '
        '<a href="glossary.html">glossary</a> says which one explains a term.</p></noscript>\n'
        '<ol id="search-results" class="results"></ol>\n'
        f'<p class="source">Pagefind searches {len(pages)} pages, on this page alone: no request leaves it. '
        "Solutions, hints and results that wait for your prediction are not searched.</p>\n</main>\n"
        f'<script type="application/json" id="index">{json.dumps(index_of(pages))}</script>\n<script>\n{own}</script>'
    )
