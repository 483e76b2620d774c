"""Provide the bases of all widgets: their front end, and answers with or without a kernel.

    with a kernel     params ──► answer(params) ──► result        a round trip to Python for every slider move
    static page       params ──► table ───────────► result        the same answers, computed when the page was made

``params`` is a dict with one value for every slider. A table holds the answers at all positions, in
the order of nested loops over the axes. It is stored as base64 of gzipped JSON, which every browser
can unpack.

>>> both = tabulate({"slots": [2, 3], "seqlock": [False, True]}, lambda slots, seqlock: f"{slots} {seqlock}")
>>> both
{'axes': [['slots', [2, 3]], ['seqlock', [False, True]]], 'results': ['2 False', '2 True', '3 False', '3 True']}
"""

import base64
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import anywidget
import marimo as mo
import traitlets

Params = dict[str, Any]
Axes = Mapping[str, Sequence[Any]]
ASSETS = Path(__file__).parent / "assets"


class Widget(anywidget.AnyWidget):
    """Load the front end: the shared script and style, and the subclass's ``script``."""

    kind = traitlets.Unicode().tag(sync=True)
    """The name of the class: a page that holds only the state finds ``drawn`` by it."""

    @traitlets.default("kind")
    def _name_of_the_class(self) -> str:
        return type(self).__name__

    @staticmethod
    def drawn(state: Mapping[str, Any]) -> str:
        """Return ``state`` as HTML or SVG, for a page without scripts."""
        return ""

    def __init_subclass__(cls, script: str = "", **options: Any) -> None:
        if script:
            cls._esm = "\n".join((ASSETS / name).read_text() for name in ("shared.js", script))
            cls._css = (ASSETS / "shared.css").read_text()
        super().__init_subclass__(**options)


class Simulator(Widget):
    """Answer ``params`` with ``result``; subclasses implement ``answer``, ``make_table``."""

    params = traitlets.Dict().tag(sync=True)
    result = traitlets.Dict().tag(sync=True)
    controls = traitlets.Dict().tag(sync=True)
    """Data to draw the controls. Only lists keep their order: marimo sorts the keys of dicts."""
    table = traitlets.Unicode("").tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits)
        self._answer()
        self.observe(self._answer, "params")
        # An export will have no kernel.
        if mo.running_in_notebook() and "execute" in mo.cli_args():
            self.table = pack(self.make_table())

    def answer(self, params: Params) -> dict[str, Any]:
        """Return what to show for ``params``, as plain data."""
        raise NotImplementedError

    def make_table(self) -> dict[str, Any]:
        """Return the answers for every position, in the form of ``tabulate``."""
        raise NotImplementedError

    def _answer(self, change: object = None) -> None:
        self.result = self.answer(self.params) | {"params": self.params}


def tabulate(axes: Axes, answer: Callable[..., Any]) -> dict[str, Any]:
    """Compute ``answer`` at every position of ``axes``; the last axis varies fastest."""
    results = [
        answer(**dict(zip(axes, position, strict=True))) for position in product(*axes.values())
    ]
    return {"axes": [[name, list(values)] for name, values in axes.items()], "results": results}


def pack(data: Any) -> str:
    """Return ``data`` as base64 of gzipped JSON; equal data give equal text."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=9, mtime=0)).decode()
