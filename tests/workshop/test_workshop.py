"""The workshop kit: what it names exists, whoever is behind can go on, the handout is one sheet,
the archive says what it needs."""

from __future__ import annotations

import ast
import html
import itertools
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from zorplex_rl.course.lesson import exercise

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
WORKSHOP = ROOT / "workshop"
NOTEBOOKS = {
    path.stem.partition("_")[0]: path for path in sorted((ROOT / "notebooks").glob("[0-9]*.py"))
}
TEXTS = sorted([*WORKSHOP.glob("*.md"), *WORKSHOP.glob("*.html")])
GUIDE = (WORKSHOP / "guide.md").read_text()
# A name with a folder or an ending that we use; what a learner makes or downloads is not in the
# repository.
FILE = re.compile(r"(?<![\w/.-])(?:[\w.-]+/)*[\w-]+\.(?:py|sh|md|html|json|jsonl|toml)\b")
MADE_LATER = {"metrics.jsonl"}

every_text = pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.name)


@cache
def catch_up() -> ModuleType:
    sys.path.insert(0, str(WORKSHOP))
    try:
        import catch_up
    finally:
        sys.path.remove(str(WORKSHOP))
    return catch_up


@every_text
def test_every_file_that_is_named_exists(text):
    named = set(FILE.findall(html.unescape(text.read_text()))) - MADE_LATER
    missing = [
        name
        for name in named
        if not any((folder / name.removeprefix("./")).exists() for folder in (ROOT, WORKSHOP))
    ]
    # Within the archive the repository is the folder ``course``.
    assert [name for name in missing if not name.startswith("zorplex-course/")] == []


@every_text
def test_every_link_leads_somewhere(text):
    for target in re.findall(r"\]\(([^)#]+)", text.read_text()):
        assert (WORKSHOP / target).exists(), target


def sections(source: str) -> dict[str, list[str]]:
    """The titles of the guide by notebook: its number, then the sections."""
    found: dict[str, list[str]] = {}
    for level, title in re.findall(r"^(##|###) (.+)$", source, re.MULTILINE):
        if level == "##":
            found[number := title.split()[0]] = []
        else:
            found[number].append(title)
    return found


def test_the_guide_names_sections_as_the_notebooks_do():
    wrong = [
        f"{number}: {title}"
        for number, titles in sections(GUIDE).items()
        if number in NOTEBOOKS
        for title in titles
        if not re.search(
            rf'(?:^\s*|")#{{2,3}} {re.escape(title)}(?:$|")',
            NOTEBOOKS[number].read_text(),
            re.MULTILINE,
        )
    ]
    assert wrong == []


def test_the_guide_the_plans_and_the_handout_are_about_the_notebooks_that_there_are():
    course = set(NOTEBOOKS)
    assert set(sections(GUIDE)) == course
    assert (
        set(re.findall(r"<tr><td>(\d\d[a-z]?)</td>", (WORKSHOP / "handout.html").read_text()))
        == course
    )
    assert {
        name.partition("_")[0]
        for name in re.findall(
            r"^\| `(\d\S+)\.py` \|", (ROOT / "README.md").read_text(), re.MULTILINE
        )
    } == set(NOTEBOOKS)
    two_days = (WORKSHOP / "plan_two_days.md").read_text()
    assert (
        set(re.findall(r"\| (\d\d[a-z]?): ", two_days))
        | set(re.findall(r"\| (\d\d), whole: ", two_days))
        == course
    )


def minutes(plan: str) -> list[tuple[int, int]]:
    """From and to, in minutes, of every row of every table."""
    times = re.findall(r"^\| (\d+):(\d\d) \| (\d+):(\d\d) \|", plan, re.MULTILINE)
    return [(60 * int(a) + int(b), 60 * int(c) + int(d)) for a, b, c, d in times]


@pytest.mark.parametrize(
    ("name", "total"), [("plan_90_minutes", 90), ("plan_half_day", 240), ("plan_two_days", 960)]
)
def test_a_plan_has_no_gap_and_takes_the_time_that_it_says(name, total):
    rows = minutes((WORKSHOP / f"{name}.md").read_text())
    assert all(begin < end for begin, end in rows)
    breaks = [(end, begin) for (_, end), (begin, _) in itertools.pairwise(rows) if end != begin]
    # The only gap is a night.
    assert breaks == ([(17 * 60, 9 * 60)] if name == "plan_two_days" else [])
    assert sum(end - begin for begin, end in rows) == total


