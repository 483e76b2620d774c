"""The workshop kit: what it names exists, whoever is behind can go on, the handout is one sheet,
the archive says what it needs."""

from __future__ import annotations

import ast
import html
import itertools
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from pages import launched

from zorplex_rl.course.lesson import exercise

ROOT = Path(__file__).parents[2]
WORKSHOP = ROOT / "workshop"
NOTEBOOKS = {path.stem.partition("_")[0]: path for path in sorted((ROOT / "notebooks").glob("[0-9]*.py"))}
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
        name for name in named if not any((folder / name.removeprefix("./")).exists() for folder in (ROOT, WORKSHOP))
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
        if not re.search(rf"^\s*#{{2,3}} {re.escape(title)}$", NOTEBOOKS[number].read_text(), re.MULTILINE)
    ]
    assert wrong == []


def test_a_section_that_a_notebook_does_not_have_is_found():
    assert sections("## 05 RL\n\n### A\n- x\n### B\n## 06 S\n") == {"05": ["A", "B"], "06": []}


def test_the_guide_the_plans_and_the_handout_are_about_the_notebooks_that_there_are():
    course = set(NOTEBOOKS)
    assert set(sections(GUIDE)) == course
    assert set(re.findall(r"<tr><td>(\d\d[a-z]?)</td>", (WORKSHOP / "handout.html").read_text())) == course
    assert {
        name.partition("_")[0]
        for name in re.findall(r"^\| `(\d\S+)\.py` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    } == set(NOTEBOOKS)
    two_days = (WORKSHOP / "plan_two_days.md").read_text()
    assert set(re.findall(r"\| (\d\d[a-z]?): ", two_days)) | set(re.findall(r"\| (\d\d), whole: ", two_days)) == course


def minutes(plan: str) -> list[tuple[int, int]]:
    """From and to, in minutes, of every row of every table."""
    times = re.findall(r"^\| (\d+):(\d\d) \| (\d+):(\d\d) \|", plan, re.MULTILINE)
    return [(60 * int(a) + int(b), 60 * int(c) + int(d)) for a, b, c, d in times]


@pytest.mark.parametrize(("name", "total"), [("plan_90_minutes", 90), ("plan_half_day", 240), ("plan_two_days", 960)])
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
    rows = [line.split(" | ") for line in numbers.splitlines() if "`benchmarks/" in line and line.startswith("| ")]
    assert len(rows) >= 20
    logged = [float(n) for n in re.findall(r"(?<![\d.])\d+(?:\.\d+)?(?![\d.])", log)]
    for row in rows:
        source = re.search(r"`(benchmarks/\w+\.py)`", row[3])[1]
        assert f"· {source}" in log
        for number in re.findall(r"(?<![\d.])\d+\.\d+|(?<![\d.,])\d{3,}(?![\d,])", row[2]):
            digits = len(number.partition(".")[2])
            assert any(round(value, digits) == float(number) for value in logged), (row[1], number)


@pytest.mark.parametrize("notebook", NOTEBOOKS.values(), ids=lambda path: path.stem)
def test_whoever_is_behind_gets_a_copy_in_which_the_exercises_are_solved(notebook, tmp_path):
    source, names = catch_up().solve(notebook)
    (tmp_path / notebook.name).write_text(source)
    solved = list(exercise.exercises(catch_up()._load(tmp_path / notebook.name)))
    assert len(solved) == len(names) >= 3
    assert {name: exercise.complaint(check, stub) for name, stub, check, _ in solved} == dict.fromkeys(names)
    untouched = {
        name
        for name, stub, check, _ in exercise.exercises(catch_up()._load(notebook))
        if exercise.complaint(check, stub)
    }
    assert untouched == set(names)


def test_a_copy_may_stop_where_the_class_is():
    notebook = NOTEBOOKS["06"]
    source, names = catch_up().solve(notebook, 1)
    feedback = re.findall(r"exercise\.feedback\([^)]*?check_(\w+)", notebook.read_text())
    assert names == feedback[:1], "the first on the page is the first that is solved"
    bodies = {node.name: ast.unparse(node.body) for node in ast.parse(source).body if hasattr(node, "name")}
    assert [name for name in feedback if not bodies[name].endswith("...")] == names


def test_catching_up_never_writes_over_somebodys_work(tmp_path, capsys):
    copy = tmp_path / NOTEBOOKS["06"].name
    assert catch_up().main(["06", "--exercises", "0", "--out", str(tmp_path)]) == 0
    copy.write_text("mine")
    with pytest.raises(SystemExit, match="2"):
        catch_up().main(["06", "--out", str(tmp_path)])
    assert "may hold somebody's work" in capsys.readouterr().err
    assert copy.read_text() == "mine"


def test_a_notebook_that_is_not_there_is_refused_with_those_that_are(capsys):
    with pytest.raises(SystemExit, match="2"):
        catch_up().main(["77"])
    assert "no notebook '77'; expected one of" in capsys.readouterr().err


@pytest.mark.parametrize("paper", ["A4", "Letter"])
def test_the_handout_is_one_sheet(paper):
    with launched() as browser:
        page = browser.new_page()
        page.goto((WORKSHOP / "handout.html").as_uri())
        printed = page.pdf(format=paper, prefer_css_page_size=False, margin=dict.fromkeys(("top", "bottom"), "12mm"))
    assert len(re.findall(rb"/Type ?/Page\b", printed)) == 2


def run(*command: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def test_install_says_what_it_needs_before_it_does_anything(tmp_path):
    installer = tmp_path / "install.sh"
    shutil.copy(WORKSHOP / "install.sh", installer)
    lonely = run("bash", str(installer))
    assert lonely.returncode == 1
    assert "there are no wheels beside this file" in lonely.stderr
    (tmp_path / "platform.txt").write_text("3.99 linux-riscv64\n")
    for arguments in ([], [sys.executable]):
        other = run("bash", str(installer), *arguments)
        assert other.returncode == 1
        assert "the wheels are for Python 3.99 on linux-riscv64" in other.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["install.sh", "platform.txt"]


def test_the_bundle_is_made_from_an_installed_course_only(tmp_path):
    made = run(
        "bash",
        str(WORKSHOP / "bundle.sh"),
        str(tmp_path / "course.tar"),
        env={"PATH": "/usr/bin:/bin", "PYTHON": "/bin/false"},
    )
    assert made.returncode == 1
    assert "does not have the course installed" in made.stderr
    assert list(tmp_path.iterdir()) == []
