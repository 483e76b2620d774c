"""The site, as a build makes it and as a browser shows it.

The pages under test come from two tiny notebooks. Set ZORPLEX_SITE to the folder of a site to have
the same tests look at that one instead: `.ci/run` does so with the real course.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from pages import guarded_page, served
from runs import eventually

from zorplex_rl.course.figures import drawing_of
from zorplex_rl.course.lesson import lesson
from zorplex_rl.course.lesson.glossary import GLOSSARY
from zorplex_rl.course.site import reference, search
from zorplex_rl.course.site.__main__ import main
from zorplex_rl.course.site.build import MARKER, build_site, check_links, publish
from zorplex_rl.course.site.contents import (
    BOTH_AT_WORK,
    Card,
    built_by,
    film,
    headline_of,
    routes,
)
from zorplex_rl.course.site.export import export
from zorplex_rl.course.site.frame import MOVED, search_page
from zorplex_rl.course.site.page import Lesson, Page, PageCell
from zorplex_rl.course.sync_and_async import compare
from zorplex_rl.errors import SiteError
from zorplex_rl.simulation.setting import Setting

pytestmark = pytest.mark.slow

with_a_library = pytest.mark.skipif(not search.installed(), reason=search.WITHOUT)
about_the_course = pytest.mark.skipif(
    "ZORPLEX_SITE" not in os.environ, reason="this test is about the real course"
)

FRAME = ("index.html", "glossary.html", reference.PAGE, search.PAGE)  # the pages of no notebook
TOP = """
import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="{title}")

with app.setup(hide_code=True):
    import signal
    from types import SimpleNamespace

    import anywidget
    import marimo as mo
    import traitlets

    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.course.figures.figure import render


@app.cell(hide_code=True)
def _():
    lesson.header(__file__, minutes={minutes}, hardware="one core", goals=["read a `page`", "open a fold"])
    return


@app.cell
def _():
    lesson.ran_on()
    return
"""
READING = (
    TOP.format(title="Reading & writing", minutes=10)
    + '''

@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A section

    Some *text* with `code`, and a list:

    - one
    - two

    | role | waits for |
    |---|---|
    | trainer | a batch |

    Some **meshes**, a **walrus**, and **meshes** again.
    """)
    return


@app.cell
def _():
    lesson.md(f"An {lesson.term('actor')} and **another actor**.")
    return


@app.cell
def _():
    # A comment that is rather long, so that this line of code is wider than the column of a phone, and of a desktop as well, by far.
    total = sum(number**2 for number in range(10))
    print(f"printed: {total} < 1000")
    total
    return


@app.cell
def _():
    lesson.predict("Which is larger?", "the first", "the second")
    return


@app.cell
def _():
    lesson.folded("Compare with your prediction", "The **second**.")
    return


@app.cell
def _():
    lesson.table("Times", [{"kind": f"`{kind}`", "seconds": "0.25", "what it was": "long words " * 12} for kind in "ab"])
    return


@app.cell(hide_code=True)
def _():
    mo.md("## Another section")
    return


@app.cell(hide_code=True)
def _():
    first = 1
    second = 2
    return first, second


@app.cell(hide_code=True)
def _():
    # Not for the reader.
    helper = 1
    helper
    return (helper,)


@app.cell
def _():
    lesson.recap(0, "It ends.", *["There is a lot to say."] * 40)
    return


@app.cell
def _():
    lesson.table("What is in it", [{"": "pages", "count": 2}])
    return


@app.cell
def _():
    lesson.figure(render(lambda figure: figure.subplots().plot([1, 2]), 200, "A line", "from 1 to 2"), "A line.")
    return


@app.function
def double(x):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(lambda: double, Solutions)
    return


@app.class_definition(hide_code=True)
class Solutions:
    def check_double(double):
        exercise.expect(double, 2, result=4)

    def double(x):
        return 2 * x
'''
)
TURNING = (
    TOP.format(title="Turning a knob", minutes=5)
    + '''

