"""Estimate how many minutes a notebook takes: reading, exercises and waiting, by one rule for the whole course.

    python workshop/minutes.py              one line for each notebook
    python workshop/minutes.py 05 06        only these

The rule: prose at 200 words a minute, visible code at 15 lines a minute, the exercises' own minutes, and the seconds of all cells as the site's
build measured them (``workshop/notebook_seconds.json``). A test holds every header within 20 % of it, and every notebook within 45 minutes.

Nothing is imported or run: the rule reads the source.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

WORDS_PER_MINUTE = 200
LINES_PER_MINUTE = 15
HERE = Path(__file__).resolve().parent
NOTEBOOKS = HERE.parent / "notebooks"
RECORDED = HERE / "notebook_seconds.json"


@dataclass(frozen=True, slots=True)
class Estimate:
    """Hold what a notebook asks of its reader."""

    words: int
    lines: int
    exercises: int
    """Minutes, as the exercises state them."""
    seconds: float | None
    """Of all cells, measured; None if they are not recorded."""
    stated: int
    """Minutes in the header."""

    @property
    def minutes(self) -> float:
        """Return the minutes that the rule gives; without measured seconds, waiting is left out."""
        reading = self.words / WORDS_PER_MINUTE + self.lines / LINES_PER_MINUTE
        return reading + self.exercises + (self.seconds or 0) / 60


def estimate(notebook: Path, recorded: Path = RECORDED) -> Estimate:
    """Read a notebook's source and the recorded seconds of its cells."""
    source = notebook.read_text(encoding="utf-8")
    tree = ast.parse(source)
    seconds = json.loads(recorded.read_text(encoding="utf-8"))["seconds"] if recorded.is_file() else {}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    stated = next(_number(call, "minutes") for call in calls if ast.unparse(call.func) == "lesson.header")
    exercises = sum(_number(call, "minutes") for call in calls if ast.unparse(call.func) == "exercise.feedback")
    exercises = exercises or sum(map(int, re.findall(r"### Exercise.*\((\d+) minutes?\)", source)))
    return Estimate(words_of(tree), visible_lines(tree), exercises, seconds.get(notebook.stem), stated)


def words_of(tree: ast.Module) -> int:
    """Count the words that a reader sees: texts given to ``mo.md`` and ``lesson``, without those that ``lesson.folded`` folds."""
    shown = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and re.match(r"mo\.md$|lesson\.(?!term$|folded$)\w+$", ast.unparse(node.func))
    ]
    inner = {id(part) for call in shown for part in ast.walk(call) if part is not call and part in shown}
    return _count([text for call in shown if id(call) not in inner for text in _texts(call)])


def visible_lines(tree: ast.Module) -> int:
    """Count the lines of code that the page shows: those of cells without ``hide_code``; no blank lines, no comments."""
    count = 0
    for node in tree.body:
        decorators = [ast.unparse(found) for found in getattr(node, "decorator_list", [])]
        if not any(found.startswith("app.") for found in decorators) or any(
            "hide_code=True" in found for found in decorators
        ):
            continue
        # Of a cell the page shows the body, without the return that marimo writes.
        of_a_cell, node.decorator_list = decorators[0].startswith("app.cell"), []
        parts = [part for part in node.body if not isinstance(part, ast.Return)] if of_a_cell else [node]
        count += sum(len(ast.unparse(part).splitlines()) for part in parts)
    return count


def _texts(node: ast.AST) -> list[str]:
    """Return the strings that a page shows of ``node``: of two alternatives the longer one, of a computed part its texts or one word."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.IfExp):
        return max(_texts(node.body), _texts(node.orelse), key=_count)
    if isinstance(node, ast.FormattedValue):
        return _texts(node.value) or ["…"]
    if isinstance(node, (ast.Subscript, ast.Compare)):
        return []
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "lesson.folded":
        return []
    found = [text for part in ast.iter_child_nodes(node) for text in _texts(part)]
    return ["".join(found)] if isinstance(node, ast.JoinedStr) else found


def _count(texts: list[str]) -> int:
    return sum(len(re.findall(r"[A-Za-z0-9…]+(?:[-'’.][A-Za-z0-9]+)*", text)) for text in texts)


def _number(call: ast.Call, name: str) -> int:
    return next((int(ast.literal_eval(key.value)) for key in call.keywords if key.arg == name), 0)


def main(wanted: list[str]) -> None:
    """Print one line for each notebook whose name begins with one of ``wanted``."""
    print(f"{'notebook':<24} words  lines  exercises  cells     rule  stated")
    for notebook in sorted(NOTEBOOKS.glob("[0-9]*.py")):
        if wanted and not notebook.name.startswith(tuple(wanted)):
            continue
        found = estimate(notebook)
        cells = f"{found.seconds:.0f} s" if found.seconds is not None else "unknown"
        asked = f"{found.words:>5}  {found.lines:>5}  {found.exercises:>5} min  {cells:>7}"
        print(f"{notebook.stem:<24} {asked} {found.minutes:>4.0f} min  {found.stated} min")


if __name__ == "__main__":
    main(sys.argv[1:])
