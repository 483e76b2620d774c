"""Where text becomes HTML: what somebody else wrote is shown, and does nothing."""

from __future__ import annotations

import html
from html.parser import HTMLParser

import pytest

from zorplex_rl.course.lesson import lesson
from zorplex_rl.course.lesson.markup import block, fence, inline, quote

TAGS = set(
    "a blockquote br code del div em h1 h2 h3 h4 h5 h6 hr li ol p pre span strong table tbody td th thead tr ul".split()
)
ATTRIBUTES = {"class", "href", "start", "style", "title"}
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "```\n<script>alert(1)</script>\n```\n<img src=x onerror=alert(1)>",
    "</code></td></table><script>alert(1)</script>",
    "![picture](x)",
    "[link](javascript:alert(1))",
    '[link](x" onclick="alert(1))',
    "&lt;img src=x onerror=alert(1)&gt; &#60;",
    "a \\` b ` c `` d",
    "# *heading* | 1. _list_\n- **x**",
]
every_hostile = pytest.mark.parametrize("text", HOSTILE)


class Read(HTMLParser):
    """What a browser would make of some HTML: its elements, and the text that is seen."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    @property
    def dangers(self) -> list:
        return [
            (tag, attributes)
            for tag, attributes in self.elements
            if tag not in TAGS
            or not attributes.keys() <= ATTRIBUTES
            or html.unescape(attributes.get("href") or "")
            .strip()
            .lower()
            .startswith(("javascript", "data", "vbscript"))
        ]


def seen(text: str) -> str:
    """What of ``text`` a page can show: blanks as one."""
    return " ".join(text.split())


@every_hostile
@pytest.mark.parametrize("convert", [block, inline])
def test_no_text_becomes_an_element_that_runs_or_loads_something(convert, text):
    for form in (
        text,
        f"`{text}`",
        f"**{text}**",
        f"- {text}",
        f"| a |\n|---|\n| {text} |",
        f"```\n{text}\n```",
    ):
        assert Read(convert(form)).dangers == []


@every_hostile
def test_quoted_text_is_shown_character_by_character(text):
    shown = seen(text.strip().replace("\n", "⏎"))
    assert seen(Read(inline(quote(text))).text) == shown
    assert seen(Read(block(f"It wrote {quote(text)}.")).text) == f"It wrote {shown}."


@every_hostile
def test_fenced_text_is_shown_line_by_line(text):
    read = Read(block(f"It wrote\n\n{fence(text)}"))
    assert seen(read.text) == seen(f"It wrote {text}")
    assert [tag for tag, _ in read.elements].count("pre") == 1


def test_what_an_author_writes_is_markdown_as_ever():
    assert inline("`kill -9` and [a page](https://x.org/?a=1&b=2)") == (
        '<code>kill -9</code> and <a href="https://x.org/?a=1&amp;b=2">a page</a>'
    )
    said = block(
        "## A heading\n\nSome **bold** and *slanted* `code`.\n\n- one\n- two\n\n| a | b |\n|---|---|\n| 1 | `x` |"
    )
    assert [tag for tag, _ in Read(said).elements[1:]] == (
        "h2 span strong em code ul li li table thead tr th th tbody tr td td code".split()
    )
    assert '<span class="nb">print</span>' in block('```python\nprint("<b>")\n```')


@every_hostile
def test_a_table_shows_what_a_policy_wrote(text):
    said = lesson.table(text, [{text: text, "quoted": quote(text), "in ticks": f"`{text}`"}]).text
    assert {tag for tag, _ in Read(said).elements} <= {
        *"div table caption thead tr th tbody td code a".split()
    }
    shown = said.split("<td>")[2]
    assert seen(Read(shown.partition("</td>")[0]).text) == seen(text.strip().replace("\n", "⏎"))


def test_a_formula_is_mathml_that_needs_no_script_and_lets_no_html_through():
    shown = lesson.math(r"\sum_t m_t \log p(e_t \mid e_{\lt t}) \text{ if } t > 0").text
    assert "<math" in shown and "<munder" in shown and "<msub>" in shown and "<mtext>" in shown
    assert "<script" not in shown and "\\" not in shown
    with pytest.raises(ValueError, match=r"has a <; write"):
        lesson.math(r"\text{<b>x</b>}")
