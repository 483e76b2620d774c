"""Find the course's own files, and copy them to a folder of the learner's.

    a clone           notebooks/ examples/ workshop/ benchmarks/ beside the package
    an installation   the same, in zorplex_rl/course/kit: pyproject.toml has the wheel put them there
                      ──► copy_course(folder) ──► folder/notebooks/05_rl_intro.py, …

A copy has the folders of a clone, with what notebooks and programs name by its place there. What is
in ``folder`` already stays as it is: it may be the learner's work.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from zorplex_rl.errors import ConfigError

PACKAGE = Path(__file__).resolve().parents[1]
IN_CLONE = (PACKAGE.parent / "notebooks" / "05_rl_intro.py").is_file()
FILES = PACKAGE.parent if IN_CLONE else PACKAGE / "course" / "kit"
"""The folder that has ``PARTS``."""
RECORDED: tuple[str, ...] = ("LOG.md", "lags.jsonl", "real_model.json", "shaped_rewards.json")
RECORDED += ("staleness.jsonl", "confirmed_20.jsonl", "laboratory.jsonl", "foretold.jsonl")
PARTS = ("notebooks", "examples", "workshop", *(f"benchmarks/{name}" for name in RECORDED))
"""What the wheel carries for the learner."""
OF_THE_PACKAGE = ("zorplex_rl/course/lesson/lesson.css", "zorplex_rl/policy/embedded")
"""The notebooks' style sheet, and the model of ``examples/my_rl.py``."""
SETTINGS = "# Opening a notebook of this folder runs it.\n[tool.marimo.runtime]\nauto_instantiate = true\n"
TEMPORARY = ("/tmp", "/var/folders")
"""Where marimo saves nothing by itself."""


def is_temporary(folder: Path) -> bool:
    """Return True if marimo saves nothing by itself in ``folder``."""
    return any(folder.is_relative_to(place) for place in (*TEMPORARY, tempfile.gettempdir()))


def copy_course(folder: Path) -> tuple[list[Path], list[Path]]:
    """Write the course to ``folder``. Returns what it wrote, and what was there and differs.

    Raises ConfigError for a folder in which marimo would not save, or that cannot be written.
    """
    folder = folder.expanduser().resolve()
    if folder == FILES or any(folder.is_relative_to(FILES / part) for part in (*PARTS, "zorplex_rl")):
        raise ConfigError(f"{str(folder)!r} is inside the course's own files; choose a folder outside of them")
    if is_temporary(folder):
        raise ConfigError(f"marimo saves nothing by itself in {str(folder)!r}, a temporary folder; choose another one")
    written, differing, contents = [], [], list(_contents())
    try:
        for name, content, mode in contents:
            target = folder / name
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
                target.chmod(mode)
                written.append(target)
            elif target.read_bytes() != content:
                differing.append(target)
    except OSError as error:
        raise ConfigError(f"{str(folder)!r} cannot be written ({error.strerror}); choose another folder") from error
    return written, differing


def _contents() -> Iterator[tuple[Path, bytes, int]]:
    """Yield the files of a copy: where it goes, its content, its mode."""
    yield Path("pyproject.toml"), SETTINGS.encode(), 0o644
    for root, part in [(FILES, part) for part in PARTS] + [(PACKAGE.parent, part) for part in OF_THE_PACKAGE]:
        for path in sorted((root / part).rglob("*")) if (root / part).is_dir() else [root / part]:
            name = path.relative_to(root)
            if path.is_file() and not any(folder.startswith(("__", ".")) for folder in name.parts):
                yield name, path.read_bytes(), 0o755 if path.suffix == ".sh" else 0o644