def test_the_numbers_are_those_of_the_lab_log():
    """Every command that is named as a source has an entry, and every number with three digits or a
    decimal is in the log."""
    numbers, log = (WORKSHOP / "numbers.md").read_text(), (ROOT / "benchmarks/LOG.md").read_text()
    rows = [
        line.split(" | ")
        for line in numbers.splitlines()
        if "`benchmarks/" in line and line.startswith("| ")
    ]
    assert len(rows) >= 20
    logged = [float(n) for n in re.findall(r"(?<![\d.])\d+(?:\.\d+)?(?![\d.])", log)]
    for row in rows:
        source = re.search(r"`(benchmarks/\w+\.py)`", row[3])[1]
        assert f"· {source}" in log
        for number in re.findall(r"(?<![\d.])\d+\.\d+|(?<![\d.,])\d{3,}(?![\d,])", row[2]):
            digits = len(number.partition(".")[2])
            assert any(round(value, digits) == float(number) for value in logged), (row[1], number)


@pytest.mark.long
@pytest.mark.parametrize("notebook", NOTEBOOKS.values(), ids=lambda path: path.stem)
def test_whoever_is_behind_gets_a_copy_in_which_the_exercises_are_solved(notebook, tmp_path):
    source, names = catch_up().solve(notebook)
    (tmp_path / notebook.name).write_text(source)
    copied = list(exercise.exercises(catch_up()._load(tmp_path / notebook.name)))
    assert {name for name, *_ in copied} == set(names) and len(names) >= 3
    assert all(exercise.solution_source(name, solution) in source for name, *_, solution in copied)


def test_a_copy_may_stop_where_the_class_is():
    notebook = NOTEBOOKS["06"]
    source, names = catch_up().solve(notebook, 1)
    feedback = re.findall(r"exercise\.feedback\(\s*lambda: (\w+)", notebook.read_text())
    assert names == feedback[:1], "the first on the page is the first that is solved"
    bodies = {
        node.name: ast.unparse(node.body)
        for node in ast.parse(source).body
        if hasattr(node, "name")
    }
    assert [name for name in feedback if not bodies[name].endswith("...")] == names


def test_catching_up_never_writes_over_somebodys_work(tmp_path, capsys):
    copy = tmp_path / NOTEBOOKS["06"].name
    assert catch_up().main(["06", "--exercises", "0", "--out", str(tmp_path)]) == 0
    copy.write_text("mine")
    with pytest.raises(SystemExit, match="2"):
        catch_up().main(["06", "--out", str(tmp_path)])
    assert "may hold somebody's work" in capsys.readouterr().err
    assert copy.read_text() == "mine"


@pytest.mark.long
def test_the_progress_sheet_says_which_exercises_of_whom_pass(tmp_path):
    notebook, here = NOTEBOOKS["06"], tmp_path / "class"
    solved, names = catch_up().solve(notebook)
    stuck = notebook.read_text().replace("import marimo\n", "import time\n\ntime.sleep(1000)\n", 1)
    texts = {
        "ada": solved,
        "ben": catch_up()
        .solve(notebook, 2)[0]
        .replace("min(failures - 1, 60)", "min(failures, 60)", 1),
        "eve": stuck,
        "kim": "def (\n",
    }
    for learner, text in texts.items():
        folder = here / learner / ("notebooks" if learner != "ben" else "")
        folder.mkdir(parents=True)
        (folder / notebook.name).write_text(text)
    rows = [
        line.strip("| ").split(" | ")
        for line in catch_up().report(here, seconds=12).splitlines()[2:]
    ]
    ada, ben, eve, kim = rows
    assert ada[:4] == ["ada", "06", "4 of 4", ", ".join(names)]
    assert ben[:4] == ["ben", "06", "1 of 4", "keep_one"]
    assert "retry_delay: `retry_delay(" in ben[4] and ben[4].endswith("; route; charge_once")
    assert eve == ["eve", "06", "0 of 1", "", "06_services: not done within 12 s"]
    assert kim[:3] == ["kim", "06", "0 of 1"] and "SyntaxError" in kim[4]


def test_the_handout_is_one_sheet(chromium):
    page = chromium.new_page()
    page.goto((WORKSHOP / "handout.html").as_uri())
    margin = dict.fromkeys(("top", "bottom"), "12mm")
    for paper in ("A4", "Letter"):
        printed = page.pdf(format=paper, prefer_css_page_size=False, margin=margin)
        assert len(re.findall(rb"/Type ?/Page\b", printed)) == 2, paper


