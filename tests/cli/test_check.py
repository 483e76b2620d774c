"""``zorplex-rl check``: one line for each thing that the course needs, and exit code 1 exactly if
notebooks would fail."""

from __future__ import annotations

import json
import re
import sys
import time
import tomllib
import webbrowser
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest
from zorplex_rl.cli.notebook_seconds import NotebookSeconds
from zorplex_rl.learning.calibration import seconds_per_step

from zorplex_rl.cli import check as check_command
from zorplex_rl.cli.check import Finding, notebook_times, run_alone
from zorplex_rl.cli.commands import main
from zorplex_rl.course.lesson import lesson
from zorplex_rl.course.site import build
from zorplex_rl.errors import ConfigError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RECORDED = NotebookSeconds("2026-11-22", "2 cores of something.", 0.2, {"05_rl_intro": 40.0, "06_services": 60.0})


def test_a_machine_that_runs_these_tests_is_ready(capsys, monkeypatch, tmp_path):
    # The calibration has a test of its own.
    monkeypatch.setattr(check_command, "RECORDED", tmp_path / "none.json")
    monkeypatch.setattr(check_command, "MEMORY_NEEDED", 0.1)
    assert main(["check"]) == 0
    said = capsys.readouterr().out
    lines = said.splitlines()
    assert [re.split(r"  +", line)[1] for line in lines[:8]] == [
        "Python", "memory", "cores", "disk", "shared memory", "processes", "browser", "GPU",
    ]  # fmt: skip
    assert {line.split()[0] for line in lines[:8]} <= {"ok", "note"}
    assert re.search(r"Monarch started one, and it answered after \d+\.\d s", said)
    assert "is missing; ./build_site.sh site --record" in said
    assert lines[-1] == "Ready."


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """Leave out what takes long."""
    monkeypatch.setattr(check_command, "RECORDED", tmp_path / "none.json")
    monkeypatch.setattr(check_command, "processes", lambda: Finding("ok", "processes", "not tried"))


def test_what_makes_notebooks_fail_is_named_again_at_the_end_and_is_exit_code_1(quick, capsys, monkeypatch):
    monkeypatch.setattr(check_command, "MEMORY_NEEDED", 1e6)
    monkeypatch.setattr(check_command, "DISK_NEEDED", 1e9)
    assert main(["check"]) == 1
    said = capsys.readouterr().out
    assert "close other programs until 1000000 GB are free" in said
    assert said.splitlines()[-1] == "Not ready: memory, disk."


def test_what_only_changes_how_one_begins_is_exit_code_0(quick, capsys, monkeypatch):
    def none(using=None):
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "get", none)
    monkeypatch.setattr("zorplex_rl.weights.shared_memory.allocate", lambda size: (None, None))
    monkeypatch.setattr(check_command, "MEMORY_NEEDED", 0.0)
    assert main(["check"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^note +browser +none found; open the address", said, re.MULTILINE)
    assert re.search(r"^note +shared memory +none \(this system has no memfd\)", said, re.MULTILINE)


def test_the_versions_of_python_are_those_of_pyproject(monkeypatch):
    allowed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    (low_major, low), (high_major, high) = check_command.PYTHONS
    assert allowed == f">={low_major}.{low},<{high_major}.{high + 1}"
    Version = namedtuple("Version", "major minor micro")
    for minor, state in ((low - 1, "no"), (low, "ok"), (high, "ok"), (high + 1, "no")):
        monkeypatch.setattr(sys, "version_info", Version(3, minor, 0))
        assert check_command.python().state == state


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import os; print('no such device'); os._exit(3)", "Monarch started none (no such device)"),
        ("import os; os.kill(os.getpid(), 9)", "Monarch started none (exit code -9)"),
        ("import time; time.sleep(600)", "Monarch started none (no answer within 2 s)"),
    ],
)
def test_a_probe_that_fails_dies_or_hangs_is_a_line_and_no_crash(monkeypatch, program, said):
    monkeypatch.setattr(check_command, "PROBE_SECONDS", 2.0)
    monkeypatch.setattr(
        check_command, "run_alone", lambda command, limit: run_alone([sys.executable, "-c", program], limit)
    )
    found = check_command.processes()
    assert found.state == "no"
    assert said in found.said


def test_a_machine_half_as_fast_takes_twice_the_recorded_seconds(tmp_path):
    RECORDED.write(tmp_path / "seconds.json")
    said = "\n".join(notebook_times(tmp_path / "seconds.json", calibrate=lambda limit: 0.4))
    assert "took 0.40 s here, and 0.20 s where the notebooks were recorded (2026-11-22, 2 cores of something)" in said
    assert re.search(r"05_rl_intro +80 s", said)
    assert re.search(r"06_services +120 s", said)


def test_what_is_recorded_is_read_again(tmp_path):
    RECORDED.write(tmp_path / "seconds.json")
    assert NotebookSeconds.read(tmp_path / "seconds.json") == RECORDED


def test_a_build_of_the_site_records_how_long_each_notebook_took(tmp_path, monkeypatch):
    """The build is a real one; that a notebook runs and becomes a page is left out."""
    page = SimpleNamespace(complaints=[], cells=[], lesson=None)
    monkeypatch.setattr(build, "export", lambda notebook: time.sleep(0.3 if notebook.stem == "02_slow" else 0.1))
    monkeypatch.setattr(build, "Page", SimpleNamespace(read=lambda source: page))
    monkeypatch.setattr(build, "publish", lambda course, pages, lessons, site: site.mkdir())
    monkeypatch.setattr(build, "zip_site", lambda site: site)
    # One before each notebook: a machine's speed changes within minutes.
    moments = iter((0.2, 0.3))
    monkeypatch.setattr("zorplex_rl.learning.calibration.seconds_per_step", lambda: next(moments))
    for name in ("01_quick", "02_slow"):
        (tmp_path / f"{name}.py").touch()
    with pytest.raises(ConfigError, match="its folder does not exist"):
        build.build_site(tmp_path, tmp_path / "site", record=tmp_path / "no" / "seconds.json")
    build.build_site(tmp_path, tmp_path / "site", record=tmp_path / "seconds.json")
    found = NotebookSeconds.read(tmp_path / "seconds.json")
    assert found.calibration == 0.25
    assert list(found.seconds) == ["01_quick", "02_slow"]
    assert found.seconds["01_quick"] < found.seconds["02_slow"]
    assert found.machine == lesson.machine()


@pytest.mark.parametrize(
    "spoilt",
    [
        "",
        "[]",
        "{}",
        json.dumps({"calibration": 0.0}),
        json.dumps({"seconds": {"05_rl_intro": "long"}}),
        json.dumps({"seconds": 3}),
    ],
)
def test_a_spoilt_recording_is_refused_in_a_sentence_that_says_how_to_write_it_anew(tmp_path, spoilt):
    file = tmp_path / "seconds.json"
    RECORDED.write(file)
    whole = json.loads(file.read_text())
    # Replaces one field, if it names one.
    file.write_text(json.dumps(whole | json.loads(spoilt)) if ":" in spoilt else spoilt)
    with pytest.raises(ConfigError, match="write it anew: ./build_site.sh site --record"):
        NotebookSeconds.read(file)
    assert "write it anew" in "".join(notebook_times(file))


def test_a_calibration_is_the_time_of_a_step_and_ends_when_its_time_is_over():
    import torch

    threads = torch.get_num_threads()
    # Without time for a second step, the first one counts.
    assert seconds_per_step(limit=0.0) > 0
    assert torch.get_num_threads() == threads
