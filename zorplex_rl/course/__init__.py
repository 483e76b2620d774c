"""The course: what only notebooks and their pages use. The system never imports it."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
IN_CLONE = (PACKAGE.parent / "notebooks" / "05_rl_intro.py").is_file()
FILES = PACKAGE.parent if IN_CLONE else PACKAGE / "course" / "kit"
"""The folder with notebooks, examples, workshop and benchmarks: the clone, or within the wheel."""
