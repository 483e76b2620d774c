"""Write a copy of a notebook in which exercises are solved, for somebody who is behind:
``.venv/bin/python workshop/catch_up.py 05``.

    notebooks/05_rl_intro.py  ──►  caught_up/05_rl_intro.py        the reader's own file stays as it is
        def idle_share(seconds):       def idle_share(seconds):
            raise NotImplementedError      return 1 - sum(seconds) / (len(seconds) * max(seconds))

``--exercises 2`` solves the first two only: the copy is where the class is, and the third is still
to do. What replaces a stub is the solution that the page shows below it.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]


def solve(notebook: Path, count: int | None = None) -> tuple[str, list[str]]:
    """Return the source of ``notebook`` with the stubs of its first ``count`` exercises replaced,
    all without it, and the names of these."""
    from zorplex_rl.course.lesson import exercise

    source = notebook.read_text(encoding="utf-8")
    functions = {node.name: node for node in ast.parse(source).body if hasattr(node, "name")}
    # In the order of the page, not in that of the checks below it.
    found = sorted(exercise.exercises(_load(notebook)), key=lambda each: functions[each[0]].lineno)[:count]
    lines = source.splitlines(keepends=True)
    for name, _, _, solution in reversed(found):
        stub_node = functions[name]
        lines[stub_node.lineno - 1 : stub_node.end_lineno] = [exercise.solution_source(name, solution) + "\n"]
    return "".join(lines), [name for name, *_ in found]


def _load(notebook: Path) -> ModuleType:
    """Import a notebook. Defines its functions and runs none of its cells."""
    spec = importlib.util.spec_from_file_location(f"notebook_{notebook.stem}", notebook)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the copy. Returns the exit code: 2 for bad arguments."""
    parser = argparse.ArgumentParser(
        prog="workshop/catch_up.py", description="Copy a notebook with its exercises solved."
    )
    parser.add_argument("notebook", help="its number, like 05")
    parser.add_argument("--exercises", type=int, metavar="N", help="solve the first N only")
    parser.add_argument("--out", type=Path, default=ROOT / "caught_up", metavar="FOLDER", help="default: caught_up")
    asked = parser.parse_args(arguments)
    found = sorted((ROOT / "notebooks").glob(f"{asked.notebook}_*.py"))
    if len(found) != 1:
        numbers = ", ".join(sorted(path.name.partition("_")[0] for path in (ROOT / "notebooks").glob("[0-9]*_*.py")))
        parser.error(f"no notebook {asked.notebook!r}; expected one of {numbers}")
    target = asked.out / found[0].name
    if target.exists():
        parser.error(
            f"{target} exists already, and may hold somebody's work; remove it, or name another folder with --out"
        )
    source, names = solve(found[0], asked.exercises)
    asked.out.mkdir(parents=True, exist_ok=True)
    target.write_text(source, encoding="utf-8")
    print(f"{target}: solved {', '.join(names) or 'nothing'}; open it: .venv/bin/marimo edit {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
