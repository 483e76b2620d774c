"""What is true of every figure: complete SVG that anyone can read, on any background, and the same
bytes for the same data."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
from test_figures import REPORTS, TIMELINE

from zorplex_rl.course import figures
from zorplex_rl.course.figures import drawing_of
from zorplex_rl.course.figures import figure as style
from zorplex_rl.course.figures.bars import copies_chart, grouped_bars, outcome_chart, parts_chart
from zorplex_rl.course.figures.lines import (
    fits_chart,
    loss_chart,
    pass_chart,
    push_chart,
    ratio_chart,
    runs_chart,
    seconds_chart,
    seeds_chart,
)
from zorplex_rl.course.figures.spans import (
    Lives,
    LostHost,
    fates_chart,
    lives_chart,
    lost_host_chart,
    paired_timelines,
)
from zorplex_rl.course.nb05 import accuracy_chart, batch_chart
from zorplex_rl.course.nb05b import mass_chart
from zorplex_rl.run.timeline import KINDS, Span, Timeline

SVG = "{http://www.w3.org/2000/svg}"

SYNC = Timeline([Span("trainer", "train", 5.0, 6.0), Span("generator", "generate", 6.0, 7.0)])
ASYNC = Timeline([Span("trainer", "train", 90.0, 92.0), Span("generator", "generate", 90.5, 99.0)])
ALL_KINDS = Timeline([Span("a", kind, i, i + 1.0) for i, kind in enumerate(KINDS)])

# name: (how it is drawn, its width in px, what a screen reader has to say)
FIGURES: dict[str, tuple[Callable[[], str], int, str]] = {
    "a timeline": (
        lambda: paired_timelines({"a run": TIMELINE}, 10.0, TIMELINE.actors), 720,
        "a run: generator 0 80%, trainer 50%",
    ),
    "every kind": (
        lambda: paired_timelines({"a run": ALL_KINDS}, float(len(KINDS)), ["a"]), 720, "a 90%",
    ),
    "outcomes": (lambda: outcome_chart(REPORTS), 720, "simple: success 75%, wrong_format 25%"),
    "pass at k": (
        lambda: pass_chart({"before": {1: 0.25, 64: 1.0}, "after": {1: 0.9, 64: 1.0}}), 720,
        "before: 25% at k 1, 100% at k 64; after: 90% at k 1",
    ),
    "mass": (
        lambda: mass_chart([{"So": 0.6, "[ANSWER": 0.4}, {"[ANSWER": 0.9}]), 720, "[ANSWER goes from 40% to 90%, So from 60% to 0%",
    ),
    "accuracies": (lambda: accuracy_chart(REPORTS), 720, "simple 75%"),
    "a batch": (
        lambda: batch_chart([3.0, 1.0, 1.0], [(0, 0.0), (1, 0.0), (1, 1.0)]), 720, "3 episodes on 2 slots; the last ends after 3.00 s",
    ),
    "paired timelines": (
        lambda: paired_timelines({"sync": SYNC, "async": ASYNC}, 2.0, ["generator", "trainer"]), 720,
        "sync: generator 50%, trainer 50%; async: generator 75%, trainer 100%",
    ),
    "runs of other seeds": (
        lambda: seeds_chart([0.2, 0.25], [0.8, 0.9]), 720, "before training 20% to 25%; after training 80% to 90%",
    ),
    "ratios": (
        lambda: ratio_chart({"lag 0": [1.0, 1.0], "lag 8": [0.001, 1.0, 700.0]}, {"lag 0": 1.0, "lag 8": 0.25}), 720,
        "lag 0: from 1 to 1, effective sample size 100%; lag 8: from 0.001 to 7e+02, effective sample size 25%",
    ),
    "pushes": (
        lambda: push_chart([0.5, 1.5], {"plain": ([1.0, 1.0], [1.0, 1.0]), "clipped": ([0.5, 0.0], [0.0, 1.5])}), 720,
        "clipped: good token 0.5 at ratio 0.5, 0 at ratio 1.5, bad token 0 and 1.5",
    ),
    "seconds": (
        lambda: seconds_chart({"lag 0": (40.0, [0.9, 1.0]), "lag 4": (26.0, [0.2, 0.4])}), 720,
        "lag 0: 95% after 40.0 s; lag 4: 30% after 26.0 s",
    ),
    "runs on old data": (
        lambda: runs_chart({"plain": [(0, 0.4), (4, 0.1)]}, 0.35), 720,
        "plain 40% at step 0, 10% at step 4",
    ),
    "grouped bars": (
        lambda: grouped_bars({"message": [0.1, 2.0], "shared memory": [0.01, 0.02]}, ("free", "busy"), "Waits", "seconds", line=2.0),
        720, "Waits: seconds; message: free 0.10, busy 2.00; shared memory: free 0.01, busy 0.02",
    ),
    "bytes": (
        lambda: grouped_bars({"FSDP 4 → TP 2": (1e6, 7e6)}, ("by formula", "sent"), "Bytes", "MB", 1e6), 720,
        "FSDP 4 → TP 2: by formula 1.00, sent 7.00",
    ),
    "copies": (
        lambda: copies_chart([[7, 7, 8, 9], [9, 9, 9, 9]]), 720, "copy 1: versions 7, 8, 9; copy 2: versions 9",
    ),
    "loss": (
        lambda: loss_chart({"one process": [0.9, 0.1, 0.01], "two ranks, `ddp_step`": [0.8, 0.1, 0.02]}, "loss"), 720,
        "one process ends at 0.01; two ranks, ddp_step ends at 0.02",
    ),
    "fates": (
        lambda: fates_chart({"killed": [(0.1, "idle", "wait"), (0.9, "dead", "replace")], "calm": [(0.5, "busy", "wait")]}), 720,
        "killed: dead, replace after 0.9 s. calm: never replaced",
    ),
    "fits": (
        lambda: fits_chart([0.0, 1.0, 2.0], [0.0, 1.0, 0.0], {"calm": [0.1, 0.9, 0.0]}, 2), 720, "grey the target; calm",
    ),
    "a budget": (
        lambda: parts_chart({"trainer": {"weights": 2e6, "libraries": 1e6}}, "Memory", {"trainer": 4e6}, room=5e6), 720,
        "trainer: 3 MB, weights 2, rest 1, measured 4; the line is at 5 MB",
    ),
    "two lives": (
        lambda: lives_chart({"waits": Lives([-1.0, 1.0], [2.0, 3.0], 0.0, 1.0), "hurries": Lives([-1.0, 1.0], [0.5, 3.0], 0.0, 1.0)}), 720,
        "waits: the first trainer wrote until 1.00 s, its successor from 2.00 s, never both; "
        "hurries: the first trainer wrote until 1.00 s, its successor from 0.50 s, both lived for 0.50 s",
    ),
    "a lost host": (
        lambda: lost_host_chart(LostHost([1.0, 2.0, 6.0], 2.5, [3.5], [5.0])), 720,
        "3 steps in 6.0 s; the host was killed at 2.5 s, noticed at 3.5 s, replaced at 5.0 s; "
        "the longest step took 4.0 s",
    ),
}  # fmt: skip
DRAWINGS = sorted(path.name for path in (Path(figures.__file__).parent / "drawings").iterdir())
PALETTE = {
    colour for name, colour in vars(style).items() if name.isupper() and isinstance(colour, str)
}
every_figure = pytest.mark.parametrize(
    "figure", [figure for figure, *_ in FIGURES.values()], ids=FIGURES
)


@cache
def drawn(figure: Callable[[], str]) -> str:
    return figure()


@pytest.mark.parametrize(("figure", "width", "said"), FIGURES.values(), ids=FIGURES)
def test_a_figure_is_one_svg_element_with_a_role_a_title_and_a_label_that_says_its_numbers(
    figure, width, said
):
    svg = drawn(figure)
    root = ElementTree.fromstring(svg)
    assert svg.startswith("<svg ")
    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    assert root.get("viewBox").startswith(f"0 0 {width} ")
    assert root.find(f"{SVG}title").text in root.get("aria-label")
    assert said in root.get("aria-label")


@every_figure
def test_a_figure_takes_the_colour_of_the_text_around_it_and_has_no_background(figure):
    svg = drawn(figure)
    root = ElementTree.fromstring(svg)
    assert root.get("fill") == "currentColor"
    assert not re.search(r"#000000\b|#000\b|\bblack\b|#ffffff\b|#fff\b|\bwhite\b", svg)
    background = next(root.iter(f"{SVG}path"))
    assert "fill: none" in background.get("style")


@every_figure
def test_the_style_rules_of_a_figure_never_reach_the_page_that_it_stands_in(figure):
    (style,) = ElementTree.fromstring(drawn(figure)).iter(f"{SVG}style")
    selectors = re.findall(r"([^{}]+)\{", re.sub(r"@media \([^)]*\)\{", "", style.text))
    assert set(selectors) == {"svg:root"}
    assert "prefers-color-scheme:dark" in style.text


@every_figure
def test_every_id_is_there_once_and_referred_to(figure):
    svg = drawn(figure)
    ids = re.findall(r'\bid="([^"]+)"', svg)
    assert sorted(ids) == sorted(set(re.findall(r'(?:href="|url\()#([^")]+)', svg)))


@every_figure
def test_equal_data_give_equal_bytes_whatever_the_readers_own_matplotlib_style_which_is_left_alone(
    figure,
):
    plain = drawn(figure)
    with matplotlib.rc_context({"text.color": "white", "axes.edgecolor": "white", "font.size": 30}):
        assert figure() == plain
        assert matplotlib.rcParams["font.size"] == 30


def test_every_run_of_a_chart_is_drawn_and_named():
    names = [
        f"{loss}, {what}"
        for loss in ("plain", "clipped", "masked")
        for what in ("old data", "wrong records")
    ]
    drawn_runs = runs_chart({name: [(0, 0.4), (4, 0.1 * n)] for n, name in enumerate(names)}, 0.35)
    assert [name for name in names if f">{name}<" not in drawn_runs] == []


@pytest.mark.parametrize(
    "name", ["#000000 black", ' d="0.123456"', "'DejaVu Sans'", "<b>&amp;", "$x^2$", "]]>"]
)
def test_a_name_is_shown_character_by_character(name):
    timeline = Timeline([Span(name, "train", 0.0, 1.0)])
    root = ElementTree.fromstring(paired_timelines({"a run": timeline}, 1.0, [name]))
    assert name in "".join(root.itertext()) and name in root.get("aria-label")


@pytest.mark.slow
def test_drawing_imports_no_pyplot_and_importing_imports_no_matplotlib():
    program = (
        "import sys; from zorplex_rl.course.figures import bars, lines, spans; "
        "from zorplex_rl.run import plots; "
        "assert 'matplotlib' not in sys.modules; "
        "plots.learning_curve([]); lines.seeds_chart([0.2], [0.8]); "
        "bars.copies_chart([[1, 2]]); "
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_labelled_and_has_no_colours_but_those_of_the_course_and_of_the_text_around_it(
    name,
):
    found = drawing_of(name)
    svg = found[found.index("<svg") : found.index("</svg>") + len("</svg>")]
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    assert root.find(f"{SVG}title").text in root.get("aria-label")
    assert root.get("fill") == "currentColor"
    shapes = re.sub(r"<style>.*?</style>", "", svg, flags=re.DOTALL)
    assert (
        set(
            re.findall(
                r"#[0-9a-fA-F]{3,8}\b(?!-)", re.sub(r"url\(#[^)]*\)|href=\"#[^\"]*\"", "", shapes)
            )
        )
        <= PALETTE | ({"#ffffff"} if name == "course.svg" else set())  # its numbers, on dark blue
    )
    assert not re.search(r"\b(black|white)\b", shapes)


@pytest.mark.parametrize("name", DRAWINGS)
def test_the_ids_of_a_drawing_are_its_own(name):
    ids = re.findall(r'\bid="([^"]+)"', drawing_of(name))
    assert len(set(ids)) == len(ids) and all(
        found.startswith(f"{Path(name).stem}-") for found in ids
    )


def test_every_drawing_is_on_a_page():
    root = Path(__file__).parents[3]
    drawers = ("site/frame.py", "figures/loop_drawing.py")
    sources = list((root / "notebooks").glob("*.py"))
    sources += [root / "zorplex_rl/course" / name for name in drawers]
    pages = "".join(path.read_text() for path in sources)
    assert [name for name in DRAWINGS if f'drawing_of("{name}")' not in pages] == []