@app.class_definition(hide_code=True)
class Knob(anywidget.AnyWidget):
    _esm = """
    export default {
      initialize({ model }) { model.set("ready", true); },
      render({ model, el }) {
        const label = document.createElement("label");
        const knob = Object.assign(document.createElement("input"), { type: "range", min: 0, max: 3, value: model.get("position") });
        const said = document.createElement("output");
        const show = () => { said.textContent = `${model.get("table")[model.get("position")]} of ${model.get("raw").byteLength} bytes`; };
        knob.oninput = () => { model.set("position", Number(knob.value)); model.save_changes(); };
        model.on("change:position", show);
        show();
        label.append("Position ", knob);
        el.append(label, said);
        if (typeof window.__MARIMO_STATIC__ === "undefined" || !model.get("ready")) el.append("no host");
      },
    };
    """
    _css = "output { display: block; }"
    position = traitlets.Int(1).tag(sync=True)
    ready = traitlets.Bool(False).tag(sync=True)
    table = traitlets.List(["zero", "one", "two", "three </script>"]).tag(sync=True)
    raw = traitlets.Bytes(b"abc").tag(sync=True)


@app.cell
def _():
    knob = Knob()
    knob
    return (knob,)


@app.cell
def _(knob):
    knob.position = 2
    return