def run(*command: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


BACKEND = """
import zipfile
def write(folder, name, tag):
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(f"{folder}/{name}-1.0-{tag}.whl", "w") as wheel:
        need = "Requires-Dist: part" if name == "toy" else "Summary: a part"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n{need}\\n")
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\\nGenerator: toy\\nRoot-Is-Purelib: true\\nTag: {tag}\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return f"{name}-1.0-{tag}.whl"
def build_editable(folder, config_settings=None, metadata_directory=None): return write(folder, "toy", "py3-none-any")
"""


@pytest.mark.long
def test_the_archive_is_installed_from_its_wheels_alone(tmp_path):
    course, wheels = tmp_path / "course", tmp_path / "wheels"
    course.mkdir(), wheels.mkdir()
    (course / "backend.py").write_text(BACKEND)
    (course / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n[project]\nname = "toy"\n'
    )
    exec(BACKEND, namespace := {})
    namespace["write"](wheels, "part", "py3-none-any")
    shutil.copy(WORKSHOP / "install.sh", tmp_path)
    done = run("bash", str(tmp_path / "install.sh"), sys.executable)
    assert "Installed." in done.stdout, done.stderr
    listed = run(str(course / ".venv/bin/python"), "-m", "pip", "list").stdout
    assert "part" in listed and "toy" in listed


def steps(containerfile: str) -> list[tuple[str, str]]:
    """The instructions of a Containerfile, without comments."""
    lines = [
        line for line in containerfile.splitlines() if line.strip() and not line.startswith("#")
    ]
    return [tuple(line.split(" ", 1)) for line in lines]


@pytest.mark.long
def test_the_steps_of_the_container_give_each_learner_a_server_of_their_own(tmp_path):
    """The steps of the Containerfile, run here one after the other. What a container adds is its
    base image; what is downloaded there is borrowed from this environment."""
    pytest.importorskip(
        "hatchling", reason="the build backend is not installed; the extra dev has it"
    )
    told = steps((WORKSHOP / "Containerfile").read_text())
    assert [name for name, _ in told] == [
        "FROM",
        "ARG",
        "COPY",
        "WORKDIR",
        "RUN",
        "ENTRYPOINT",
        "CMD",
    ]
    found = dict(told)
    assert found["COPY"] == ". /course" and found["WORKDIR"] == "/course"
    course, place = tmp_path / "course", tmp_path / "class"
    for name in ("notebooks", "examples", "workshop", "zorplex_rl", "benchmarks"):
        shutil.copytree(
            ROOT / name, course / name, ignore=shutil.ignore_patterns("__pycache__", "__marimo__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, course)
    borrowed = {
        "PYTHONPATH": sysconfig.get_path("purelib"),
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(tmp_path),
    }
    installed = run("bash", "-euc", found["RUN"], cwd=course, env=borrowed)
    assert installed.returncode == 0, installed.stderr
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *json.loads(found["ENTRYPOINT"]),
        *json.loads(found["CMD"]),
        "ben",
        "--port",
        str(port),
    ]
    command = [{"/class": str(place), "0.0.0.0": "127.0.0.1"}.get(word, word) for word in command]
    served = subprocess.Popen(command, cwd=course, env=borrowed, stdout=subprocess.PIPE, text=True)
    try:
        addresses = {}
        for learner in ("me", "ben"):
            name, _, address = served.stdout.readline().strip().partition(": ")
            assert name == learner
            addresses[name] = address
        tokens = [address.partition("access_token=")[2] for address in addresses.values()]
        for mine, other in (tokens, tokens[::-1]):
            at = port if mine == tokens[0] else port + 1
            assert status(f"http://127.0.0.1:{at}/api/status?access_token={mine}") == 200
            assert status(f"http://127.0.0.1:{at}/api/status?access_token={other}") == 401
        assert (place / "me/notebooks/05_rl_intro.py").is_file() and (
            place / "me/zorplex_rl"
        ).is_symlink()
        (place / "me/notebooks/05_rl_intro.py").write_text("mine")
        classroom = str(course / ".venv/bin/python"), "workshop/classroom.py"
        again = run(*classroom, "start", str(place), "me", cwd=course, env=borrowed)
        assert (
            tokens[0] in again.stdout
            and (place / "me/notebooks/05_rl_intro.py").read_text() == "mine"
        )
    finally:
        served.send_signal(signal.SIGTERM)
        assert served.wait(30) == 0
    with pytest.raises(OSError, match="refused"):
        status(f"http://127.0.0.1:{port}/")
    ended = run(*classroom, "stop", str(place), cwd=course, env=borrowed)
    assert "nobody's server was running" in ended.stdout


def status(address: str) -> int:
    """The status with which an address answers."""
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
