"""Read an exported page: its cells in order, their outputs, the state of its widgets, and what
cannot be published.

marimo writes the notebook (code), the session (outputs) and the widgets' messages into the page as
JSON. A cell that ran has at least one output, even if it is empty. A cell without any output was
skipped, whatever marimo's exit code says.
"""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass, field
from typing import Any

from zorplex_rl.course.site.render import folded_code, render_cell, undrawable
from zorplex_rl.errors import SiteError

TRACEBACK = "application/vnd.marimo+traceback"
MARKUP = ("text/html", "text/markdown")


@dataclass(frozen=True, slots=True)
class PageCell:
    """Hold a cell's source and results: ``outputs`` by mime type, ``console`` as printed."""

    code: str
    hidden: bool
    outputs: list[dict[str, Any]]
    console: list[dict[str, Any]]

    @property
    def data(self) -> dict[str, str]:
        """Return the outputs by mime type, without empty ones."""
        return {
            mime: value
            for output in self.outputs
            for mime, value in output.get("data", {}).items()
            if value
        }

    @property
    def markup(self) -> str:
        """Return the HTML of the output; empty if it has none."""
        return "".join(self.data.get(mime, "") for mime in MARKUP)

    @property
    def printed(self) -> str:
        """Return what the cell printed."""
        return "".join(
            entry["text"] for entry in self.console if entry.get("mimetype") == "text/plain"
        )

    @property
    def complaint(self) -> str | None:
        """Return why this cell cannot be published, or None."""
        failure = next((output for output in self.outputs if output.get("type") == "error"), None)
        if failure:
            return (
                f"failed: {failure.get('ename') or 'error'} {failure.get('evalue') or ''}".rstrip()
            )
        if any(entry.get("mimetype") == TRACEBACK for entry in self.console):
            return "printed a traceback"
        if not self.outputs:
            return "did not run"
        if "data-lesson-waiting" in self.markup:
            return "still waits for a button"
        if foreign := undrawable(self.markup) or self._foreign_mime:
            return f"puts out {foreign}, which no page without a kernel can draw; use plain HTML (zorplex_rl.course.lesson.lesson)"
        return None

    @property
    def _foreign_mime(self) -> str | None:
        return next(
            (
                m
                for m in self.data
                if m not in (*MARKUP, "text/plain") and not m.startswith("image/")
            ),
            None,
        )

    def render(self) -> str:
        """Return the cell as plain HTML; empty if it shows nothing. The code of a hidden cell is
        folded if the other cells need it."""
        code = "" if self.hidden else self.code.strip()
        images = [(mime, value) for mime, value in self.data.items() if mime.startswith("image/")]
        folded = folded_code(self.code) if self.hidden else ""
        return folded + render_cell(
            code, self.markup, self.data.get("text/plain", ""), images, self.printed
        )


@dataclass(frozen=True, slots=True)
class Lesson:
    """Hold the facts of a notebook's header and the machine that computed its page."""

    title: str
    minutes: int
    hardware: str
    goals: list[str] = field(default_factory=list)
    ran_on: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """Hold the cells of an exported page and its widgets: model id → code, state and buffers."""

    cells: list[PageCell]
    models: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, source: str) -> Page:
        """Read the page from the HTML that marimo wrote. Raises SiteError if it is not such a
        page."""
        notebook, session = (
            _embedded(source, f'"{name}": ')["cells"] for name in ("notebook", "session")
        )
        results = {cell["id"]: cell for cell in session}
        nothing: dict[str, Any] = {"outputs": [], "console": []}
        found = [(cell, results.get(cell["id"], nothing)) for cell in notebook]
        cells = [
            PageCell(c["code"], c["config"]["hide_code"], r["outputs"], r["console"])
            for c, r in found
        ]
        return cls([cell for cell in cells if cell.code.strip()], _models(source))

    @property
    def complaints(self) -> list[str]:
        """Return one sentence for each cell that cannot be published."""
        return [
            f"cell {number} ({cell.code.strip().splitlines()[0][:60]}) {cell.complaint}"
            for number, cell in enumerate(self.cells, start=1)
            if cell.complaint
        ]

    @property
    def lesson(self) -> Lesson:
        """Return the facts that ``lesson.header`` and ``lesson.ran_on`` wrote into the page. Raises
        SiteError without a header."""
        markup = "".join(cell.markup for cell in self.cells)
        facts, ran_on = (
            re.search(rf'{name}="([^"]*)"', markup) for name in ("data-lesson", "data-ran-on")
        )
        if facts is None:
            raise SiteError("the notebook has no lesson.header; begin it with one")
        return Lesson(
            **json.loads(html.unescape(facts[1])), ran_on=html.unescape(ran_on[1]) if ran_on else ""
        )


def _models(source: str) -> dict[str, dict[str, Any]]:
    """Return every widget in the state that the run left: the combined messages to its model."""
    if "modelNotifications: Object.freeze(" not in source:
        return {}
    files = _embedded(source, "files: Object.freeze(")
    models: dict[str, dict[str, Any]] = {}
    for notification in _embedded(source, "modelNotifications: Object.freeze("):
        message = notification["message"]
        if message.get("method") not in ("open", "update"):
            continue
        model = models.setdefault(notification["model_id"], {"esm": "", "state": {}, "buffers": {}})
        if spec := message.get("esm_spec"):
            model["esm"] = files.get(spec["url"], spec["url"])
        model["state"] |= message["state"]
        for path, data in zip(
            message.get("buffer_paths", []), message.get("buffers", []), strict=True
        ):
            model["buffers"][json.dumps(path)] = data
    return {name: model for name, model in models.items() if model["esm"]}


def _embedded(source: str, key: str) -> Any:
    """Parse the JSON after ``key``, which begins one of the page's lines. Raises SiteError if no
    line does."""
    start = re.search(rf"^\s*{re.escape(key)}(?=[\[{{])", source, re.MULTILINE)
    if start is None:
        raise SiteError(
            f"the page has no {key.strip()!r}; it was not written by the version of marimo that pyproject.toml names"
        )
    return json.JSONDecoder().raw_decode(source, start.end())[0]
