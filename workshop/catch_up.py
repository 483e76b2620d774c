"""Write a copy of a notebook in which exercises are solved, for somebody who is behind:
``.venv/bin/python workshop/catch_up.py 05``.

    notebooks/05_rl_intro.py  ──►  caught_up/05_rl_intro.py        the reader's own file stays as it is
        def idle_share(seconds):       def idle_share(seconds):
            raise NotImplementedError      return 1 - sum(seconds) / (len(seconds) * max(seconds))

``--exercises 2`` solves the first two only: the copy is where the class is, and the third is still
to do. What replaces a stub is the solution that the page shows below it.

``--report FOLDER`` fills in a progress sheet: which exercises pass in the notebooks of a learner, or
of each learner who has a folder in FOLDER. The checks are the course's own. Each notebook is
imported in a process of its own, for a limited time: it is their code that runs.

    ada/notebooks/05_rl_intro.py ──►  | ada | 05 | 2 of 3 | sample_episode, policy_gradient | my_loss: … |
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def solve(notebook: Path, count: int | None = None) -> tuple[str, list[str]]:
    """Return the source of ``notebook`` with the stubs of its first ``count`` exercises replaced,
    all without it, and the names of these."""
    from zorplex_rl.course.lesson import exercise

    source = notebook.read_text(encoding="utf-8")
    functions, found = _exercises(notebook)
    found = found[:count]
    lines = source.splitlines(keepends=True)
    for name, _, _, solution in reversed(found):
        stub_node = functions[name]
        lines[stub_node.lineno - 1 : stub_node.end_lineno] = [
            exercise.solution_source(name, solution) + "\n"
        ]
    return "".join(lines), [name for name, *_ in found]


def _exercises(notebook: Path) -> tuple[dict[str, Any], list[tuple[str, Any, Any, Any]]]:
    """Return the functions of ``notebook`` in its source, by name, and its exercises in the order
    of the page, not in that of the checks below it."""
    from zorplex_rl.course.lesson import exercise

    functions = {
        node.name: node
        for node in ast.parse(notebook.read_text("utf-8")).body
        if hasattr(node, "name")
    }
    return functions, sorted(
        exercise.exercises(_load(notebook)), key=lambda each: functions[each[0]].lineno
    )


def _load(notebook: Path, whose: str = "notebook") -> ModuleType:
    """Import a notebook. Defines its functions and runs none of its cells."""
    spec = importlib.util.spec_from_file_location(f"{whose}_{notebook.stem}", notebook)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def complaints(theirs: Path) -> dict[str, str | None]:
    """Return for each exercise of a learner's notebook, in the order of the page, what is wrong
    with it, or None if it passes. Checks and solutions are those of the course's notebook of that
    name."""
    from zorplex_rl.course.lesson import exercise

    _, found = _exercises(ROOT / "notebooks" / theirs.name)
    own = _load(theirs, "learner")
    return {
        name: exercise.complaint(check, getattr(own, name))
        if hasattr(own, name)
        else f"there is no `{name}`"
        for name, _, check, _ in found
    }


def judged(theirs: Path, seconds: float) -> dict[str, str | None]:
    """Return ``complaints`` of a notebook, from a process of its own that has ``seconds``. One that
    cannot be imported, or takes too long, has one entry: the notebook itself."""
    command = [sys.executable, str(Path(__file__).resolve()), "--judge", str(theirs)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            said, complained = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return {theirs.stem: f"not done within {seconds:g} s"}
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and whatever it has started
    try:
        # Their code may print, too: the answer is the last line.
        return json.loads(said.decode(errors="replace").splitlines()[-1])
    except (ValueError, IndexError):
        last = complained.decode(errors="replace").strip().splitlines()[-1:] or [
            "it ended without an answer"
        ]
        return {theirs.stem: f"cannot be checked: {last[0]}"}


def report(folder: Path, seconds: float) -> str:
    """Return the progress sheet (Markdown): a line for each learner and notebook. A learner is
    ``folder`` itself, if there are notebooks in it, or each of its folders."""
    course = {path.name for path in (ROOT / "notebooks").glob("[0-9]*_*.py")}

    def notebooks(learner: Path) -> list[Path]:
        return [
            path
            for depth in ("", "notebooks")
            for path in sorted((learner / depth).glob("*.py"))
            if path.name in course
        ]

    lines = ["| learner | notebook | pass | these | still to do |", "|---|---|---|---|---|"]
    for learner in [folder] if notebooks(folder) else sorted(folder.iterdir()):
        for theirs in notebooks(learner):
            result = judged(theirs, seconds)
            done = [name for name, wrong in result.items() if wrong is None]
            open_ = [
                _still_to_do(name, wrong) for name, wrong in result.items() if wrong is not None
            ]
            number = theirs.name.partition("_")[0]
            lines.append(
                f"| {_cell(learner.resolve().name)} | {number} | {len(done)} of {len(result)} | {', '.join(done)} | {'; '.join(open_)} |"
            )
    if len(lines) == 2:
        raise FileNotFoundError(
            f"no notebook of the course below {folder}; expected FOLDER/05_rl_intro.py or FOLDER/ada/notebooks/05_rl_intro.py"
        )
    return "\n".join(lines)


def _still_to_do(name: str, wrong: str) -> str:
    """Return an exercise and why it does not pass; one that was not begun says nothing more."""
    return name if wrong == f"`{name}` is still to be written" else f"{name}: {_cell(wrong)}"


def _cell(text: str) -> str:
    """Return ``text`` as it can stand in a table: one line, no bars."""
    return " ".join(text.split()).replace("|", "\\|")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the copy. Returns the exit code: 2 for bad arguments."""
    parser = argparse.ArgumentParser(
        prog="workshop/catch_up.py", description="Copy a notebook with its exercises solved."
    )
    parser.add_argument("notebook", nargs="?", help="its number, like 05")
    parser.add_argument("--exercises", type=int, metavar="N", help="solve the first N only")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "caught_up", metavar="FOLDER", help="default: caught_up"
    )
    parser.add_argument(
        "--report", type=Path, metavar="FOLDER", help="print which exercises learners have done"
    )
    parser.add_argument(
        "--seconds", type=float, default=180, metavar="S", help="for each notebook of a report: 180"
    )
    parser.add_argument("--judge", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.judge:
        found_wrong = complaints(asked.judge.resolve())
        print("\n" + json.dumps(found_wrong), flush=True)
        os._exit(0)  # whatever of theirs still runs
    if asked.report:
        try:
            print(report(asked.report, asked.seconds))
        except FileNotFoundError as error:
            parser.error(str(error))
        return 0
    if not asked.notebook:
        parser.error("name a notebook, like 05, or a folder of learners with --report FOLDER")
    found = sorted((ROOT / "notebooks").glob(f"{asked.notebook}_*.py"))
    if len(found) != 1:
        numbers = ", ".join(
            sorted(path.name.partition("_")[0] for path in (ROOT / "notebooks").glob("[0-9]*_*.py"))
        )
        parser.error(f"no notebook {asked.notebook!r}; expected one of {numbers}")
    target = asked.out / found[0].name
    if target.exists():
        parser.error(
            f"{target} exists already, and may hold somebody's work; remove it, or name another folder with --out"
        )
    source, names = solve(found[0], asked.exercises)
    asked.out.mkdir(parents=True, exist_ok=True)
    target.write_text(source, encoding="utf-8")
    print(
        f"{target}: solved {', '.join(names) or 'nothing'}; open it: .venv/bin/marimo edit --no-sandbox {target}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
