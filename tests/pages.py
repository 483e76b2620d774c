"""Pages with widgets for the browser tests: a notebook exported by marimo, or a bare page in which this process is the kernel."""

from __future__ import annotations

import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import marimo

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
LIGHT, DARK = ("#ffffff", "#1f2328"), ("#181c1a", "#e6edf3")
FRONT_END = re.compile(r"https://[^\"']*@marimo-team/frontend@[^/\"']+/dist")

HOST = """
class Model {
  constructor(index, state) { this.index = index; this.state = state; this.listeners = {}; this.changed = {}; }
  get(name) { return this.state[name]; }
  set(name, value) { this.state[name] = value; this.changed[name] = value; }
  on(event, listener) { (this.listeners[event] ??= []).push(listener); }
  off(event, listener) { this.listeners[event] = (this.listeners[event] ?? []).filter((other) => other !== listener); }
  receive(state) {
    for (const [name, value] of Object.entries(state)) {
      this.state[name] = value;
      for (const listener of this.listeners[`change:${name}`] ?? []) listener();
    }
  }
  async save_changes() { const changed = this.changed; this.changed = {}; this.receive(await window.kernel(this.index, changed)); }
}
const { widgets } = JSON.parse(document.getElementById("widgets").textContent);
window.models = [];
for (const [index, { esm, css, state }] of widgets.entries()) {
  const place = document.body.appendChild(document.createElement("main")).appendChild(document.createElement("div"));
  const root = place.attachShadow({ mode: "open" }), style = document.createElement("style"), el = document.createElement("div");
  style.textContent = css;
  root.append(style, el);
  const { default: widget } = await import(URL.createObjectURL(new Blob([esm], { type: "text/javascript" })));
  window.models.push(new Model(index, state));
  await widget.render({ model: window.models[index], el });
}
window.ready = true;
"""


def state_of(widget: Any) -> dict[str, Any]:
    """The traits that a page gets."""
    own = widget.trait_names(sync=True) if hasattr(widget, "trait_names") else []
    ignored = {"layout", "tabbable", "tooltip", "comm", "log", "keys"}
    return {name: getattr(widget, name) for name in own if not name.startswith("_") and name not in ignored}


def bare_page(*widgets: Any, dark: bool = False, static: bool = False) -> str:
    """A page that shows ``widgets`` as any host of anywidgets does: each in a shadow root, talking to ``window.kernel``."""
    data = {"widgets": [{"esm": str(w._esm), "css": str(w._css), "state": state_of(w)} for w in widgets]}
    embedded = json.dumps(data).replace("</", "<\\/")
    background, colour = DARK if dark else LIGHT
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Widgets</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>body {{ margin: 0; padding: 16px; font-family: sans-serif; background: {background}; color: {colour} }}</style></head>"
        f"<body><script>{'window.__MARIMO_STATIC__ = {}' if static else ''}</script>"
        f'<script type="application/json" id="widgets">{embedded}</script>'
        f'<script type="module">{HOST}</script></body></html>'
    )


def export(notebook: Path, page: Path) -> None:
    """Run ``notebook`` and write what marimo makes of it, with the front end's address made local."""
    command = [sys.executable, "-m", "marimo", "-q", "-y", "export", "html", notebook.name, "--no-sandbox", "-f"]
    command += ["-o", str(page.absolute()), "--", "--execute", "1"]
    done = subprocess.run(
        command, cwd=notebook.parent, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    page.write_text(FRONT_END.sub("/_static", page.read_text()))


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address under which ``folder`` is served, and marimo's front end beside it as /_static."""
    static = Path(marimo.__file__).parent / "_static"

    class Handler(http.server.SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            if path.startswith("/_static/"):
                return str(static / path.removeprefix("/_static/").split("?")[0])
            return super().translate_path(path)

        def log_message(self, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
