"""What the kernel refuses to a process that has confined itself, whoever asks for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from zorplex_rl.learning.landlock import without

CONFINED = """
import pathlib, subprocess, sys, sysconfig, torch
from safetensors.torch import load_file, save_file
from zorplex_rl.learning.landlock import confine
from zorplex_rl.policy.load import EMBEDDED_PATH
folder, weights, nothing = pathlib.Path(sys.argv[1]), EMBEDDED_PATH / "model.safetensors", {"a": torch.zeros(1)}
libraries = [pathlib.Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib")]
if not confine(folder, [*libraries, EMBEDDED_PATH.parent], EMBEDDED_PATH):
    sys.exit(3)
for attempt in (
    lambda: save_file(nothing, folder / "own"),
    lambda: load_file(folder / "own"),
    lambda: (EMBEDDED_PATH.parent / "load.py").read_text(),
    lambda: load_file(weights),
    lambda: torch.UntypedStorage.from_file(str(weights), False, 8),
    lambda: save_file(nothing, folder.parent / "elsewhere"),
    lambda: torch._C.PyTorchFileWriter(str(folder.parent / "elsewhere")),
    lambda: (EMBEDDED_PATH.parent / "load.py").open("a"),
    lambda: subprocess.run(["/bin/true"], check=True),
):
    try:
        attempt()
        print("done", flush=True)
    except Exception as error:
        print("refused", flush=True)
        print(error, file=sys.stderr)
"""


def test_files_that_no_hook_sees_and_other_programs_are_refused(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    done = subprocess.run([sys.executable, "-c", CONFINED, str(folder)], capture_output=True, text=True, timeout=120)
    if done.returncode == 3:
        pytest.skip("this kernel has no Landlock")
    assert done.stdout.split() == ["done"] * 3 + ["refused"] * 6, done
    assert not (tmp_path / "elsewhere").exists()


def test_a_tree_is_readable_without_what_is_hidden_in_it(tmp_path):
    for name in ("a/b/hidden", "a/b/seen", "a/c", "d"):
        (tmp_path / name).mkdir(parents=True)
    hidden = tmp_path / "a" / "b" / "hidden"
    assert set(without(tmp_path, hidden)) == {tmp_path / name for name in ("a/b/seen", "a/c", "d")}
    assert list(without(tmp_path / "d", hidden)) == [tmp_path / "d"]
    assert [*without(hidden, hidden), *without(tmp_path / "none", hidden)] == []
    assert list(without(Path("/none"), hidden)) == []
