"""What GitHub runs is what runs here, on the versions of Python that pyproject.toml allows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALLOWED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
LOW, BEYOND = map(int, re.fullmatch(r">=3\.(\d+),<3\.(\d+)", ALLOWED).groups())


def test_the_workflow_runs_ci_on_the_lowest_and_the_highest_python():
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    assert re.findall(r'"(3\.\d+)"', re.search(r"python: \[(.*)\]", workflow)[1]) == [f"3.{LOW}", f"3.{BEYOND - 1}"]
    assert "image: python:${{ matrix.python }}-" in workflow
    assert "run: bash .ci/run" in workflow


def test_the_workflow_publishes_what_the_build_writes():
    workflow = (ROOT / ".github/workflows/site.yml").read_text()
    (built,), (published,) = re.findall(r"run: \./build_site\.sh (\S+)", workflow), re.findall(r"path: (\S+)", workflow)
    assert built == published
