"""Draw what the notebooks show: plain data in, SVG or HTML out."""

from importlib.resources import files


def drawing_of(name: str) -> str:
    """Return the text of ``drawings/NAME``, SVG or HTML: a drawing without data."""
    return (files("zorplex_rl.course.figures") / "drawings" / name).read_text(encoding="utf-8")
