"""What GitHub runs is what runs here, on the versions of Python that pyproject.toml allows."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
ALLOWED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
LOW, BEYOND = map(int, re.fullmatch(r">=3\.(\d+),<3\.(\d+)", ALLOWED).groups())
EXTREMES = [f"3.{LOW}", f"3.{BEYOND - 1}"]


def test_the_workflow_runs_ci_on_the_lowest_and_the_highest_python():
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    assert re.findall(r'"(3\.\d+)"', re.search(r"python: \[(.*)\]", workflow)[1]) == EXTREMES
    assert "image: python:${{ matrix.python }}-" in workflow
    assert "run: bash .ci/run" in workflow


def test_the_workflow_publishes_what_the_build_writes():
    workflow = (ROOT / ".github/workflows/site.yml").read_text()
    (built,), (published,) = re.findall(r"run: \./build_site\.sh (\S+)", workflow), re.findall(r"path: (\S+)", workflow)
    assert built == published


def test_pythons_names_each_version_and_skips_one_that_is_not_there(tmp_path):
    """On a machine with only the lowest Python, which is a script here: tests would take
    minutes."""
    script = tmp_path / ".ci" / "pythons"
    script.parent.mkdir()
    script.write_bytes((ROOT / ".ci/pythons").read_bytes())
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    programs = tmp_path / "bin"
    programs.mkdir()
    # Nothing else is on its PATH: /usr/bin may have any Python.
    for name in ("cp", "dirname", "mkdir", "sed"):
        (programs / name).symlink_to(shutil.which(name))
    lowest = programs / f"python{EXTREMES[0]}"
    # Asked for its version, it says it; asked for an environment, it copies itself there, where it
    # passes as pip and as pytest too.
    lowest.write_text(
        f'#!/bin/sh\ncase "$*" in *version_info*) echo {EXTREMES[0]};; "-m venv"*) mkdir -p "$3/bin"; '
        'cp "$0" "$3/bin/python"; cp "$0" "$3/bin/pip";; *"tests/broken.py"*) exit 1;; esac\n'
    )
    lowest.chmod(0o755)
    for argument, last, code in (("tests/fine.py", "passed", 0), ("tests/broken.py", "FAILED", 1)):
        run = subprocess.run(
            [shutil.which("bash"), str(script), argument],
            env={"PATH": str(programs), "HOME": str(tmp_path), "PYENV_ROOT": str(tmp_path / "pyenv")},
            capture_output=True,
            text=True,
        )
        said = run.stdout.splitlines()
        assert said[1] == f"Python {EXTREMES[0]}: {last}"
        assert said[2] == f"Python {EXTREMES[1]}: not on this machine, skipped", run.stdout
        assert run.returncode == code
