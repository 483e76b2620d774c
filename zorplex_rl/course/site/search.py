"""Build the page that searches the whole course: every section of every page and every term, with
the library that finds words in them.

    pages ──passages──► search.html        lunr.js makes the index in the browser and finds; search.js asks it and shows

The library is lunr.js. The PyPI package ``mkdocs`` carries it (the extra ``site`` of this course
installs that), so nothing of it is kept in the repository, and no npm is needed. Without the
package a site has no search. The page holds all that it needs: it works from a folder, and no
request leaves it. The other pages only hold a form that leads to it.

What a reader is meant to find out first stays out of the index: folded solutions and hints, and
results that wait for a prediction.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html.parser import HTMLParser
from importlib.resources import files
from typing import NamedTuple

from zorplex_rl.course.lesson.glossary import GLOSSARY, anchor

PAGE = "search.html"
WITHOUT = "no search on these pages: the package mkdocs, which brings lunr.js, is not installed here; pip install -e '.[site]' installs it"
"""What a build says where the library is missing."""

FORM = (
    f'<form class="search" role="search" action="{PAGE}" method="get">'
    '<label for="search-all">Search the course</label>'
    '<input type="search" id="search-all" name="q" autocomplete="off" placeholder="Search the course"><button>Search</button></form>'
)
"""What every page shows at its top. It needs no script."""

_SKIPPED = {"style", "script", "svg", "details", "noscript", "nav", "button", "fieldset"}
_SKIPPED_CLASSES = {"lesson-reveal", "lesson-predicted", "lesson-switch", "widget"}
_BLOCKS = set("p div li tr td th pre h4 section figure figcaption caption dt dd ul ol table".split())
_EMPTY = {"br", "hr", "img", "input", "link", "meta", "col", "wbr"}


class Passage(NamedTuple):
    """Hold what can be found at one place: a section of a page, or a term of the glossary."""

    file: str
    page: str
    """The title of the page."""
    anchor: str
    """The place in the page; empty for its top."""
    title: str
    text: str


def library() -> str | None:
    """Return the source of lunr.js, or None if the package that carries it is not installed."""
    try:
        return files("mkdocs").joinpath("contrib/search/templates/search/lunr.js").read_text(encoding="utf-8")
    except (ModuleNotFoundError, FileNotFoundError):
        return None


def passages(file: str, title: str, content: str) -> list[Passage]:
    """Split a page into passages: one for each ``h2`` and ``h3`` with an id, and one for what
    stands before the first.

    >>> for found in passages("a.html", "A page", '<h1>A page</h1><p>To <b>begin</b>.</p><h2 id="x">X</h2><p>Then.</p><details>no</details>'):
    ...     print(found.anchor, "|", found.title, "|", found.text)
     | A page | To begin.
    x | X | Then.
    """
    reader = _Reader(title)
    reader.feed(content)
    reader.close()
    return [
        Passage(file, title, place, " ".join("".join(name).split()), " ".join("".join(text).split()))
        for place, name, text in reader.found
    ]


def terms() -> list[Passage]:
    """Return a passage for every term of the glossary."""
    return [
        Passage("glossary.html", "Glossary", anchor(term), term, explained.replace("`", ""))
        for term, explained in GLOSSARY.items()
    ]


def search_content(lunr: str, found: Sequence[Passage]) -> str:
    """Build what the page holds below its navigation: the form, the place for results, the library
    and all passages."""
    # "</script>" inside the JSON would close the element.
    data = json.dumps(found, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    # The library is quoted as it is; its own licence stands at its top.
    source = lunr.replace("</script", "<\\/script")
    own = files("zorplex_rl").joinpath("course/site/search.js").read_text(encoding="utf-8")
    places = len({passage.file for passage in found})
    return (
        f"<main>\n<h1>Search the course</h1>\n{FORM}\n"
        '<p id="search-status" role="status">Type a word, for example <q>staleness</q>.</p>\n'
        '<noscript><p>Searching needs scripts. The <a href="index.html">contents</a> list all notebooks, and the '
        '<a href="glossary.html">glossary</a> says which one explains a term.</p></noscript>\n'
        '<ol id="search-results" class="results"></ol>\n'
        f'<p class="source">Searches {len(found)} sections of {places} pages, on this page alone: no request leaves it. '
        "Solutions, hints and results that wait for your prediction are not searched.</p>\n</main>\n"
        f'<script type="application/json" id="passages">{data}</script>\n<script>\n{source}\n</script>\n<script>\n{own}</script>'
    )


class _Reader(HTMLParser):
    """Collect (anchor, pieces of the heading, pieces of the text), section by section."""

    def __init__(self, title: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, list[str], list[str]]] = [("", [title], [])]
        self._depth = 0
        self._heading: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _EMPTY:
            self._add(" ")
            return
        given = dict(attrs)
        if self._depth or tag in _SKIPPED or _SKIPPED_CLASSES & set((given.get("class") or "").split()):
            self._depth += 1
        elif tag in ("h2", "h3") and given.get("id"):
            self.found.append((given["id"] or "", [], []))
            self._heading = tag
        elif tag == "h1":
            # The title is known already.
            self._heading, self.found[-1] = tag, (self.found[-1][0], [], self.found[-1][2])
        elif tag in _BLOCKS or given.get("class") in ("paragraph", "line"):
            self._add(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag in _EMPTY:
            return
        if self._depth:
            self._depth -= 1
        elif tag == self._heading:
            self._heading = None
        else:
            self._add(" " if tag in _BLOCKS else "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._add(" ")

    def handle_data(self, data: str) -> None:
        self._add(data)

    def _add(self, text: str) -> None:
        if not self._depth:
            _, heading, body = self.found[-1]
            (heading if self._heading else body).append(text)
