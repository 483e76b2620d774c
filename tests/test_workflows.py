"""What GitHub runs is what runs here, on the versions of Python that pyproject.toml allows."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALLOWED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
LOW, BEYOND = map(int, re.fullmatch(r">=3\.(\d+),<3\.(\d+)", ALLOWED).groups())


def test_the_workflow_runs_ci_on_each_python_that_is_allowed():
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    versions = re.findall(r'"(3\.\d+)"', re.search(r"python: \[(.*)\]", workflow)[1])
    assert versions == [f"3.{minor}" for minor in range(LOW, BEYOND)]
    assert "image: python:${{ matrix.python }}-" in workflow
    assert "run: bash .ci/run" in workflow


def test_the_container_for_developers_opens_the_course_as_the_readme_does():
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    commands = f"{container['postCreateCommand']} && {container['postAttachCommand']}"
    readme = (ROOT / "README.md").read_text().splitlines()
    (opened,) = [line for line in readme if line.startswith("python3") and " open 05" in line]
    assert commands.startswith(opened)
    (port,) = container["forwardPorts"]
    assert commands.endswith(f"--no-browser --port {port}")


def test_the_workflow_publishes_what_the_build_writes():
    workflow = (ROOT / ".github/workflows/site.yml").read_text()
    (built,), (published,) = (
        re.findall(r"run: \./build_site\.sh (\S+)", workflow),
        re.findall(r"path: (\S+)", workflow),
    )
    assert built == published


def test_the_branch_of_previews_has_the_notebooks_with_the_outputs_of_the_last_build(tmp_path):
    def git(*words) -> str:
        return subprocess.run(
            ["git", *map(str, words)], check=True, capture_output=True, text=True
        ).stdout

    origin, clone = tmp_path / "origin.git", tmp_path / "clone"
    git("init", "--quiet", "--bare", origin)
    git("clone", "--quiet", "--depth=1", ROOT.as_uri(), clone)
    git("-C", clone, "remote", "set-url", "origin", origin)
    shutil.copyfile(ROOT / ".ci/previews", clone / ".ci/previews")
    output = clone / "notebooks/__marimo__/session/05_rl_intro.py.json"
    output.parent.mkdir(parents=True)
    output.write_text("{}")
    subprocess.run(
        ["bash", clone / ".ci/previews"],
        check=True,
        env={**os.environ, "GITHUB_REPOSITORY": "one/fork"},
    )
    found = git("-C", origin, "ls-tree", "-r", "--name-only", "previews", "notebooks").split()
    assert {"notebooks/05_rl_intro.py", "notebooks/__marimo__/session/05_rl_intro.py.json"} < set(
        found
    )
    texts = [
        git("-C", origin, "show", f"previews:{name}")
        for name in ("notebooks/05_rl_intro.py", "README.md")
    ]
    assert 'zorplex-rl = { git = "https://github.com/one/fork" }' in texts[0]
    badges = [
        f"/one/fork/blob/previews/notebooks/{path.name}) |"
        for path in (ROOT / "notebooks").glob("[0-9]*.py")
    ]
    assert all(badge in texts[1] for badge in badges)
    assert git("-C", clone, "status", "--porcelain", "notebooks", "README.md") == ""
    assert "run: bash .ci/previews" in (ROOT / ".github/workflows/site.yml").read_text()
