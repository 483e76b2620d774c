"""Open a notebook of the course: ``zorplex-rl open 05``.

    a clone           notebooks/ examples/ workshop/ benchmarks/ beside the package: opened there
    an installation   the same, in zorplex_rl/course/kit: copied to a folder of the learner's first

In the copy, what is there already stays as it is: it may be the learner's work.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from zorplex_rl import __version__
from zorplex_rl.course import FILES, IN_CLONE, PACKAGE
from zorplex_rl.errors import ConfigError

PARTS = ("notebooks", "examples", "workshop", "benchmarks")
OF_THE_PACKAGE = ("zorplex_rl/course/lesson/lesson.css", "zorplex_rl/policy/embedded")
"""The notebooks' style sheet, and the model of ``examples/my_rl.py``."""
FROM_CLONE = b'"zorplex-rl"]\n# tool.uv.sources.zorplex-rl = { path = "..", editable = true }\n'
"""Where a notebook of the clone has the package from, in its header; a copy's has it from a package index."""
SETTINGS = (
    "# Opening a notebook of this folder runs it.\n[tool.marimo.runtime]\nauto_instantiate = true\n"
)


@dataclass(frozen=True)
class Open:
    """Open a notebook in marimo: the clone's own, or that of your copy of the course."""

    notebook: Annotated[str, tyro.conf.Positional] = "05"
    """Its number."""
    to: Path | None = None
    """The folder of your copy, made if it is not there; ~/zorplex-course without a clone."""
    port: int | None = None
    """Where marimo listens; a free port if left out."""
    browser: bool = True
    """Open a browser; else marimo prints the address."""

    def run(self) -> int:
        there = {
            path.name.partition("_")[0]: path.name
            for path in sorted((FILES / "notebooks").glob("[0-9]*.py"))
        }
        if self.notebook not in there:
            raise ConfigError(f"no notebook {self.notebook!r}; expected one of {', '.join(there)}")
        notebook = f"notebooks/{there[self.notebook]}"
        folder = FILES
        if self.to or not IN_CLONE:
            folder = (self.to or Path("~/zorplex-course")).expanduser().resolve()
            copy_course(folder)
        print(f"{folder / notebook}; marimo saves there what you write.", flush=True)
        flags = ["--port", str(self.port)] * (self.port is not None) + ["--headless"] * (
            not self.browser
        )
        os.chdir(folder)
        os.execv(
            sys.executable,
            [sys.executable, "-P", "-m", "marimo", "edit", "--no-sandbox", notebook, *flags],
        )


def copy_course(folder: Path) -> None:
    """Write the course to ``folder``, but nothing that is there already."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "pyproject.toml").exists():
        (folder / "pyproject.toml").write_text(SETTINGS)
    for root, part in [(FILES, part) for part in PARTS] + [
        (PACKAGE.parent, part) for part in OF_THE_PACKAGE
    ]:
        for path in sorted((root / part).rglob("*")) if (root / part).is_dir() else [root / part]:
            target = folder / path.relative_to(root)
            if path.is_file() and "__" not in str(path.relative_to(root)) and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                from_index = f'"zorplex-rl=={__version__}"]\n'.encode()
                target.write_bytes(path.read_bytes().replace(FROM_CLONE, from_index))
                target.chmod(path.stat().st_mode)
