"""A page with the transcripts of a policy that writes HTML, in a browser: its text is seen, and
nothing in it happens.

The same notebook is looked at twice: as marimo exports it, with marimo's own front end, and as a
page of the course's site.
"""

from __future__ import annotations

import mimetypes
import re
from pathlib import Path

import marimo
import pytest
from pages import launched, served

from zorplex_rl.course.site.build import publish
from zorplex_rl.course.site.export import export
from zorplex_rl.course.site.page import Page

pytestmark = pytest.mark.slow

HOSTILE = [
    "`<img src=x onerror=struck(1)>",
    "```\n<img src=x onerror=struck(2)>\n```\n<script>struck(3)</script>",
    "</code></td></table><script>struck(4)</script><svg onload=struck(5)></svg>",
    "![picture](x) <iframe srcdoc='<script>parent.struck(6)</script>'></iframe>",
    "<div>\n\n<img src=x onerror=struck(7)>\n\n</div> &lt;b&gt;",
]
TAGS = [tag for text in HOSTILE for tag in re.findall(r"<[^`\n]*>", text)]
NOTEBOOK = (
    '''
import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="A hostile policy")

with app.setup(hide_code=True):
    from types import SimpleNamespace

    import marimo as mo

    from zorplex_rl.task.episode import Episode, Task
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.run.figure import render
    from zorplex_rl.course.figures.tokens import token_strip
    from zorplex_rl.course.widgets import LiveCurve

    texts = {texts!r}


@app.cell(hide_code=True)
def _():
    lesson.header(__file__, minutes=1, hardware="a core", goals=["read", *texts])
    return


@app.cell(hide_code=True)
def _():
    mo.vstack([lesson.table(f"What it wrote: {{text}}", [{{text: text, "in ticks": f"`{{text}}`", "quoted": lesson.quote(text)}}]) for text in texts])
    return


@app.cell(hide_code=True)
def _():
    mo.vstack([lesson.folded(f"An example: `{{text}}`", f"**{{text}}**\\n\\n```\\n{{text}}\\n```") for text in texts])
    return


@app.cell(hide_code=True)
def _():
    mo.vstack([lesson.folded("Compare with your prediction", f"It wrote\\n\\n{{lesson.fence(text)}}") for text in texts])
    return


@app.cell(hide_code=True)
def _():
    mo.vstack([lesson.predict(f"What does {{text}} mean?", text, "nothing") for text in texts])
    return


@app.cell(hide_code=True)
def _():
    mo.vstack([lesson.md(f"""
    ## It wrote

    {{text}}, or {{lesson.quote(text)}}
    """) for text in texts])
    return


@app.cell(hide_code=True)
def _():
    policy = SimpleNamespace(tokenizer=SimpleNamespace(decode=lambda tokens: texts[tokens[0]]))
    count = len(texts)
    episode = Episode(Task("simple", "?", 1, 1, "", ()), [], [*range(count)], [True] * count, [-0.5] * count, [], "eos")
    lesson.figure(token_strip(policy, episode), texts[0])
    return


@app.cell(hide_code=True)
def _():
    def draw(figure):
        figure.subplots().set_xlabel("<img src=x onerror=struck(8)>")

    lesson.figure(render(draw, 100, texts[0], texts[2]), texts[3])
    return


@app.cell(hide_code=True)
def _():
    def solution(text):
        return "<img src=x onerror=struck(9)>"

    def says(text):
        raise ValueError(text)

    mo.vstack([exercise.feedback(says, lambda attempt: attempt(text), solution) for text in texts])
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(*texts)
    return


@app.cell
def _():
    print(*texts)
    texts[0]
    return
'''.replace("{texts!r}", repr(HOSTILE))
    .replace("{{", "{")
    .replace("}}", "}")
)

STATIC = Path(marimo.__file__).parent / "_static"


@pytest.fixture(scope="module")
def folder(once) -> Path:
    """``marimo.html``, as marimo exports the notebook, and ``site/``, as a build makes it."""

    def make(folder: Path) -> None:
        folder.mkdir()
        notebook = folder / "01_hostile.py"
        notebook.write_text(NOTEBOOK)
        (folder / "marimo.html").write_text(exported := export(notebook))
        page = Page.read(exported)
        assert page.complaints == []
        publish([notebook], [page], [page.lesson], folder / "site")

    return once("hostile", make)


@pytest.fixture(scope="module")
def chromium():
    with launched() as browser:
        yield browser


@pytest.fixture
def visit(chromium, folder):
    """Opens a page of the folder and waits until it is drawn; ``page.struck`` is what a text of the
    policy has done."""
    with served(folder) as address:

        def open_page(name: str):
            page = chromium.new_page()
            page.struck = []
            page.on("dialog", lambda dialog: (page.struck.append(dialog.message), dialog.dismiss()))
            page.expose_function("struck", lambda number: page.struck.append(number))
            page.route("**/*", lambda route: answer(route, page))
            page.goto(address + name)
            page.get_by_text("read", exact=True).first.wait_for(state="attached")
            if "index" not in name:
                page.locator(".lesson-table").nth(len(HOSTILE) - 1).wait_for()
            # Whatever an element would run or load, it has done when the network rests.
            page.wait_for_load_state("networkidle")
            return page

        yield open_page
        for context in chromium.contexts:
            context.close()


def answer(route, page) -> None:
    """Gives marimo's front end from the installed package, and the page itself; notes what a text
    has asked for."""
    url = route.request.url
    if "@marimo-team/frontend@" in url:
        file = STATIC / url.partition("/dist/")[2].partition("?")[0]
        route.fulfill(path=file, content_type=mimetypes.guess_type(file.name)[0]) if file.is_file() else route.abort()
    elif url.endswith("/x"):
        page.struck.append(url)
        route.abort()
    elif url.startswith(("http://127.0.0.1", "data:", "blob:", "about:")):
        route.continue_()
    else:
        route.abort()


@pytest.mark.parametrize("name", ["marimo.html", "site/01_hostile.html", "site/index.html"])
def test_what_a_policy_wrote_is_seen_and_does_nothing(visit, name):
    page = visit(name)
    assert page.struck == []
    made = page.evaluate(
        """() => {
          const found = [];
          const walk = (root) => root.querySelectorAll("*").forEach((element) => {
            const loads = element.getAttribute("src") === "x" || element.hasAttribute("srcdoc");
            const runs = element.getAttributeNames().some((name) => name.startsWith("on"));
            if (loads || runs) found.push(element.outerHTML);
            if (element.shadowRoot) walk(element.shadowRoot);
          });
          walk(document);
          return found;
        }"""
    )
    assert made == []
    page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    seen = " ".join(page.locator("body").inner_text().split())
    for tag in TAGS:
        assert tag in seen


@pytest.mark.parametrize("name", ["marimo.html", "site/01_hostile.html"])
def test_a_quoted_text_is_seen_character_by_character(visit, name):
    page = visit(name)
    cells = page.locator(".lesson-table td:nth-child(3) code").all()
    assert [cell.inner_text() for cell in cells] == [text.replace("\n", "⏎") for text in HOSTILE]
    blocks = page.locator(".lesson-folded pre").all_text_contents()
    assert {text.strip() for text in HOSTILE} <= {shown.strip() for shown in blocks}
