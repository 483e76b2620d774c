"""Write the learner's functions into a program that they keep, for the course's own ones.

program = fill_in(path, {"sample_episode": theirs, …})      the text; a sentence if their code needs what the program lacks
keep(program, kept(__file__, "my_rl.py"))                   the file, in the course's folder; an older one stays beside it
functions_of(file, "sample_episode", …)                     the sources of their functions, for another page
load_notebook(path)                                         what a notebook defines
"""

import ast
import builtins
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

from zorplex_rl.course import FILES
from zorplex_rl.course.lesson import exercise
from zorplex_rl.course.lesson.markup import quote

EXAMPLES = FILES / "examples"


def fill_in(template: Path, functions: Mapping[str, Callable[..., Any] | str]) -> str:
    """Return the program ``template`` with ``functions``, or their sources, put for its own.

    Raises ValueError with a sentence if one of them uses a name that the program does not have.
    """
    source = template.read_text(encoding="utf-8")
    lines, tree = source.splitlines(keepends=True), ast.parse(source)
    known = {name for node in tree.body for name in _defines(node)} | set(dir(builtins))
    for node in reversed(tree.body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in functions:
            given = functions[node.name]
            written = (
                given if isinstance(given, str) else exercise.solution_source(node.name, given)
            )
            parts = list(ast.walk(ast.parse(written)))
            own = {name for part in parts for name in _defines(part)} | {
                p.arg for p in parts if isinstance(p, ast.arg)
            }
            if missing := sorted(
                {part.id for part in parts if isinstance(part, ast.Name)} - own - known
            ):
                raise ValueError(
                    f"{node.name} uses {missing[0]}, which {template.name} does not have; write what it does into the function"
                )
            lines[node.lineno - 1 : node.end_lineno] = [written + "\n"]
    return "".join(lines)


def functions_of(file: Path, *names: str) -> dict[str, str]:
    """Return the source of those functions of a kept ``file``, by name; of none without a file."""
    source = file.read_text(encoding="utf-8") if file.exists() else ""
    found = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name in names
    ]
    return {
        node.name: "\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno])
        for node in found
    }


def load_notebook(path: Path) -> SimpleNamespace:
    """Return what a notebook defines. Its cells do not run."""
    return SimpleNamespace(**run_path(str(path)))


def _defines(node: ast.AST) -> set[str]:
    """Return the names that a statement defines."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    return {
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    }


def kept(notebook: str, name: str | Path) -> Path:
    """Return where readers keep what they have made on any page: ``name`` in the course's folder, which
    has that of this ``notebook`` (``__file__``). There the programs find the embedded policy."""
    return Path(notebook).resolve().parents[1] / name


def keep(program: str, file: Path) -> str:
    """Write ``program`` to ``file``, and keep another one beside it. Returns what was done."""
    try:
        if file.exists() and file.read_text(encoding="utf-8") != program:
            file.replace(file.with_stem(f"{file.stem}_before"))
        file.write_text(program, encoding="utf-8")
    except OSError as error:
        return (
            f"{quote(file)} cannot be written ({error.strerror}). Copy the text above into a file."
        )
    python = Path(sys.executable)
    python = python.relative_to(file.parent) if python.is_relative_to(file.parent) else python
    runs = f" In that folder: {quote(f'{python} {file.name}')}." if "__main__" in program else ""
    return f"Written to {quote(file)}.{runs}"