'''
)
BARE = (
    TOP[: TOP.index("@app.cell\ndef _():\n    lesson.ran_on()")]
    .replace("    import anywidget\n", "")
    .replace("    import traitlets\n", "")
)
REFUSED = (
    BARE.format(title="Refused", minutes=1)
    + """@app.cell
def _():
    1 / 0
    return


@app.cell
def _():
    lesson.wait_for(SimpleNamespace(value=False))
    return


@app.cell
def _():
    mo.ui.slider(0, 9)
    return


@app.cell
def _():
    signal.raise_signal(signal.SIGINT)
    return


@app.cell
def _():
    2
    return
"""
)
ENDLESS = (
    BARE.format(title="Endless", minutes=1)
    + """@app.cell
def _():
    import time

    time.sleep(600)
    return
"""
)

LEAVES = (
    BARE.format(title="Leaves", minutes=1)
    + """@app.cell
def _():
    import os, tempfile

    mo.md(f"{os.environ['OMP_NUM_THREADS']} thread, {tempfile.mkdtemp()}")
    return
"""
)

WAITS = (
    BARE.format(title="Waits", minutes=1)
    + """@app.cell
def _():
    import os, time
    from pathlib import Path

    Path("FOLDER", f"pid-{os.getpid()}").touch()
    time.sleep(600)
    return
"""
)


def write(folder: Path, **notebooks: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in notebooks.items():
        (folder / f"{name}.py").write_text(source)
    return folder


@pytest.fixture(scope="module")
def site(once) -> Path:
    """The folder of a site, and its zip beside it."""
    if given := os.environ.get("ZORPLEX_SITE"):
        return Path(given).resolve()
    notebooks = {"01_reading": READING, "02_turning": TURNING}
    return (
        once(
            "course",
            lambda folder: build_site(write(folder / "notebooks", **notebooks), folder / "pages"),
        )
        / "pages"
    )


@pytest.fixture(autouse=True)
def _looks_at_the_given_site(request):
    """How sites are built is tested without one, too."""
    if "ZORPLEX_SITE" in os.environ and "site" not in request.fixturenames:
        pytest.skip("this test is not about the given site")


@pytest.fixture(scope="module")
def tiny(site) -> Path:
    if "ZORPLEX_SITE" in os.environ:
        pytest.skip("this test is about the tiny notebooks")
    return site


@pytest.fixture(scope="module")
def address(site):
    with served(site) as address:
        yield address


@pytest.fixture
def visit(chromium):
    """Opens an address in a fresh browser; fails if the page met a script error or asked for
    anything but itself."""
    with ExitStack() as open_pages:

        def open_page(url: str, width: int = 1280, dark: bool = False, first: str = "", **options):
            """``first`` is a script that runs before the page's own."""
            options |= {
                "viewport": {"width": width, "height": 900},
                "color_scheme": "dark" if dark else "light",
            }
            page = open_pages.enter_context(
                guarded_page(chromium, url.rpartition("/")[0], **options)
            )
            page.add_init_script(first)
            page.goto(url)
            return page

        yield open_page


def names_of_pages(site: Path) -> list[str]:
    return sorted(path.name for path in site.glob("*.html") if path.name not in MOVED)


# What a build refuses


def test_no_site_is_built_if_a_cell_fails_waits_needs_a_kernel_or_is_skipped_although_marimo_says_nothing(
    tmp_path,
):
    with pytest.raises(SiteError) as refused:
        build_site(write(tmp_path / "notebooks", **{"01_first": REFUSED}), tmp_path / "site")
    assert "01_first.py: cell 3 (1 / 0) failed: exception division by zero" in str(refused.value)
    assert "cell 4 (lesson.wait_for(SimpleNamespace(value=False))) still waits for a button" in str(
        refused.value
    )
    assert "cell 5 (mo.ui.slider(0, 9)) puts out <marimo-slider>" in str(refused.value)
    assert "cell 7 (2) failed: interruption" in str(refused.value)
    assert not (tmp_path / "site").exists()


def test_a_cell_without_a_result_did_not_run():
    source = '\n"notebook": {"cells": [{"id": "a", "code": "x = 1", "config": {"hide_code": false}}]},\n"session": {"cells": []}'
    assert Page.read(source).complaints == ["cell 1 (x = 1) did not run"]


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    "found", [{"site/thesis.txt": "years of work"}, {"site.zip": "not even a zip"}]
)
def test_what_no_build_has_written_is_refused_before_any_notebook_runs_and_stays(
    tmp_path, capsys, found
):
    write(tmp_path / "notebooks", **{"01_first": ENDLESS})
    for name, content in found.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    before = tree(tmp_path)
    assert main([str(tmp_path / "site"), "--notebooks", str(tmp_path / "notebooks")]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert tree(tmp_path) == before


def zipped(site: Path) -> set[str]:
    """The files in the zip of ``site``, within its folder."""
    with zipfile.ZipFile(site.with_name(f"{site.name}.zip")) as archive:
        files = [Path(entry.filename) for entry in archive.infolist() if not entry.is_dir()]
    return {file.relative_to(site.name).as_posix() for file in files}


@with_a_library
def test_a_build_replaces_what_the_last_one_wrote_and_nothing_else(tmp_path):
    site = tmp_path / "site"
    publish([], [], [], site)
    assert set(tree(site)) == {*FRAME, MARKER}
    (site / ".git").mkdir()
    (site / ".git" / "HEAD").write_text("ref")
    (site / "CNAME").write_text("example.org")
    (site / "09_gone.html").write_text("of the last build")
    (site / MARKER).write_text("\n".join([*FRAME, "09_gone.html"]))
    publish([], [], [], site)
    assert set(tree(site)) == {*FRAME, MARKER, ".git/HEAD", "CNAME"}
    assert zipped(site) == {*FRAME, MARKER}
    assert {path.name for path in tmp_path.iterdir()} == {"site", "site.zip"}


@pytest.mark.parametrize("name", MOVED.values())
def test_the_old_name_of_a_page_leads_to_it(name, tmp_path):
    notebook = tmp_path / name.replace(".html", ".py")
    notebook.write_text("# a notebook")
    publish(
        [notebook], [page_of("<p>Hi</p>")], [Lesson("Moved here", 5, "one core")], tmp_path / "s"
    )
    (old,) = [old for old, new in MOVED.items() if new == name]
    assert f'url={name}"' in (tmp_path / "s" / old).read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--notebooks", "nowhere"], "has no notebook"),
        (["a file/site"], "a file"),
        (["--record", "a file/seconds.json"], "a file/seconds.json"),
    ],
)
def test_a_mistaken_argument_is_said_in_one_sentence(
    tmp_path, monkeypatch, capsys, arguments, said
):
    write(tmp_path / "notebooks", **{"01_first": ENDLESS})
    (tmp_path / "a file").touch()
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_notebook_that_does_not_end_is_ended(tmp_path):
    start = time.monotonic()
    with pytest.raises(SiteError, match="has not ended within 4 s"):
        export(write(tmp_path, **{"01_endless": ENDLESS}) / "01_endless.py", timeout=4)
    assert time.monotonic() - start < 600, "the notebook sleeps that long"


def test_several_notebooks_take_one_thread_each_and_their_temporary_files_go_with_them(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    page = export(write(tmp_path, **{"01_leaves": LEAVES}) / "01_leaves.py", jobs=2)
    assert f"1 thread, {tmp_path}/temporary" in page
    assert not list((tmp_path / "temporary").iterdir())


def test_ctrl_c_ends_the_build_and_the_notebooks_that_run(tmp_path):
    notebook = WAITS.replace("FOLDER", str(tmp_path))
    write(tmp_path / "notebooks", **{f"0{number}_waits": notebook for number in (1, 2, 3)})
    command = [
        sys.executable,
        "-m",
        "zorplex_rl.course.site",
        "--notebooks",
        tmp_path / "notebooks",
        "--jobs",
        "2",
    ]
    with subprocess.Popen(
        [*command, tmp_path / "site"], stderr=subprocess.PIPE, text=True
    ) as build:
        assert eventually(lambda: len(list(tmp_path.glob("pid-*"))) == 2)
        build.send_signal(signal.SIGINT)
        build.communicate(timeout=60)
    for file in tmp_path.glob("pid-*"):
        assert not is_alive(int(file.name.removeprefix("pid-")))
    assert len(list(tmp_path.glob("pid-*"))) == 2, "no other notebook was begun"


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    "link",
    [
        '<a href="missing.html">on</a>',
        '<a href="#nowhere">on</a>',
        '<img src="https://example.org/a.png">',
    ],
)
def test_a_dead_link_or_an_outside_asset_is_refused(link, tmp_path):
    (tmp_path / "page.html").write_text(link)
    with pytest.raises(SiteError, match="page.html"):
        check_links(tmp_path / "page.html")


def test_a_site_without_the_library_has_no_search_and_one_that_github_builds_leads_to_previews(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(search, "installed", lambda: False)
    monkeypatch.setenv("GITHUB_REPOSITORY", "someone/fork")
    said = []
    build_site(
        write(tmp_path / "notebooks", **{"01_first": BARE.format(title="First", minutes=1)}),
        tmp_path / "site",
        said.append,
    )
    assert said.count(search.WITHOUT) == 1
    assert names_of_pages(tmp_path / "site") == [
        "01_first.html",
        "glossary.html",
        "index.html",
        "stacks.html",
    ]
    assert not any(
        search.PAGE in (tmp_path / "site" / name).read_text()
        for name in names_of_pages(tmp_path / "site")
    )
    preview = "https://molab.marimo.io/github/someone/fork/blob/previews/notebooks/01_first.py"
    assert f'href="{preview}"' in (tmp_path / "site" / "01_first.html").read_text()
    assert (tmp_path / "notebooks" / "__marimo__" / "session" / "01_first.py.json").is_file()


# What it builds


def test_the_zip_holds_every_file_of_the_site(site):
    assert zipped(site) == {
        path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()
    }


def test_the_contents_name_title_minutes_goals_and_machine(tiny):
    text = (tiny / "index.html").read_text()
    assert "Reading &amp; writing" in text
    assert "2 notebooks, about 0 hours" in text
    assert "read a <code>page</code>" in text
    assert "Computed on: " in text
    assert 'href="02_turning.html"' in text


def page_of(*outputs: str) -> Page:
    """A page whose cells put out ``outputs``."""
    cells = [PageCell("", True, [{"data": {"text/html": markup}}], []) for markup in outputs]
    return Page(cells, {})


def test_a_headline_is_what_the_notebook_states():
    recap, stated = (
        lesson.recap(0, "Measured: 0.25 s.").text,
        lesson.headline("it took `0.25` s.").text,
    )
    assert headline_of(page_of(recap)) == ""
    assert headline_of(page_of(recap, stated)) == "It took <code>0.25</code> s."


def test_the_drawing_of_the_course_names_every_notebook_at_its_place():
    drawn = drawing_of("course.svg")
    told = re.search('aria-label="([^"]*)"', drawn)[1]
    loop, _, below = told.partition("What it stands on: ")
    above, stands_on = drawn.split(">What it stands on</text>")
    for notebook in sorted((Path(__file__).parents[3] / "notebooks").glob("[0-9]*.py")):
        number = notebook.name.partition("_")[0]
        name = re.search('app_title="([^":]*)', notebook.read_text())[1]
        row = rf">{number}</text></g><text [^>]*>{name}</text>"
        is_below = number < "05"
        assert f"{number} {name}" in (below if is_below else loop)
        assert len(re.findall(row, stands_on if is_below else above)) == 1
        assert len(re.findall(row, drawn)) == 1


def test_the_contents_say_where_to_start_and_how_long_each_route_takes():
    facts = {"drawing": "", "headline": "", "named": ()}
    cards = [
        Card(f"{number}_x.html", Lesson(f"Title {number}", int(number[:2]), "one core"), **facts)
        for number in ("01", "05", "05b", "06", "07", "07b", "08", "09")
    ]
    shown = re.sub(r"<[^>]+>", "", routes(cards))
    assert shown.startswith("Start here: 05 Title 05.")
    assert "The heart, 10 minutes: 05 → 05b" in shown
    assert "Half a day, 40 minutes: 05 → 05b → 06 → 07 → 08 → 09" in shown
    assert (
        "Everything, by the numbers, 48 minutes: 01 → 05 → 05b → 06 → 07 → 07b → 08 → 09" in shown
    )
    assert routes(cards[:1]) == ""


def test_what_one_will_have_built_stands_in_the_readme():
    built = built_by(Path(__file__).parents[3] / "README.md")
    assert (
        "`" not in "".join(built)
        and "05_rl_intro" in built
        and built["05_rl_intro"].startswith("the task")
    )
    assert built_by(Path("nowhere")) == {}


def test_a_bold_term_is_linked_to_its_explanation_once_and_the_glossary_names_the_page(tiny):
    page = (tiny / "01_reading.html").read_text()
    assert page.count('href="glossary.html#mesh"') == 1
    assert "<strong>meshes</strong></a>" in page and "<strong>walrus</strong></a>" not in page
    assert page.count('href="glossary.html#actor"') == 1
    assert f'title="{GLOSSARY["actor"][:24]}' in page
    glossary = (tiny / "glossary.html").read_text()
    assert '<dt id="mesh">mesh</dt>' in glossary
    assert glossary.count('Explained in <a href="01_reading.html">Reading &amp; writing</a>') == 2


def test_no_page_names_a_folder_of_the_machine_that_built_it(site):
    for name in names_of_pages(site):
        text = (site / name).read_text()
        assert str(Path.home()) + "/" not in text
        assert str(Path(__file__).parents[3]) not in text


# What a browser shows


@with_a_library
@pytest.mark.parametrize("served", [True, False], ids=["from a server", "from a folder"])
def test_the_search_of_any_page_leads_to_the_section_with_the_words(tiny, address, visit, served):
    page = visit(f"{address if served else f'file://{tiny}/'}02_turning.html")
    page.get_by_role("searchbox", name="Search the course").fill("meshes walrus")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=meshes+walrus")
    page.get_by_text("1 page found for “meshes walrus”.").wait_for()
    assert page.locator(".results mark").all_inner_texts() == ["meshes,", "walrus,", "meshes"]
    page.get_by_role("link", name="A section").press("Enter")
    assert page.url.endswith("/01_reading.html#a-section")
    assert page.get_by_role("heading", name="A section").is_visible()


@with_a_library
def test_what_the_reader_shall_find_out_first_is_not_searched(tmp_path, visit):
    question = lesson.predict("Which is faster?", "a zebra", "a yak")
    answer = lesson.reveal(question, right=0, why="Zebras have a gnu.")
    folded = lesson.folded("A solution", "It is an okapi.")
    page = f"<main><h1>A &amp; b</h1><p>Bef&lt;b&gt;ore.</p>{question.text}{answer.text}{folded.text}<p>After.</p></main>"
    (tmp_path / "search.html").write_text(search_page({"a.html": page}))
    page = visit(f"file://{tmp_path}/search.html")
    field, status = (
        page.get_by_role("searchbox", name="Search the course"),
        page.get_by_role("status"),
    )
    for hidden in ("zebra", "gnu", "okapi"):
        field.fill(hidden)
        status.get_by_text(f"Nothing found for “{hidden}”.").wait_for()
    field.fill("after")
    page.locator(
        ".results li", has_text="Bef<b>ore. Predict first Which is faster? After."
    ).wait_for()


def test_what_stands_before_the_text_is_small_and_nothing_of_it_runs_or_is_fetched(site):
    for name in names_of_pages(site):
        before, text = (site / name).read_text().split("<main>")
        assert len(before.encode()) < 64_000, name
        up_to_the_end_of_the_text = before + text.partition("</main>")[0]
        assert "<script" not in up_to_the_end_of_the_text, name
        assert (
            "stylesheet" not in before and "@import" not in before and "@font-face" not in before
        ), name


STATE = """() => ({
  titles: document.querySelectorAll("h1").length,
  text: document.querySelector("main").innerText,
  asked: performance.getEntriesByType("resource").map((entry) => entry.name),
})"""
AT_ONCE = f'addEventListener("DOMContentLoaded", () => {{ window.atOnce = ({STATE})(); }});'


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_the_text_of_every_page_is_there_as_soon_as_the_page_is_read(site, address, visit, scripts):
    """Once the HTML is parsed, its text is there, and the browser has asked for nothing else."""
    page = visit(address + "index.html", java_script_enabled=scripts, first=AT_ONCE)
    for name in names_of_pages(site):
        page.goto(address + name)
        found = page.evaluate("window.atOnce") if scripts else page.evaluate(f"({STATE})()")
        assert found["titles"] == 1, name
        assert len(found["text"]) > 200, name
        assert [
            asked for asked in found["asked"] if not asked.startswith(("data:", "blob:"))
        ] == [], name


@pytest.mark.parametrize("part", range(4))
def test_every_page_fits_and_axe_finds_nothing(site, address, visit, part):
    """Read once, on a phone, each page is then as wide as other screens, light and dark."""
    page = visit(address + "glossary.html")
    for name in names_of_pages(site)[part::4]:
        page.set_viewport_size({"width": 390, "height": 900})
        page.goto(address + name)
        unfolded(page)
        for width, scheme in itertools.product((390, 1280, 1500), ("light", "dark")):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (
                f"{name} scrolls sideways"
            )
            assert overlapping(page) == [], name
            assert page.evaluate(CUT) == [], f"{name} cuts code"
            background = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
            assert (background == "rgb(255, 255, 255)") == (scheme == "light")
            if (width, scheme == "dark") == AXE_LOOKS_AT[part % 2]:
                assert found_by_axe(page) == "", name


AXE_LOOKS_AT = (1500, False), (390, True)
"""Wide and light, narrow and dark: the pages take turns. Axe needs twelve seconds for a page,
whichever of its rules are asked for."""


def unfolded(page):
    page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    return page


def found_by_axe(page) -> str:
    from axe_playwright_python.sync_playwright import Axe

    return Axe().run(page).generate_snapshot()


CUT = """() => [...document.querySelectorAll("pre")].filter((block) => block.checkVisibility() && block.scrollWidth > block.clientWidth + 1)
  .map((block) => block.innerText.slice(0, 60))"""


def overlapping(page) -> list[str]:
    """Cells and blocks that reach into the next one, or out of the page."""
    return page.evaluate(
        """() => {
          const blocks = [...document.querySelectorAll("nav.course, .cell > *")].filter((block) => block.getClientRects().length);
          const boxes = blocks.map((block) => block.getBoundingClientRect());
          const name = (index) => blocks[index].outerHTML.slice(0, 80);
          return boxes.flatMap((box, index) => {
            const next = boxes[index + 1];
            const outside = box.left < -1 || box.right > innerWidth + 1;
            return outside || (next && next.top < box.bottom - 1) ? [name(index)] : [];
          });
        }"""
    )


@pytest.mark.parametrize("served", [True, False], ids=["from a server", "from a folder"])
def test_the_contents_begin_with_a_run_that_plays_by_itself_and_stops_when_asked(
    site, address, visit, served
):
    page = visit(f"{address if served else f'file://{site}/'}index.html")
    player = page.get_by_role("region", name="Loop player")
    time_slider = player.get_by_role("slider", name="Time")
    # It rests while it is out of sight.
    player.scroll_into_view_if_needed()
    pause = player.get_by_role("button", name="Pause")
    pause.wait_for()
    page.wait_for_function("(slider) => slider.valueAsNumber > 3", arg=time_slider.element_handle())
    pause.press("Enter")
    stopped = time_slider.input_value()
    player.get_by_role("button", name="Play").wait_for()
    time_slider.press("ArrowRight")
    assert int(time_slider.input_value()) == int(stopped) + 1
    assert page.locator(".film .source").inner_text().startswith("Simulated")


def test_the_contents_begin_with_a_text_before_and_after_and_the_picture_of_the_readme(tiny):
    text = (tiny / "index.html").read_text()
    assert "You will teach a small language model" in text
    assert re.search(r"answered \d+% before, and \d+% after", text)
    assert "Before, it called EXPM, a tool that does not exist; so nothing answered" in text
    assert "Recorded on" in text and text.index("lesson-side-by-side") < text.index('class="film"')
    both = compare(Setting())
    assert f"{both.sync.seconds:.1f}" in text and f"{both.asynchronous.seconds:.1f}" in text


def test_the_run_of_the_contents_begins_where_side_by_side_both_sides_work():
    in_turns, side_by_side = film()[0]["state"]["runs"]
    now = BOTH_AT_WORK * in_turns["seconds"]

    def at_work(run):
        writes = sum(begun <= now < written for _, _, begun, written, *_ in run["dots"])
        return writes, any(begun <= now < over for begun, over in run["steps"])

    assert at_work(in_turns) == (4, False) and at_work(side_by_side) == (4, True)


def test_where_less_motion_is_wanted_the_run_waits(tiny, address, visit):
    page = visit(address + "index.html", reduced_motion="reduce")
    player = page.get_by_role("region", name="Loop player")
    player.get_by_role("button", name="Play").wait_for()
    waiting = player.get_by_role("slider", name="Time").input_value()
    assert int(waiting) > 0, "not at an empty drawing"


@about_the_course
def test_the_contents_say_of_every_notebook_what_it_draws_and_what_it_builds(site, address, visit):
    page = visit(address + "index.html")
    entries = page.locator("ol.lessons > li").all()
    assert len(entries) == len([name for name in names_of_pages(site) if name[0].isdigit()])
    # One page has figures of numbers alone.
    assert sum(entry.locator("svg").count() == 0 for entry in entries) <= 1
    for entry in entries:
        assert re.search(
            r"\d+ minutes · .* · (builds on \d\d|needs none)", entry.locator(".facts").inner_text()
        )


def test_navigation_leads_through_the_whole_course_and_back(site, address, visit):
    page = visit(address + "index.html")
    lessons = [name for name in names_of_pages(site) if name[0].isdigit()]
    page.locator("ol.lessons a").first.click()
    for name in lessons[1:]:
        page.locator("nav.course [rel=next]").first.click()
        assert page.url == address + name
    for name in reversed(lessons[:-1]):
        page.locator("nav.course [rel=prev]").last.click()
        assert page.url == address + name
    page.get_by_role("link", name="Contents").first.click()
    assert page.url == address + "index.html"


def test_code_output_and_print_are_shown_and_plumbing_is_not(tiny, address, visit):
    text = visit(address + "01_reading.html").locator("main").inner_text()
    assert "total = sum(number**2 for number in range(10))" in text
    assert "printed: 285 < 1000" in text
    assert "import marimo" not in text
    assert "Write double in marimo edit: it checks what you write at once." in text


def test_an_answer_and_a_solution_are_folded_until_they_are_asked_for(tiny, address, visit):
    page = visit(address + "01_reading.html")
    assert not page.get_by_text("return 2 * x").is_visible()
    page.get_by_text("A solution").click()
    assert page.get_by_text("def double(x):").last.is_visible()
    page.get_by_label("the second").check()
    page.get_by_text("Compare with your prediction", exact=True).press("Enter")
    assert page.get_by_text("The second.").is_visible()


def test_the_outline_stands_beside_the_text_on_a_wide_screen_and_marks_where_the_reader_is(
    tiny, address, visit
):
    page = visit(address + "01_reading.html")
    outline = page.get_by_role("navigation", name="Sections of this page")
    assert outline.get_by_role("link").all_inner_texts() == [
        "A section",
        "Another section",
        "Recap",
    ]
    assert (
        outline.bounding_box()["x"] + outline.bounding_box()["width"]
        < page.locator("main h2").first.bounding_box()["x"]
    )
    outline.get_by_role("link", name="Recap").click()
    page.wait_for_function(
        "document.querySelector('.outline [aria-current]')?.textContent === 'Recap'"
    )
    assert outline.is_visible(), "it stays"
    assert not visit(address + "01_reading.html", width=390).locator(".outline").is_visible()


def test_a_page_is_its_own_slides(site, address, visit):
    name = next(name for name in names_of_pages(site) if name[:2].isdigit())
    page = visit(address + name)
    headings = page.locator("main :is(h1, h2, h3)")
    sections = page.locator("main > .cell :is(h2, h3)").all_inner_texts()
    page.get_by_role("button", name="As slides").click()
    seen = []
    shown: list[str] = []
    while shown[-1:] != sections[-1:]:
        page.keyboard.press("ArrowRight")
        shown = [heading.inner_text() for heading in headings.all() if heading.is_visible()]
        assert shown, "no slide is without its heading"
        seen += shown
    assert seen == sections
    page.keyboard.press("Escape")
    assert all(heading.is_visible() for heading in headings.all()), "and it is a page again"


def test_code_that_other_cells_need_is_folded_behind_one_line(tiny, address, visit):
    page = visit(address + "01_reading.html")
    folds = page.locator(".plumbing summary").all_inner_texts()
    assert folds == ["Setup, 9 lines", "Plumbing, 5 lines"], "two cells, one fold"
    assert not page.get_by_text("helper = 1").is_visible()
    page.get_by_text("Plumbing, 5 lines").click()
    assert (
        page.get_by_text("second = 2").is_visible() and page.get_by_text("helper = 1").is_visible()
    )
    assert "Solutions" not in (tiny / "01_reading.html").read_text()


def test_on_a_phone_code_is_folded_and_on_a_wide_screen_or_without_scripts_it_is_not(
    tiny, address, visit
):
    for options, is_shown in (
        ({"width": 390}, False),
        ({}, True),
        ({"width": 390, "java_script_enabled": False}, True),
    ):
        page = visit(address + "01_reading.html", **options)
        code = page.get_by_text("total = sum(number**2 for number in range(10))")
        assert code.is_visible() == is_shown
        assert page.locator(".code summary").first.is_visible() == (
            page.viewport_size["width"] == 390
        )
    page = visit(address + "01_reading.html", width=390)
    fold = page.locator("details.code", has_text="total = sum")
    fold.locator("summary").click()
    assert fold.locator("pre").is_visible()
    page.set_viewport_size({"width": 1280, "height": 900})
    page.wait_for_function(
        "[...document.querySelectorAll('details.code')].every((one) => one.open)"
    )


def test_on_paper_folds_are_open_and_code_is_not_cut(tiny, address, visit):
    page = visit(address + "01_reading.html", width=700)
    page.emulate_media(media="print")
    assert page.get_by_text("return 2 * x").is_visible()
    assert page.evaluate(CUT) == []
    assert not page.locator("nav.course").first.is_visible()


@pytest.mark.parametrize("served", [True, False], ids=["from a server", "from a folder"])
def test_a_widget_lives_without_a_kernel_and_starts_where_the_run_has_left_it(
    tiny, address, visit, served
):
    page = visit(f"{address}02_turning.html" if served else f"file://{tiny}/02_turning.html")
    said = page.locator(".widget output")
    said.get_by_text("two of 3 bytes").wait_for()
    page.locator(".widget input").press("ArrowRight")
    assert said.inner_text() == "three </script> of 3 bytes"
    assert "no host" not in page.locator("main").inner_text()


def test_without_scripts_a_widget_says_what_it_needs_and_with_them_it_does_not(
    tiny, address, visit
):
    said = "The widget here needs scripts."
    assert (
        said
        in visit(address + "02_turning.html", java_script_enabled=False)
        .locator("main")
        .inner_text()
    )
    page = visit(address + "02_turning.html")
    page.get_by_text("two of 3 bytes").wait_for()
    assert said not in page.locator("main").inner_text()


def cells_of(page, caption: str) -> dict[str, list[str]]:
    """The rows of the table under ``caption``, which may be folded: the first cell of each → the others."""
    rows = page.locator(f'.lesson-table[aria-label="{caption}"] tbody tr').all()
    return {
        first: others for first, *others in (row.locator("td").all_inner_texts() for row in rows)
    }


@about_the_course
def test_what_the_course_kills_on_its_pages_is_accounted_for(site, address, visit):
    fates = cells_of(visit(address + "06_services.html"), "What became of every request")
    assert all(int(count) > 100 for count in fates["answered"]) and fates[
        "without any outcome"
    ] == ["0", "0"]
    assert fates["answered, but not done"] == ["0", "0"]
    assert (fates["done twice"][1], fates["failed"][0]) == ("0", "0")
    said = visit(address + "08_rl_e2e.html").locator("main").text_content()
    trained, asked = re.search(r"(\d+) of (\d+), each once", said).groups()
    assert trained == asked
