"""Explain the terms of the course: the only source of the glossary page and ``lesson.term``.

The terms are in ``glossary.toml``. A term is there if a notebook uses it; a test holds that. Write
it as it stands in a sentence: small letters, singular.
"""

import re
import tomllib
from importlib.resources import files

GLOSSARY: dict[str, str] = tomllib.loads(
    (files("zorplex_rl.course.lesson") / "glossary.toml").read_text(encoding="utf-8")
)


def anchor(term: str) -> str:
    """Return the id of a term on the glossary page."""
    return re.sub(r"[^a-z0-9]+", "-", term.lower()).strip("-")


def entry_of(shown: str) -> str | None:
    """Return the glossary's term for a word in a text (capital letter, plural), or None.

    >>> entry_of("Meshes"), entry_of("Policy versions"), entry_of("walrus")
    ('mesh', 'policy version', None)
    """
    known = {term.lower(): term for term in GLOSSARY}
    word = " ".join(shown.lower().split())
    singular = (
        word,
        word.removesuffix("s"),
        word.removesuffix("es"),
        word.removesuffix("ies") + "y",
    )
    return next((known[form] for form in singular if form in known), None)
