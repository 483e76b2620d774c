"""Build the contents page: what a model writes before and after, a run to play, the course in one drawing, and for every
notebook its drawing, what it builds and what it measured.

    pages ──card_of──► cards ──► contents page

A card comes from the page itself, so a new notebook needs no entry here, only a number in
``figures/drawings/course.svg``. Its drawing is the first on its page that no prediction folds. Its
headline is a sentence that the notebook computed while the site was built. What it builds on are
the earlier notebooks that its text names, and ``ACTORS`` if it writes an actor. What one builds in
it stands in the table of README.md.
"""

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zorplex_rl.course.figures.tokens import invents, written_card
from zorplex_rl.course.lesson.lesson import START, inline
from zorplex_rl.course.recorded_steps import recorded_steps
from zorplex_rl.course.site.outline import words
from zorplex_rl.course.site.page import Lesson, Page, PageCell
from zorplex_rl.course.site.render import plain

ROUTES = {
    "the heart": ("05", "05b", "05d"),
    "half a day": ("05", "05b", "06", "07", "08", "09"),
}
"""Ways through the course, by the numbers of their notebooks."""
ACTORS = "01"
"""The notebook that explains actors."""
BOTH_AT_WORK = 0.38
"""The share of the film's time at which, side by side, generators write and the trainer trains."""
_FIGURE = re.compile(
    r'<figure class="lesson-figure"[^>]*>(.*?)(?:<figcaption>.*?)?</figure>', re.DOTALL
)
_NAMED = re.compile(
    r"\bnotebooks? (\d\d[a-z]?(?:(?:, | and | or | to )\d\d[a-z]?)*)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Card:
    """Hold what the contents page says about one notebook."""

    file: str
    lesson: Lesson
    drawing: str
    """SVG, with the style and the choices that belong to it; empty if the page has none."""
    headline: str
    """HTML of one result; empty if the page has none."""
    named: tuple[str, ...]
    """The numbers of the notebooks that its text names, like ``07b``."""
    built: str = ""
    """What the reader builds in it, as Markdown; empty if README.md does not say."""

    @property
    def number(self) -> str:
        """Return what its file's name begins with."""
        return self.file.partition("_")[0].removesuffix(".html")


def card_of(file: str, page: Page, lesson: Lesson, written: str, built: str = "") -> Card:
    """Collect the card of one notebook from its exported ``page`` and from the HTML that was
    ``written`` of it."""
    text = words(written)
    named = [
        number for found in _NAMED.finditer(text) for number in re.findall(r"\d\d[a-z]?", found[1])
    ]
    if "@endpoint" in text:
        named.append(ACTORS)
    return Card(
        file,
        lesson,
        drawing_of(page),
        headline_of(page),
        tuple(dict.fromkeys(named)),
        built,
    )


def built_by(readme: Path) -> dict[str, str]:
    """Return "what you will have built" of the table in ``readme``, as Markdown: by the notebook's
    name without ``.py``."""
    if not readme.is_file():
        return {}
    rows = re.findall(
        r"^\| `(\d\w*)\.py` \| (.+?) \|$", readme.read_text(encoding="utf-8"), re.MULTILINE
    )
    return dict(rows)


def drawing_of(page: Page) -> str:
    """Return what stands for a notebook: its first drawing that no prediction folds, else its first
    such chart; empty if it has none.

    A drawing or chart of its own comes first: many notebooks show the loop with the same parts lit,
    and all share the whole one.
    """

    def rank(svg: str) -> int:
        if "data-part=" in svg:
            return 2 if 'data-lit="false"' in svg else 3
        return 1 if "xmlns:xlink" in svg else 0

    shown = (svg for cell in page.cells for svg in _unfolded(cell))
    return plain(min(shown, key=rank, default=""))


def headline_of(page: Page) -> str:
    """Return the HTML of the result that the notebook states by ``lesson.headline``; empty if there is none."""
    markup = "".join(cell.markup for cell in page.cells)
    given = re.search(r'<p class="lesson-headline">(.*?)</p>', markup, re.DOTALL)
    return plain(given[1]) if given else ""


def _unfolded(cell: PageCell) -> list[str]:
    """Return the drawings of a cell that are seen at once."""
    seen = re.split(r'<section class="lesson-(?:reveal|held)|<details', cell.markup)[0]
    return [figure for figure in _FIGURE.findall(seen) if "<svg" in figure]


def before_and_after() -> str:
    """Return what SmolLM2 wrote for one question before training and after it, as HTML: the first one that it learned to answer."""
    run = recorded_steps("smollm2")
    first, last = run["steps"][0], run["steps"][-1]
    pairs = zip(first, last, strict=True)
    learned = [
        pair for pair in pairs if [one["outcome"] == "success" for one in pair] == [False, True]
    ]
    titles = ("Before", f"After {len(run['steps']) - 1} steps of training")
    columns = "".join(
        f"<div><p><strong>{title}</strong></p>{written_card([one])}</div>"
        for title, one in zip(titles, learned[0], strict=True)
    )
    before, after = run["right"]
    worth = learned[0][1]["parts"]
    called = re.match(r"[A-Z]+(?=\[)", "".join(text for text, _ in learned[0][0]["tokens"]))
    invented = (
        f"Before, it called {called[0]}, a tool that does not exist; so nothing answered, and it wrote the arrow and a number itself. "
        if called and called[0] != "LOOKUP" and invents(learned[0][0])
        else ""
    )
    return (
        f'<figure class="lesson-figure" tabindex="0"><div class="lesson-side-by-side">{columns}</div><figcaption>What SmolLM2 writes, '
        "a language model of 135 million parameters. Its prompt begins with two worked examples. "
        "Only the tool LOOKUP knows the word's number. A box is a token, a piece of text: a solid one was written by the "
        f"model, a dashed one inserted by the tool. {invented}Beside the text stands the reward: {worth['correct']:g} for the right "
        f"answer, and {worth['format']:g} for any number behind [ANSWER]. "
        f"In this run it answered {before:.0%} of new questions like this one before, and {after:.0%} after. "
        f"Training never showed it a right answer; it only scored what the model wrote. {inline(run['source'])}</figcaption></figure>"
    )


def film() -> tuple[dict[str, Any], str]:
    """Return a simulated run as the model of a ``LoopPlayer``, which starts by itself, and a sentence on where it comes from."""
    from zorplex_rl.course.sync_and_async import compare
    from zorplex_rl.course.widgets import LoopPlayer
    from zorplex_rl.simulation.setting import Setting

    setting = Setting()
    both = compare(setting)
    player = LoopPlayer(
        {
            "In turns": both.sync.timeline,
            f"Side by side, max_lag {setting.max_lag}": both.asynchronous.timeline,
        },
        start=BOTH_AT_WORK,
        unit="a group: several answers to one question",
    )
    script = base64.b64encode(str(player._esm).encode()).decode()
    state = {
        "kind": player.kind,
        "runs": player.runs,
        "look": player.look | {"plays": True},
        "_css": str(player._css),
    }
    model = {"esm": f"data:text/javascript;base64,{script}", "state": state, "buffers": {}}
    source = (
        f"Simulated: a generator takes {setting.generation_seconds:g} s for a group on average, a training step takes "
        f"{setting.training_seconds:g} s, and the new weights arrive {setting.sync_seconds:g} s later."
    )
    return model, source


def builds_on(card: Card, cards: Sequence[Card]) -> list[Card]:
    """Return the earlier notebooks that the text of ``card`` names."""
    return [other for other in cards[: cards.index(card)] if other.number in card.named]


def routes(cards: Sequence[Card]) -> str:
    """Return where to start, and the ways through the course with the minutes of each; empty
    without the notebook to start with."""
    by_number = {card.number: card for card in cards}
    if START not in by_number:
        return ""
    items = ""
    for name, numbers in (*ROUTES.items(), ("everything, by the numbers", tuple(by_number))):
        chosen = [by_number[number] for number in numbers if number in by_number]
        links = " → ".join(
            f'<a href="{html.escape(card.file)}">{card.number}</a>' for card in chosen
        )
        items += f"<li><strong>{name[:1].upper()}{name[1:]}</strong>, {sum(c.lesson.minutes for c in chosen)} minutes: {links}</li>"
    first = by_number[START]
    return (
        f'<p class="start"><strong>Start here:</strong> <a href="{html.escape(first.file)}">{START} {html.escape(first.lesson.title)}</a>. '
        "The notebooks before it explain actors and processes. They can wait until a "
        f'page links to them.</p><ul class="routes">{items}</ul>\n'
    )


def entry(card: Card, cards: Sequence[Card]) -> str:
    """Return the list item of one notebook."""
    goals = "".join(f"<li>{inline(goal)}</li>" for goal in card.lesson.goals)
    before = ", ".join(
        f'<a href="{html.escape(other.file)}" title="{html.escape(other.lesson.title)}">{other.number}</a>'
        for other in builds_on(card, cards)
    )
    facts = "<strong>start here</strong> · " if card.number == START else ""
    facts += f"{card.lesson.minutes} minutes · {html.escape(card.lesson.hardware)} · "
    facts += f"builds on {before}" if before else "needs none of the others"
    built = f"<p><strong>In it:</strong> {inline(card.built)}.</p>" if card.built else ""
    result = f'<p class="headline">{card.headline}</p>' if card.headline else ""
    drawing = (
        f'<figure class="lesson-figure" tabindex="0">{card.drawing}</figure>'
        if card.drawing
        else ""
    )
    return (
        f'<li><div><h3><span class="ordinal">{card.number}</span>'
        f'<a href="{html.escape(card.file)}">{html.escape(card.lesson.title)}</a></h3>'
        f'<p class="facts">{facts}</p>{built}'
        f"<details><summary>A result, and what you can do afterwards</summary>{result}<ul>{goals}</ul></details></div>{drawing}</li>\n"
    )
