"""What all widgets share: how their front end is put together, and how a question is answered with and without a kernel.

    with a kernel     params ──► answer(params) ──► result        a round trip to Python for every slider move
    static page       params ──► table ───────────► result        the same answers, computed when the page was made

``params`` is a dict with one value for every slider. A table holds, for one or more parts of the answer, the answers at all positions in the
order of nested loops over the axes; it travels as base64 of gzipped JSON, which every browser can unpack.

>>> both = tabulate({"slots": [2, 3], "seqlock": [False, True]}, lambda slots, seqlock: f"{slots} {seqlock}")
>>> both
{'axes': [['slots', [2, 3]], ['seqlock', [False, True]]], 'results': ['2 False', '2 True', '3 False', '3 True']}
>>> look_up(both, {"slots": 3, "seqlock": False})
'3 False'
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import anywidget
import traitlets

Params = dict[str, Any]
Axes = Mapping[str, Sequence[Any]]
ASSETS = Path(__file__).parent / "assets"


class Widget(anywidget.AnyWidget):
    """A widget whose front end is ``assets/shared.js``, ``assets/shared.css`` and the script that a subclass names as ``script``."""

    def __init_subclass__(cls, script: str = "", **options: Any) -> None:
        if script:
            cls._esm = "\n".join((ASSETS / name).read_text() for name in ("shared.js", script))
            cls._css = (ASSETS / "shared.css").read_text()
        super().__init_subclass__(**options)


class Simulator(Widget):
    """A widget that answers ``params`` with ``result``. Subclasses say how (``answer``) and for which positions (``make_table``)."""

    params = traitlets.Dict().tag(sync=True)
    result = traitlets.Dict().tag(sync=True)
    controls = traitlets.Dict().tag(sync=True)
    """What the front end needs to draw the controls. Order is kept in lists only: marimo sorts the keys of dicts."""
    table = traitlets.Unicode("").tag(sync=True)

    def __init__(self, static: bool, **traits: Any) -> None:
        super().__init__(**traits)
        self._answer()
        self.observe(self._answer, "params")
        if static:
            self.table = pack(self.make_table())

    def answer(self, params: Params) -> dict[str, Any]:
        """What is to be shown for ``params``, as plain data."""
        raise NotImplementedError

    def make_table(self) -> dict[str, Any]:
        """The answers for every position, in the form that the front end looks them up in."""
        raise NotImplementedError

    def _answer(self, change: object = None) -> None:
        self.result = self.answer(self.params) | {"params": self.params}


def tabulate(axes: Axes, answer: Callable[..., Any]) -> dict[str, Any]:
    """``answer`` at every position of ``axes``; the last axis varies fastest."""
    results = [answer(**dict(zip(axes, position, strict=True))) for position in product(*axes.values())]
    return {"axes": [[name, list(values)] for name, values in axes.items()], "results": results}


def look_up(table: dict[str, Any], params: Params) -> Any:
    """The answer in ``table`` at the position of ``params``, which may have more entries than the table has axes."""
    index = 0
    for name, values in table["axes"]:
        index = index * len(values) + values.index(params[name])
    return table["results"][index]


def pack(data: Any) -> str:
    """Base64 of gzipped JSON; equal data give equal text."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=9, mtime=0)).decode()


def unpack(packed: str) -> Any:
    """What was packed."""
    return json.loads(gzip.decompress(base64.b64decode(packed)))
