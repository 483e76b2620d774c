"""``zorplex-rl check``: one line for each thing that the course needs, and exit code 1 exactly if
notebooks would fail."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace

import pytest

from zorplex_rl.cli.commands import main
from zorplex_rl.course import check, notebook_seconds
from zorplex_rl.course.lesson import lesson
from zorplex_rl.course.site import build

pytestmark = pytest.mark.slow


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    """Recorded seconds of two notebooks, on a machine as fast as this one is half."""
    file = tmp_path / "seconds.json"
    notebook_seconds.record(
        file, "2 cores of something", 0.2, {"05_rl_intro": 40.0, "06_services": 60.0}
    )
    monkeypatch.setattr(check, "RECORDED", file)
    monkeypatch.setattr(check, "seconds_per_step", lambda: 0.4)


def test_a_machine_that_runs_these_tests_is_ready_and_half_as_fast_takes_twice_the_seconds(
    recorded, capsys, monkeypatch
):
    monkeypatch.setattr(check, "MEMORY_GB", 0.1)
    assert main(["check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    looked_at = ["Python", "memory", "cores", "disk", "processes"]
    assert [re.split(r"  +", line)[1] for line in lines[:5]] == looked_at
    assert {line.split()[0] for line in lines[:5]} <= {"ok", "note"}
    assert re.search(r"after \d+\.\d s", lines[4])
    assert [line.split() for line in lines[5:] if "_" in line] == [
        ["05_rl_intro", "80", "s"],
        ["06_services", "120", "s"],
    ]
    assert lines[-1] == "Ready."


def test_what_makes_notebooks_fail_is_named_again_at_the_end_and_what_changes_how_one_begins_is_a_note(
    recorded, capsys, monkeypatch
):
    async def no_process() -> float:
        raise OSError("no such device")

    monkeypatch.setattr(check, "MEMORY_GB", 1e6)
    monkeypatch.setattr(check, "start_one_process", no_process)
    monkeypatch.setattr("zorplex_rl.devices.cores", lambda: 1)
    assert main(["check"]) == 1
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == "Not ready: memory, processes."
    assert "no such device" in said
    assert re.findall(r"^note +(\w+)", said, re.MULTILINE) == ["cores"]


def test_a_build_of_the_site_records_how_long_each_notebook_took(tmp_path, monkeypatch):
    """The build is a real one; that a notebook runs and becomes a page is left out."""
    page = SimpleNamespace(complaints=[], cells=[], lesson=None)
    monkeypatch.setattr(
        build,
        "export",
        lambda notebook, jobs: time.sleep(0.3 if notebook.stem == "02_slow" else 0.1),
    )
    monkeypatch.setattr(build, "Page", SimpleNamespace(read=lambda source: page))
    monkeypatch.setattr(build, "publish", lambda course, pages, lessons, site: site.mkdir())
    # One before each notebook: a machine's speed changes within minutes.
    moments = iter((0.2, 0.3))
    monkeypatch.setattr(notebook_seconds, "seconds_per_step", lambda: next(moments))
    for name in ("01_quick", "02_slow"):
        (tmp_path / f"{name}.py").touch()
    build.build_site(tmp_path, tmp_path / "site", record=tmp_path / "seconds.json")
    found = check.json.loads((tmp_path / "seconds.json").read_text())
    assert (found["calibration"], found["machine"]) == (0.25, lesson.machine())
    assert list(found["seconds"]) == ["01_quick", "02_slow"]
    assert found["seconds"]["01_quick"] < found["seconds"]["02_slow"]
