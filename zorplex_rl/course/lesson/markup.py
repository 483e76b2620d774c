"""Turn text into safe HTML, no matter who wrote it: an author, a policy, a tool, a table of words.

    block(markdown)      paragraphs, lists, tables, code    ──► HTML
    inline(markdown)     one line: code and links only      ──► HTML without a paragraph around it
    quote(text)          any text    ──► Markdown that shows it literally, as code in a line
    fence(text)          any text    ──► the same, as a block of lines
    fold(line, markdown) a line that opens the rest    ──► HTML

HTML and images in the Markdown are shown as plain characters, and links lead only to pages. So
``<img src=x onerror=…>`` in a transcript is text on the page, even if the author forgot to quote
it. ``quote`` and ``fence`` also protect the characters that Markdown itself would interpret: stars,
brackets, back-ticks.

>>> inline("`a < b` and <b>bold</b>")
'<code>a &lt; b</code> and &lt;b&gt;bold&lt;/b&gt;'
>>> quote("a `b` c"), inline(quote("a `b` c"))
('`` a `b` c ``', '<code>a `b` c</code>')
>>> inline("[x](javascript:f())")
'<a>x</a>'
"""

import html
import inspect
import re
from functools import cache
from threading import Lock
from typing import Any
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.inlinepatterns import InlineProcessor
from markdown.treeprocessors import Treeprocessor

SCHEMES = ("http", "https")
"""Schemes that a link may have; links without a scheme stay within the site."""

# marimo's front end and the course's style sheets select Markdown by these classes.
_OPEN, _CLOSE = '<span class="markdown prose dark:prose-invert contents">', "</span>"
_lock = Lock()


def block(markdown: str) -> str:
    """Convert Markdown to HTML; HTML and images in it are shown as text."""
    found = _convert(_blocks(), inspect.cleandoc(markdown))
    # A paragraph may not hold blocks, and marimo puts widgets into paragraphs.
    found = found.replace("<p>", '<span class="paragraph">').replace("</p>", "</span>")
    return f"{_OPEN}{found}{_CLOSE}"


def inline(markdown: str) -> str:
    """Convert one line to HTML: `code` and [links](address) work, all else is text."""
    found = _convert(_lines(), re.sub(r"[ \t\r\n]+", " ", markdown.strip()))
    return found.removeprefix("<p>").removesuffix("</p>")


def fold(summary: str, markdown: str, *shows: str) -> str:
    """Return HTML with ``markdown`` below the line ``summary``, then the HTML ``shows``; closed at first."""
    body = block(markdown) + "".join(shows)
    return f'<details class="lesson-folded"><summary>{inline(summary)}</summary>{body}</details>'


def quote(text: object) -> str:
    """Return Markdown that shows ``text`` literally as code in a line; line breaks become ⏎."""
    line = re.sub(r"\r\n?|\n", "⏎", str(text).strip())
    ticks = "`" * _longer_than(line, 1)
    # A space separates a back-tick of the text from the enclosing ones.
    return f"{ticks} {line} {ticks}" if "`" in line else f"`{line}`" if line else ""


def fence(text: str) -> str:
    """Return Markdown that shows ``text`` as lines of code, at the beginning of a line."""
    ticks = "`" * _longer_than(text, 3)
    return f"{ticks}text\n{text.strip()}\n{ticks}"


def _longer_than(text: str, least: int) -> int:
    """Return how many back-ticks enclose ``text``: more than its longest run has."""
    return max([least, *(len(run) + 1 for run in re.findall("`+", text))])


@cache
def _blocks() -> Markdown:
    options: dict[str, Any] = {
        "pymdownx.highlight": {
            "use_pygments": True,
            "pygments_lang_class": True,
            "css_class": "codehilite",
        },
        "pymdownx.superfences": {"css_class": "codehilite"},
    }
    return _made_safe(
        Markdown(extensions=["tables", "sane_lists", *options], extension_configs=options)
    )


@cache
def _lines() -> Markdown:
    converter = Markdown()
    blocks = "empty indent code hashheader setextheader hr olist ulist quote reference"
    marks = "escape linebreak not_strong em_strong em_strong2 reference short_reference"
    for registry, names in (
        (converter.parser.blockprocessors, blocks),
        (converter.inlinePatterns, marks),
    ):
        for name in names.split():
            registry.deregister(name, strict=False)
    return _made_safe(converter)


def _made_safe(converter: Markdown) -> Markdown:
    converter.preprocessors.deregister("html_block")
    for name in (
        "html",
        "entity",
        "image_link",
        "image_reference",
        "short_image_ref",
        "autolink",
        "automail",
    ):
        converter.inlinePatterns.deregister(name, strict=False)
    converter.inlinePatterns.register(_Ampersand("&", converter), "ampersand", 20)
    converter.treeprocessors.register(_SafeLinks(converter), "safe_links", 15)
    return converter


class _Ampersand(InlineProcessor):
    """Show ``&lt;`` as these four characters; Markdown would keep it as an entity."""

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:
        return "&amp;", m.start(), m.end()


class _SafeLinks(Treeprocessor):
    """Remove the address of every link that opens no page; ``javascript:`` runs a program.

    The address ``term:`` stands for an explanation: the link's title is all there is, and the
    keyboard must reach it too.
    """

    def run(self, root: Element) -> None:
        for link in root.iter("a"):
            address, title = link.get("href", ""), link.get("title", "")
            if not leads_to_a_page(address):
                link.attrib.clear()
            if address == "term:":
                link.attrib.update({"class": "lesson-term", "title": title, "tabindex": "0"})


def leads_to_a_page(address: str) -> bool:
    """Return True if a link to ``address`` opens a page, and runs no program."""
    # Read it as a browser does: resolve entities, skip blanks and control characters.
    bare = re.sub(r"[\x00-\x20\x7f-\xa0]", "", html.unescape(address))
    scheme = re.match(r"([a-z][a-z0-9+.-]*):", bare, re.IGNORECASE)
    return scheme is None or scheme[1].lower() in SCHEMES


def _convert(converter: Markdown, text: str) -> str:
    # A converter keeps state during a conversion, and cells may run in threads.
    with _lock:
        return converter.reset().convert(text)
