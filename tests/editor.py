"""Work through a notebook in `marimo edit` as its reader does: press buttons, type into cells, look for
errors.

    with opened(copied(folder), "01_actors", browser) as editor:
        editor.press_all()                     every button of lesson.start_button, from top to bottom
        editor.write("Summer", "class Summer…")    into the cell that defines this name, and run it
        assert editor.errors() == []
    assert editor.left() == set()              processes that outlived the server

The server works on a copy of ``notebooks/``, because marimo saves what is typed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from marimo._ast.load import load_app

ROOT = Path(__file__).resolve().parents[1]
RUNNING = '[data-status="running"], [data-status="queued"]'
LONGEST = 900.0
"""Seconds until what a cell does counts as stuck."""
QUIET = 1.5
"""Seconds without a running cell after which a page counts as idle."""
MARK = "ZORPLEX_EDITOR"
"""The variable that all processes of one server have in their environment."""


def copied(folder: Path, notebooks: Path = ROOT / "notebooks") -> Path:
    """Copy the notebooks beside what they find by its place: style sheet, settings, records. Returns the
    folder of the copy."""
    for name in ("zorplex_rl", "pyproject.toml", "examples", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    return Path(
        shutil.copytree(notebooks, folder / "notebooks", ignore=shutil.ignore_patterns("__*__"))
    )


@contextmanager
def opened(notebooks: Path, name: str, browser: Any, **options: Any) -> Iterator[Editor]:
    """Serve ``notebooks``, and open one of them on a page of ``browser``; ends the server afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mark = uuid.uuid4().hex
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "notebooks" / "answers")))
    command = "edit --headless --no-token --skip-update-check --port"
    with (notebooks.parent / "server.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "marimo", *command.split(), str(port)],
            cwd=notebooks.parent,
            env=os.environ | {MARK: mark, "PYTHONPATH": path},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    with browser.new_context(viewport={"width": 1400, "height": 1000}, **options) as context:
        try:
            _wait_for_port(port, server)
            page = context.new_page()
            page.set_default_timeout(120_000)
            editor = Editor(page, notebooks / f"{name}.py", mark)
            page.goto(f"http://127.0.0.1:{port}/?file={notebooks.name}/{name}.py")
            page.locator(".marimo-cell").first.wait_for()
            editor.wait()
            yield editor
        finally:
            context.close()
            # As Ctrl-C in a terminal, twice: marimo asks whether it should stop.
            server.send_signal(signal.SIGTERM)
            server.wait(60)


def _wait_for_port(port: int, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError("marimo does not answer")


class Editor:
    """The page of one notebook in a browser."""

    def __init__(self, page: Any, notebook: Path, mark: str) -> None:
        self.page, self.notebook, self.mark = page, notebook, mark
        self.failures: list[str] = []
        page.on("pageerror", lambda error: self.failures.append(f"page: {error}"))
        cells = load_app(notebook)._cell_manager.cell_data()
        self.codes = [data.code for data in cells]

    def wait(self, seconds: float = LONGEST) -> None:
        """Return when no cell has been running or queued for a while."""
        until, quiet_since = time.monotonic() + seconds, None
        while quiet_since is None or time.monotonic() - quiet_since < QUIET:
            if time.monotonic() > until:
                raise TimeoutError(f"cells still run after {seconds:.0f} s")
            busy = self.page.locator(RUNNING).count() > 0
            quiet_since = None if busy else quiet_since or time.monotonic()
            self.page.wait_for_timeout(100)

    def unfold(self) -> None:
        """Show the results that wait for a prediction."""
        for switch in self.page.locator(".lesson-unfold").all():
            switch.check()

    def press_all(self) -> dict[str, float]:
        """Press every button that starts something, also those that appear then. Returns the seconds of each."""
        seconds: dict[str, float] = {}
        while waiting := [
            button for button in self._buttons() if button.inner_text().strip() not in seconds
        ]:
            label, begun = waiting[0].inner_text().strip(), time.monotonic()
            waiting[0].scroll_into_view_if_needed()
            waiting[0].click()
            self.page.wait_for_timeout(300)
            self.wait()
            seconds[label] = time.monotonic() - begun
        return seconds

    def _buttons(self) -> list[Any]:
        return self.page.locator("marimo-button button").all()

    def write(self, name: str, source: str) -> None:
        """Put ``source`` into the cell that defines ``name``, by keyboard, and run it."""
        defines = re.compile(rf"^(?:async )?(?:def|class) {name}\b", re.MULTILINE)
        (place,) = (number for number, code in enumerate(self.codes) if defines.search(code))
        cell = self.page.locator(".marimo-cell").nth(place)
        cell.scroll_into_view_if_needed()
        text = cell.locator(".cm-content")
        text.click()
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.keyboard.insert_text(source)
        # Only what is in view has text.
        last = source.strip().splitlines()[-1].strip()
        text.filter(has_text=last).wait_for()
        self.page.keyboard.press("ControlOrMeta+Enter")
        self.page.wait_for_timeout(300)
        self.wait()

    def errors(self) -> list[str]:
        """Return the code and the error of every red cell, and what went wrong in the page's own scripts."""
        found = []
        for place, cell in enumerate(self.page.locator(".marimo-cell").all()):
            if "has-error" in cell.get_attribute("class"):
                said = cell.locator(".output-area").inner_text()
                found.append(f"{self.codes[place][:60]!r}: {' '.join(said.split())[-200:]}")
        return found + self.failures

    def text(self) -> str:
        """Return what the cells show."""
        return " ".join(" ".join(self.page.locator(".output-area").all_inner_texts()).split())

    def left(self, seconds: float = 30.0) -> set[int]:
        """Return the processes of this server that are still there, ``seconds`` after its end."""
        until = time.monotonic() + seconds
        while (found := set(self._processes())) and time.monotonic() < until:
            time.sleep(0.3)
        return found

    def _processes(self) -> Iterator[int]:
        for process in psutil.process_iter():
            try:
                if (
                    process.environ().get(MARK) == self.mark
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    yield process.pid
            except psutil.Error:
                continue
