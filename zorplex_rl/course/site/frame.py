"""Assemble pages: head, style and navigation around the content of a lesson; the contents page; the
glossary; the search."""

import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files

from zorplex_rl.course.figures import drawing_of
from zorplex_rl.course.lesson.glossary import GLOSSARY, anchor, entry_of
from zorplex_rl.course.lesson.lesson import inline
from zorplex_rl.course.site import reference, search
from zorplex_rl.course.site.contents import Card, before_and_after, entry, film, routes
from zorplex_rl.course.site.outline import anchored, outline
from zorplex_rl.course.site.page import Lesson, Page
from zorplex_rl.course.site.render import plain, with_fewer_folds
from zorplex_rl.course.widgets import drawn

Link = tuple[str, str]
"""(file, title)"""

TITLE = "RL for language models: the systems side"
LEAD = (
    "You will teach a small language model to use a tool, in two hours, on a laptop; then you make that loop fast and hard to kill. "
    "On each page you predict, measure and write the part that matters."
)
LEGEND = (
    "The same work twice. Generators at the left write answers, the trainer at the right learns from them, and each dot is a "
    "<em>group</em>: several answers to one question. In turns, one side stands still while the other works. "
    "Side by side, generators go on, up to one version ahead (<code>max_lag</code> 1); then they wait, too."
)
MAP = "A number at a box: the notebook that takes this part apart. The others are about the whole loop, or about what it stands on."
NEEDED = "You know Python and have trained a model with PyTorch; RL and actors are explained here."
HOW = (
    "To work in a notebook instead of reading it, take the repository and run <code>uv run zorplex-rl open NUMBER</code>. "
    "It opens in your browser, in marimo, a notebook for Python. "
    'All terms are explained in the <a href="glossary.html">glossary</a>. '
    "If something fails, <code>docs/TROUBLESHOOTING.md</code> lists problems by their symptom. "
    "The numbers on all pages were computed when this site was built, or name the command that gave them."
)
PREVIEW = (
    '. <a href="https://molab.marimo.io/github/{}/blob/previews/notebooks/{}">Open in molab</a>'
)
MOVED = {"08b_judging_a_run.html": "05c_judging_a_run.html"}
"""Pages that have another name now. The old one leads there."""
# A page without an icon makes the browser request one from the server.
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'%3E"
    "%3Ccircle cx='4' cy='4' r='3' fill='%232484ce'/%3E%3C/svg%3E"
)


def lesson_page(
    page: Page,
    lesson: Lesson,
    notebook: str,
    previous: Link | None,
    following: Link | None,
    searchable: bool = False,
) -> str:
    """Build the page of one notebook: its cells between links to its neighbours. ``notebook`` is
    its file name."""
    shown = [written for cell in page.cells if (written := cell.render())]
    # A page begins with its title; the cell that only imports stands before it.
    shown[:2] = sorted(shown[:2], key=lambda written: "<h1" not in written)
    rendered = with_fewer_folds("\n".join(shown))
    cells = anchored(with_drawings(link_terms(rendered), page))
    name, repository = (
        html.escape(notebook),
        os.environ.get("GITHUB_REPOSITORY"),
    )  # where GitHub builds it
    source = (
        f'<p class="source">The notebook behind this page: <a href="{name}">{name}</a>. To work in it, in a clone of the repository: '
        f"<code>uv run zorplex-rl open {name.partition('_')[0]}</code>{PREVIEW.format(repository, name) if repository else ''}</p>"
    )
    body = (
        f"{_top(previous, following, searchable)}\n{outline(cells)}\n<main>\n{cells}\n{source}\n</main>\n"
        f"{_navigation(previous, following, 'Course, end of page')}\n{_widgets(page)}"
        + "\n".join(
            f"<script>\n{_file(f'course/site/{name}.js')}</script>"
            for name in ("folding", "outline", "scrolling", "slides")
        )
    )
    return _document(lesson.title, body)


def contents_page(cards: Sequence[Card], searchable: bool = False) -> str:
    """Build the contents page: a text before and after, a run to play, the course in one drawing, the card of every notebook."""
    minutes = sum(card.lesson.minutes for card in cards)
    count = "1 notebook" if len(cards) == 1 else f"{len(cards)} notebooks"
    run, source = film()
    how, repository = HOW, os.environ.get("GITHUB_REPOSITORY")
    if repository:
        link = f'<a href="https://github.com/{html.escape(repository)}">the repository</a>'
        how = how.replace("the repository", link)
    model = Page([], {"film": run})
    player = with_drawings('<div class="widget" data-model="film"></div>', model)
    machines = dict.fromkeys(
        card.lesson.ran_on.partition(" Policy: ")[0] for card in cards if card.lesson.ran_on
    )
    ran_on = "".join(
        f'<p class="ran-on">Computed on: {html.escape(machine)}</p>' for machine in machines
    )
    body = (
        f"{search.FORM if searchable else ''}\n<main>\n<h1>{TITLE}</h1>\n"
        f'<p class="lead">{LEAD}</p>\n{before_and_after()}\n{routes(cards)}'
        f"<p>{count}, about {minutes / 60:.0f} hours in all. {NEEDED} {how}</p>\n"
        f'<h2 id="loop">What makes it a system</h2>\n<p>{LEGEND}</p>\n<div class="film">{player}<p class="source">{source}</p></div>\n'
        f'<h2 id="course">The course in one drawing</h2>\n<figure class="lesson-figure" tabindex="0">{drawing_of("course.svg")}'
        f"<figcaption>{MAP}</figcaption></figure>\n"
        f'<h2 id="notebooks">The notebooks</h2>\n<ol class="lessons">\n{"".join(entry(card, cards) for card in cards)}</ol>\n{ran_on}</main>\n'
        f"{_widgets(model)}<script>\n{_file('course/site/scrolling.js')}</script>"
    )
    return _document(TITLE, body, "contents")


