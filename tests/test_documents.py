"""What README, CONTRIBUTING, docs/ and CHANGELOG say is so."""

from __future__ import annotations

import importlib.util
import re
import textwrap
from pathlib import Path

import pytest
from test_house import FLOORS

import zorplex_rl
from zorplex_rl.course.sync_and_async import compare
from zorplex_rl.simulation.setting import Setting

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
TEXTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


def test_the_first_picture_is_what_its_script_draws_and_its_words_are_the_simulator_s():
    spec = importlib.util.spec_from_file_location("side_by_side", ROOT / "docs" / "side_by_side.py")
    drawer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drawer)
    drawn, both = drawer.picture(Setting()), compare(Setting())
    assert drawer.FILE.read_text() == drawn
    assert drawer.picture(Setting(variation=0.0)) != drawn
    assert "prefers-reduced-motion" in drawn and "prefers-color-scheme" in drawn
    assert (
        f"in turns they take {both.sync.seconds:.1f} s, side by side {both.asynchronous.seconds:.1f} s]"
        in README
    )


def test_the_loop_in_the_readme_is_that_of_the_one_file():
    (shown,) = re.findall(r"```python\n(episodes = .*?)```", README, re.DOTALL)
    assert textwrap.indent(shown, " " * 8) in (ROOT / "examples" / "my_rl.py").read_text()


def test_the_record_in_the_readme_is_the_least_time_of_the_newest_table_of_records():
    tables = (ROOT / "speedrun" / "RECORDS.md").read_text().split("\n## ")
    found = (re.findall(r"^\| [\d-]+ \| `(\w+)` \| ([\d.]+) \|", table, re.M) for table in tables)
    rows = next(filter(None, found))
    entry, seconds = min(rows, key=lambda row: float(row[1]))
    assert f"**{seconds} s** on two cores, by\n[`{entry}`](speedrun/entries/{entry}.py)" in README


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.name)
def test_every_file_that_is_linked_or_named_is_there(text):
    links = re.findall(r"\]\((?!http|#)([^)#\s]+)", text.read_text())
    assert [link for link in links if not (text.parent / link).exists()] == []
    folders = [ROOT, ROOT / "zorplex_rl", ROOT / "tests", *(ROOT / "zorplex_rl").iterdir()]
    names = (
        re.findall(r"`((?:[\w.]+/)*\w+\.(?:py|toml|md|cff|svg))`", text.read_text())
        if text.name not in ("README.md", "RUNS.md")
        else ()
    )
    named = [name for name in names if "NN" not in name]
    assert [name for name in named if not any((folder / name).exists() for folder in folders)] == []


def test_the_drawing_of_the_house_has_its_floors_in_their_order():
    drawn = (
        (ROOT / "docs" / "ARCHITECTURE.md")
        .read_text()
        .split("## The house")[1]
        .split("| folder")[0]
    )
    rooms = [
        name for floor in FLOORS for name in floor if not name.startswith("__") and name != "errors"
    ]
    places = [re.search(rf"│ (?:\w+\.py  )*{room}(/|\.py)", drawn) for room in rooms]
    assert all(places), rooms
    # Those of one floor stand side by side, in any order.
    heights = [drawn[: place.start()].count("\n") for place in places]
    assert heights == sorted(heights)


def test_the_version_is_said_everywhere_alike_and_is_the_newest_of_the_changelog():
    newest = re.search(
        r"^## (\S+) · (next|\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert newest[1] == cited[1] == zorplex_rl.__version__
