"""Estimate how many minutes a notebook takes, by one rule for the whole course: what a reader does,
added up.

    python workshop/minutes.py              one line for each notebook
    python workshop/minutes.py 05 06        only these

    reading         120 words a minute; a computed result that is unfolded is read, too
    code            20 visible lines a minute
    figures         1 minute for each figure and each table
    predictions     1 minute each, with the result
    writing         3.5 minutes for each exercise, and 1 for each 23 tokens of its solution
    waiting         the seconds of all cells as the site's build measured them (``workshop/notebook_seconds.json``)

The rates fit two careful readings of eight notebooks (``READINGS``): in the mean the rule gives
0.99 of the minutes that the readers took, for seven of the eight within a quarter, for 01 1.4 of
them. A token is a name, an operator or a literal, so air in a solution costs no minutes. A test
holds every header within 20 % of the rule, and every notebook within 50 minutes.

Nothing is imported or run: the rule reads the source.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from dataclasses import dataclass
from pathlib import Path

WORDS_PER_MINUTE = 120
LINES_PER_MINUTE = 20
MINUTES_PER_EXERCISE = 3.5
TOKENS_PER_MINUTE = 23
READINGS = {"01": 50, "05": 75, "06": 80, "07": 75, "07b": 50, "08": 100, "09": 60, "10": 120}
"""Minutes that two readers took for the notebooks as they stood at commit cad0804, with every
result unfolded."""
HERE = Path(__file__).resolve().parent
NOTEBOOKS = HERE.parent / "notebooks"
RECORDED = HERE / "notebook_seconds.json"


@dataclass(frozen=True, slots=True)
class Estimate:
    """Hold what a notebook asks of its reader."""

    words: int
    lines: int
    """Of code that the page shows."""
    figures: int
    """Figures and tables."""
    predictions: int
    exercises: int
    written: int
    """Tokens that the reader writes: those of the solutions."""
    seconds: float | None
    """Of all cells, measured; None if they are not recorded."""
    stated: int
    """Minutes in the header."""

    @property
    def minutes(self) -> float:
        """Return the minutes that the rule gives; without measured seconds, waiting is left out."""
        reading = (
            self.words / WORDS_PER_MINUTE
            + self.lines / LINES_PER_MINUTE
            + self.figures
            + self.predictions
        )
        writing = MINUTES_PER_EXERCISE * self.exercises + self.written / TOKENS_PER_MINUTE
        return reading + writing + (self.seconds or 0) / 60


def estimate(notebook: Path, recorded: Path = RECORDED) -> Estimate:
    """Read a notebook's source and the recorded seconds of its cells."""
    tree = ast.parse(notebook.read_text(encoding="utf-8"))
    seconds = (
        json.loads(recorded.read_text(encoding="utf-8"))["seconds"] if recorded.is_file() else {}
    )
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [ast.unparse(call.func) for call in calls]
    return Estimate(
        words=words_of(tree),
        lines=visible_lines(tree),
        figures=names.count("lesson.figure") + names.count("lesson.table"),
        predictions=names.count("lesson.predict"),
        exercises=names.count("exercise.feedback"),
        written=sum(_tokens_of(solution.body) for solution in solutions_of(tree)),
        seconds=seconds.get(notebook.stem),
        stated=next(
            (
                _number(call, "minutes")
                for call, name in zip(calls, names, strict=True)
                if name == "lesson.header"
            ),
            0,
        ),
    )


def words_of(tree: ast.Module) -> int:
    """Count the words that a reader sees: texts given to ``mo.md`` and ``lesson``, without those
    that ``lesson.folded`` folds."""
    shown = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and re.match(r"mo\.md$|lesson\.(?!term$|folded$)\w+$", ast.unparse(node.func))
    ]
    inner = {
        id(part) for call in shown for part in ast.walk(call) if part is not call and part in shown
    }
    return _count([text for call in shown if id(call) not in inner for text in _texts(call)])


def visible_lines(tree: ast.Module) -> int:
    """Count the lines of code that the page shows: those of cells without ``hide_code``; no blank
    lines, no comments."""
    return sum(_lines_of(parts) for parts, hidden in _cells(tree) if not hidden)


def solutions_of(tree: ast.Module) -> list[ast.FunctionDef]:
    """Return the solutions of the page: what its ``Solutions`` has besides checks."""
    held = [
        part for node in tree.body if getattr(node, "name", "") == "Solutions" for part in node.body
    ]
    return [part for part in held if hasattr(part, "name") and not part.name.startswith("check_")]


def _cells(tree: ast.Module) -> list[tuple[list[ast.stmt], bool]]:
    """Return the statements of every cell, without the return that marimo writes, and whether it
    hides them."""
    cells: list[tuple[list[ast.stmt], bool]] = []
    for node in tree.body:
        if isinstance(node, ast.With):
            cells.append((node.body, "hide_code=True" in ast.unparse(node.items[0])))
            continue
        decorators = [ast.unparse(found) for found in getattr(node, "decorator_list", [])]
        if not any(found.startswith("app.") for found in decorators):
            continue
        hidden = any("hide_code=True" in found for found in decorators)
        if decorators[0].startswith("app.cell"):
            cells.append(([part for part in node.body if not isinstance(part, ast.Return)], hidden))
        else:
            cells.append(([node], hidden))
    return cells


def _lines_of(parts: list[ast.stmt]) -> int:
    """Count the lines of code as ``ast.unparse`` writes them: however it is wrapped, a statement
    counts the same; no docstrings."""
    return len([line for line in _bare(parts).splitlines() if line.strip()])


def _tokens_of(parts: list[ast.stmt]) -> int:
    """Count the names, operators and literals of ``parts``: no docstrings, no comments."""
    kinds = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
    tokens = tokenize.generate_tokens(io.StringIO(_bare(parts)).readline)
    return sum(token.type in kinds for token in tokens)


def _bare(parts: list[ast.stmt]) -> str:
    """Return the source of ``parts`` without docstrings and marimo's decorators."""
    tree = ast.parse("\n".join(map(ast.unparse, parts)))
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in ast.walk(tree):
        if isinstance(node, definitions):
            node.decorator_list = [
                part for part in node.decorator_list if not ast.unparse(part).startswith("app.")
            ]
        if isinstance(node, (ast.Module, *definitions)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Expr(ast.Constant(...))]
    return ast.unparse(tree)


def _texts(node: ast.AST) -> list[str]:
    """Return the strings that a page shows of ``node``: of two alternatives the longer one, of a
    computed part its texts or one word."""
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
    print(
        f"{'notebook':<24} words figures predict exercises to write  cells     rule  stated   code: shown file"
    )
    for notebook in sorted(NOTEBOOKS.glob("[0-9]*.py")):
        if wanted and not notebook.name.startswith(tuple(wanted)):
            continue
        found = estimate(notebook)
        cells = f"{found.seconds:.0f} s" if found.seconds is not None else "unknown"
        asked = f"{found.words:>5} {found.figures:>7} {found.predictions:>7} {found.exercises:>9} {found.written:>8} {cells:>7}"
        long = len(notebook.read_text(encoding="utf-8").splitlines())
        code = f"{found.lines:>11} {long:>4}"
        print(f"{notebook.stem:<24} {asked} {found.minutes:>4.0f} min {found.stated:>3} min {code}")


if __name__ == "__main__":
    main(sys.argv[1:])