def glossary_page(pages: Sequence[tuple[str, str, str]], searchable: bool = False) -> str:
    """Build the page that explains all terms, in the alphabet's order. ``pages`` holds (file,
    title, HTML): who uses a term is named with it."""
    entries: list[str] = []
    letters: dict[str, str] = {}
    for term in sorted(GLOSSARY, key=str.lower):
        users = [
            f'<a href="{html.escape(file)}">{html.escape(title)}</a>'
            for file, title, text in pages
            if address_of(term) in text
        ]
        letters.setdefault(term[0].upper(), anchor(term))
        used = f'<dd class="used">Explained in {", ".join(users)}</dd>' if users else ""
        entries.append(
            f'<dt id="{anchor(term)}">{html.escape(term)}</dt><dd>{inline(GLOSSARY[term])}</dd>{used}\n'
        )
    jump = " ".join(f'<a href="#{place}">{letter}</a>' for letter, place in letters.items())
    body = (
        f"{_top(None, None, searchable)}\n"
        f'<main>\n<h1>Glossary</h1>\n<p>{jump}</p>\n<dl class="glossary">\n{"".join(entries)}</dl>\n</main>'
    )
    return _document("Glossary", body)


def moved_page(target: str) -> str:
    """Build the page of an old name, which opens ``target``."""
    to = html.escape(target)
    return (
        f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>Moved</title>'
        f'<meta http-equiv="refresh" content="0; url={to}"><p>This page is now <a href="{to}">{to}</a>.</p></html>'
    )


def stacks_page(searchable: bool = False) -> str:
    """Build the reference page of other stacks."""
    body = (
        f"{_top(None, None, searchable)}\n<main>\n{reference.content()}\n</main>\n"
        f"<script>\n{_file('course/site/sorting.js')}</script>"
    )
    return _document(reference.TITLE, body, "reference")


def search_page(pages: Mapping[str, str]) -> str:
    """Build the page that searches all ``pages``, HTML by its file's name."""
    return _document(
        "Search the course", f"{_top(None, None, False)}\n{search.search_content(pages)}"
    )


def with_drawings(content: str, page: Page) -> str:
    """Put into the place of every widget what its state looks like. The script that brings a widget
    to life hides this again."""

    def draw(found: re.Match[str]) -> str:
        model = page.models.get(html.unescape(found[1]))
        shown = plain(drawn(model["state"])) if model else ""
        return f"{found[0]}{shown or '<noscript><p>The widget here needs scripts.</p></noscript>'}"

    return re.sub(r'<div class="widget" data-model="([^"]*)">', draw, content)


def address_of(term: str) -> str:
    """Return what stands in the HTML of a page that links to ``term``."""
    return f'href="glossary.html#{anchor(term)}"'


def link_terms(content: str) -> str:
    """Link the first bold mention of each term of the glossary, unless the page links it already."""
    linked: set[str] = set()

    def link(found: re.Match[str]) -> str:
        term = entry_of(html.unescape(found[1]))
        if term is None or term in linked or address_of(term) in content:
            return found[0]
        linked.add(term)
        tooltip = html.escape(GLOSSARY[term])
        return f'<a {address_of(term)} title="{tooltip}">{found[0]}</a>'

    return _with_notes(re.sub(r"<strong>([^<]{2,40})</strong>", link, content))


def _with_notes(content: str) -> str:
    """Mark the first link to each term: a wide screen shows its tooltip as a note in the margin."""
    noted: set[str] = set()

    def mark(found: re.Match[str]) -> str:
        if found[1] in noted:
            return found[0]
        noted.add(found[1])
        return f'<a class="noted" {found[1]}'

    return re.sub(r'<a (href="glossary\.html#[^"]*")', mark, content)


def _top(previous: Link | None, following: Link | None, searchable: bool) -> str:
    """Return what every page begins with: the navigation, and the form that searches if the site
    can."""
    return _navigation(previous, following, "Course") + (search.FORM if searchable else "")


def _navigation(previous: Link | None, following: Link | None, label: str) -> str:
    back = (
        f'<a rel="prev" href="{html.escape(previous[0])}">← {html.escape(previous[1])}</a>'
        if previous
        else "<span></span>"
    )
    on = (
        f'<a rel="next" href="{html.escape(following[0])}">{html.escape(following[1])} →</a>'
        if following
        else "<span></span>"
    )
    here = '<a href="index.html">Contents</a> · <a href="glossary.html">Glossary</a>'
    return f'<nav class="course" aria-label="{label}">{back}<span>{here}</span>{on}</nav>'


def _widgets(page: Page) -> str:
    """Return the state of the widgets and the script that draws them; empty for a page without
    widgets."""
    if not page.models:
        return ""
    # "</script>" inside the JSON would close the element.
    models = json.dumps(page.models).replace("<", "\\u003c")
    return f'<script type="application/json" id="models">{models}</script>\n<script>\n{_file("course/site/widgets.js")}</script>'


def _document(title: str, body: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{html.escape(title)}</title>
<link rel="icon" href="{_ICON}">
<style>
{_file("course/site/site.css")}
{_file("course/lesson/lesson.css")}
</style>
</head>
<body{named}>
{body}
</body>
</html>
"""


def _file(name: str) -> str:
    return files("zorplex_rl").joinpath(name).read_text(encoding="utf-8")
