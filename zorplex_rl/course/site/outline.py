"""Give every heading of a page a place that links can name, and list the sections: for the outline
at the page's side.

HTML ──► anchored(HTML) ──► the same with ids ──► sections ──► outline
"""

import html
import re
from typing import NamedTuple

_HEADING = re.compile(r"<(h[23])(?: id=\"([^\"]*)\")?>(.*?)</\1>", re.DOTALL)


class Section(NamedTuple):
    """Hold one section: its heading's level (2 or 3), place and text."""

    level: int
    anchor: str
    title: str


def anchored(content: str) -> str:
    """Return ``content`` with an id at every ``h2`` and ``h3``: its words in small letters,
    numbered if they come twice."""
    taken: set[str] = set(re.findall(r' id="([^"]*)"', content))

    def name(found: re.Match[str]) -> str:
        if found[2]:
            return found[0]
        base = re.sub(r"[^a-z0-9]+", "-", words(found[3]).lower()).strip("-") or "section"
        anchor = next(
            name
            for number in range(1, 1000)
            if (name := base if number == 1 else f"{base}-{number}") not in taken
        )
        taken.add(anchor)
        return f'<{found[1]} id="{anchor}">{found[3]}</{found[1]}>'

    return _HEADING.sub(name, content)


def sections(content: str) -> list[Section]:
    """Return the sections of ``anchored`` content, in order. What stands before the first heading
    is in none."""
    return [
        Section(int(heading[1][1]), heading[2], words(heading[3]))
        for heading in _HEADING.finditer(content)
    ]


def outline(content: str) -> str:
    """Return the list of the page's main sections as links; empty if there are fewer than two."""
    main = [section for section in sections(content) if section.level == 2]
    if len(main) < 2:
        return ""
    items = "".join(
        f'<li><a href="#{section.anchor}">{html.escape(section.title)}</a></li>' for section in main
    )
    return f'<nav class="outline" aria-label="Sections of this page"><ol>{items}</ol></nav>'


def words(markup: str) -> str:
    """Return the text of ``markup`` on one line, without tags, styles and drawings.

    >>> words("<p>a <b>b</b></p><style>p {}</style><p>c &lt; d</p>")
    'a b c < d'
    """
    bare = re.sub(r"<(style|script|svg)\b.*?</\1>", " ", markup, flags=re.DOTALL)
    bare = re.sub(
        r"</?(?:p|div|li|tr|td|th|h\d|pre|span class=\"paragraph\")\b[^>]*>|<br>", " ", bare
    )
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", bare)).split())
