"""Open a notebook of the course: ``zorplex-rl open 05``.

    a clone           notebooks/ examples/ workshop/ benchmarks/ beside the package: opened there
    an installation   the same folders in zorplex_rl/course/kit: first copied to a folder of the learner's

Copying replaces no file: it may be the learner's work.
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
"""Where the header of a notebook takes the package from: in a clone its folder, in a copy a package index."""
SETTINGS = """\
# Opening a notebook of this folder runs it.
[tool.marimo.runtime]
auto_instantiate = true
"""


@dataclass(frozen=True)
class Open:
    """Open a notebook in marimo: that of the clone, or that of your copy of the course."""

    notebook: Annotated[str, tyro.conf.Positional] = "05"
    """Its number."""
    to: Path | None = None
    """The folder of your copy, made if it does not exist; ~/zorplex-course without a clone."""
    port: int | None = None
    """Where marimo listens; a free port if left out."""
    browser: bool = True
    """Open a browser; else marimo prints the address."""

    def run(self) -> int:
        names = sorted(path.name for path in (FILES / "notebooks").glob("[0-9]*.py"))
        name_of = {name.partition("_")[0]: name for name in names}
        if self.notebook not in name_of:
            expected = ", ".join(name_of)
            raise ConfigError(f"no notebook {self.notebook!r}; expected one of {expected}")
        notebook = f"notebooks/{name_of[self.notebook]}"
        folder = FILES
        if self.to or not IN_CLONE:
            folder = (self.to or Path("~/zorplex-course")).expanduser().resolve()
            copy_course(folder)
        print(f"{folder / notebook}; marimo saves there what you write.", flush=True)
        command = [sys.executable, "-P", "-m", "marimo", "edit", "--no-sandbox", notebook]
        if self.port is not None:
            command += ["--port", str(self.port)]
        if not self.browser:
            command.append("--headless")
        os.chdir(folder)
        os.execv(sys.executable, command)


def copy_course(folder: Path) -> None:
    """Write the course to ``folder``, except for files that exist already."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "pyproject.toml"
    if not settings.exists():
        settings.write_text(SETTINGS)
    for part in PARTS:
        copy_files(FILES, part, folder)
    for part in OF_THE_PACKAGE:
        copy_files(PACKAGE.parent, part, folder)


def copy_files(root: Path, part: str, folder: Path) -> None:
    """Copy the file ``part`` of ``root``, or all files in the folder ``part``, to ``folder``."""
    from_index = f'"zorplex-rl=={__version__}"]\n'.encode()
    for path in [root / part, *sorted((root / part).rglob("*"))]:
        name = path.relative_to(root)
        target = folder / name
        if not path.is_file() or "__" in str(name) or target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes().replace(FROM_CLONE, from_index))
        target.chmod(path.stat().st_mode)
