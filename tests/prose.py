"""The texts of a notebook as its reader meets them, and their sentences."""

from __future__ import annotations

import ast
import re
from pathlib import Path

LONGEST = 30
"""Words in a sentence."""


def texts_of(notebook: Path) -> list[str]:
    """Return the Markdown that a notebook gives to ``mo.md``, ``lesson`` and ``exercise``; every
    computed part is one ``…``."""
    shown = re.compile(r"(mo\.md|lesson\.(?!term$)\w+|exercise\.feedback)$")
    calls = [
        node
        for node in ast.walk(ast.parse(notebook.read_text()))
        if isinstance(node, ast.Call) and shown.match(ast.unparse(node.func))
    ]
    inside = {id(part) for call in calls for part in ast.walk(call) if part is not call}
    return [text for call in calls if id(call) not in inside for text in _strings(call)]


def _strings(call: ast.Call) -> list[str]:
    found, parts = [], set()
    for node in ast.walk(call):
        if isinstance(node, ast.JoinedStr):
            parts |= {id(part) for value in node.values for part in ast.walk(value)}
            found.append(
                "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "…"
                    for part in node.values
                )
            )
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts
        ):
            found.append(node.value)
    return found


def sentences(markdown: str) -> list[str]:
    """Return the sentences of a text. Code blocks and headings are none; a row of a table, an item
    of a list begin a new one.

    >>> sentences("Two, e.g. these. And: `a. b`?\\n\\n- one\\n- two 3.5 s")
    ['Two, e.g. these.', 'And: `a. b`?', 'one', 'two 3.5 s']
    """
    text = re.sub(r"```.*?```", "\n\n", markdown, flags=re.DOTALL)
    found = []
    for block in re.split(
        r"\n\s*(?:[-*]|\d+\.)\s|\n\s*\n|^\s*(?:[-*]|\d+\.)\s|\n(?=\s*\|)|\s\|\s", text
    ):
        block = " ".join(block.split()).strip("| ")
        if block and not block.startswith("#") and not re.fullmatch(r"[-|: ]+", block):
            found += re.split(
                r"(?<=[.?!])(?<!e\.g\.)(?<!i\.e\.)(?<!vs\.)[*_)\"”]*\s+(?=[`*_(\"“\[…A-Z0-9])",
                block,
            )
    return found


def too_long(text: str) -> list[str]:
    """Return the sentences with more than ``LONGEST`` words; code in a line is one word."""
    counted = ((sentence, re.sub(r"`[^`]*`", "code", sentence)) for sentence in sentences(text))
    return [
        sentence
        for sentence, plain in counted
        if len(re.findall(r"[\w…][\w…'’.,%/-]*", plain)) > LONGEST
    ]
