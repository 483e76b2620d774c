"""The course is in the package: a copy of it works anywhere, and never replaces what a learner
wrote."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from pathlib import Path

import pytest
from pages import launched

from zorplex_rl import __version__
from zorplex_rl.cli.commands import main
from zorplex_rl.course.open import PARTS, copy_course

ROOT = Path(__file__).parents[2]


@pytest.fixture
def home():
    """A folder outside of the repository that is no temporary one to marimo."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def became(monkeypatch):
    """The folder and the arguments of the program that this process would have become."""
    seen: list[str] = []
    monkeypatch.setattr(os, "chdir", lambda folder: seen.append(str(folder)))
    monkeypatch.setattr(os, "execv", lambda _, arguments: seen.extend(arguments[1:]))
    return seen


def header_and_code(notebook: Path) -> tuple[dict, str]:
    """What a notebook says of itself (PEP 723), and the rest of it."""
    header, _, code = notebook.read_text().partition("# ///\n\n")
    return tomllib.loads(
        re.sub("^# ?", "", header.removeprefix("# /// script\n"), flags=re.MULTILINE)
    ), code


@pytest.mark.slow
def test_a_copy_has_what_notebooks_read_and_what_a_learner_wrote_stays(home):
    copy_course(home)
    for notebook in (home / "notebooks").glob("[0-9]*.py"):
        header, code = header_and_code(notebook)
        of_clone, same_code = header_and_code(ROOT / "notebooks" / notebook.name)
        # Outside of the clone the package is not in the folder above.
        del of_clone["tool"]["uv"]
        assert header == of_clone | {"dependencies": ["marimo", f"zorplex-rl=={__version__}"]}
        assert code == same_code
        (style,) = re.findall(r'css_file="(.*)"', notebook.read_text())
        assert (notebook.parent / style).is_file()
        for name in re.findall(r'"benchmarks" / "(.*)"', notebook.read_text()):
            assert (home / "benchmarks" / name).is_file()
    for program in (home / "examples").glob("my_*.py"):
        for model in re.findall(r'"(zorplex_rl/.*)"', program.read_text()):
            assert (home / model / "config.json").is_file()
    # A folder without __init__.py hides no package of that name that is installed.
    assert not list((home / "zorplex_rl").rglob("*.py"))
    mine, gone = home / "notebooks" / "05_rl_intro.py", home / "examples" / "my_rl.py"
    mine.write_text("# my own\n")
    gone.unlink()
    copy_course(home)
    assert mine.read_text() == "# my own\n" and gone.is_file()


@pytest.mark.slow
def test_open_starts_marimo_on_the_copy(became, home, capsys):
    main(["open", "05", "--to", str(home / "mine"), "--port", "4321", "--no-browser"])
    edit = "-P -m marimo edit --no-sandbox notebooks/05_rl_intro.py --port 4321 --headless".split()
    assert became == [str(home / "mine"), *edit]
    assert (home / "mine" / "notebooks" / "05_rl_intro.py").is_file()
    assert f"{home}/mine/notebooks/05_rl_intro.py" in capsys.readouterr().out


def test_in_a_clone_its_own_notebooks_are_opened_and_a_number_that_is_none_is_refused(
    became, capsys
):
    main(["open"])
    assert became == [
        str(ROOT),
        "-P",
        "-m",
        "marimo",
        "edit",
        "--no-sandbox",
        "notebooks/05_rl_intro.py",
    ]
    assert main(["open", "99"]) == 2
    assert "'99'" in capsys.readouterr().err


def test_the_wheel_carries_what_is_copied():
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ]["wheel"]
    assert {name.partition("/")[0] for name in wheel["only-include"]} == {"zorplex_rl", *PARTS}
    assert set(wheel["sources"]) == set(PARTS)
    assert [name for name in wheel["only-include"] if not (ROOT / name).exists()] == []


@pytest.mark.long
def test_the_wheel_alone_opens_05b(home):
    """In an environment that has what the course needs, and of the course the wheel only."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "HOME": str(home)
    }

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=home, env=clean, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", home / "dist", ROOT)
    venv.create(home / "env", with_pip=True)
    own, shared = home / "env" / "bin", sysconfig.get_path("purelib")
    (here,) = (home / "env" / "lib").glob("python*/site-packages")
    # An editable install in the shared folder does not count: lines of its .pth files are not read.
    (here / "needed.pth").write_text(f"{shared}\n")
    run(
        own / "python",
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        *(home / "dist").glob("*.whl"),
    )
    where = run(
        own / "python",
        "-c",
        "import zorplex_rl.course.nb05c as m; print(m.RECORDED); m.recorded_runs()",
    )
    assert where.startswith(str(here))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    opened = subprocess.Popen(
        [own / "zorplex-rl", "open", "05b", "--port", port, "--no-browser"],
        cwd=home, env=clean, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        address = next(
            found[0] for line in opened.stdout if (found := re.search(r"http://\S+", line))
        )
        with launched() as browser:
            page = browser.new_page()
            page.goto(address)
            page.locator(".lesson-header").wait_for(timeout=60_000)
            size = "parseFloat(getComputedStyle(e).fontSize) / parseFloat(getComputedStyle(document.documentElement).fontSize)"
            assert page.locator(".lesson-header h1").evaluate(f"e => {size}") == pytest.approx(
                2.125
            )  # lesson.css
            # It reads examples/my_rl.py, and has run all that does not wait for a button.
            page.get_by_text("on torch and transformers alone").wait_for(timeout=120_000)
            assert page.locator(".marimo-cell.has-error").count() == 0
    finally:
        opened.terminate()
        opened.wait(30)
