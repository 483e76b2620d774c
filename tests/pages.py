"""What the browser tests share: a browser, a server, and a bare page on which the test is the
kernel of a widget."""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
# Each window loads two pages of its own for the suggestions below its address bar, and keeps a process
# ready for a next page: two thirds of what a test's page costs. Of several --disable-features only
# the last counts, so those that Playwright turns off are here again.
UNSEEN = "WebUIOmniboxPopup,WebUIOmniboxAimPopup,SpareRendererForSitePerProcess"
OFF_FOR_PLAYWRIGHT = (
    "AvoidUnnecessaryBeforeUnloadCheckSync,DestroyProfileOnBrowserClose,HttpsUpgrades,HttpsFirstBalancedModeAutoEnable,"
    "LensOverlay,MediaRouter,PaintHolding,ThirdPartyStoragePartitioning,AvoidCorsURLLoaderRestartOnRedirect,"
    "OptimizationHints,NetworkTimeServiceQuerying,AimEnabled,PreconnectToSearch"
)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    f"--disable-component-update --disable-sync --disable-features={OFF_FOR_PLAYWRIGHT},{UNSEEN}"
).split()
LIGHT, DARK = ("#ffffff", "#1f2328"), ("#181c1a", "#e6edf3")

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


@contextmanager
def launched() -> Iterator[Any]:
    """A browser; skips the test where there is none. `.ci/run` installs one."""
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine; install Debian's package chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def guarded_page(browser: Any, allowed: str = "http://127.0.0.1", **options: Any) -> Iterator[Any]:
    """A page of a fresh context with ``options``. Any error on it, and any request for what does
    not begin with ``allowed``, fails the test."""
    with browser.new_context(**options) as context:
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.wrong = wrong = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "console",
            lambda message: wrong.append(message.text) if message.type == "error" else None,
        )

        def refuse_what_leaves(route: Any) -> None:
            if route.request.url.startswith((allowed, "data:", "blob:")):
                route.continue_()
            else:
                wrong.append(route.request.url)
                route.abort()

        page.route("**/*", refuse_what_leaves)
        yield page
        assert wrong == []


def state_of(widget: Any) -> dict[str, Any]:
    """The traits that a page gets."""
    own = widget.trait_names(sync=True) if hasattr(widget, "trait_names") else []
    ignored = {"layout", "tabbable", "tooltip", "comm", "log", "keys"}
    return {
        name: getattr(widget, name)
        for name in own
        if not name.startswith("_") and name not in ignored
    }


def bare_page(*widgets: Any, dark: bool = False, static: bool = False) -> str:
    """A page that shows ``widgets`` as any host of anywidgets does: each in a shadow root, talking
    to ``window.kernel``."""
    data = {
        "widgets": [{"esm": str(w._esm), "css": str(w._css), "state": state_of(w)} for w in widgets]
    }
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


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address under which ``folder`` is served."""
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder))
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
