"""What a killed process leaves in the folder for temporary files is swept by the next one, and
nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from zorplex_rl.errors import ConfigError
from zorplex_rl.services import own_folder

OWNER = """if True:
    import sys
    from zorplex_rl.services import own_folder
    own_folder.MOST_BYTES = {}
    print(own_folder.own_folder(), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def owner(tmp_path, monkeypatch):
    """A process with a folder of its own, old enough to be swept."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(own_folder, "MOST_BYTES", 1000)
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(own_folder.MOST_BYTES)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    folder = Path(process.stdout.readline().strip())
    (folder / "file").touch()
    os.utime(folder, (0, 0))
    yield process, folder
    process.kill()
    process.communicate()


def test_the_folder_of_a_killed_process_is_swept_and_that_of_a_living_one_is_not(owner):
    process, folder = owner
    own_folder.sweep()
    assert folder.exists()
    process.kill()
    process.wait()
    own_folder.sweep()
    assert not folder.exists()


def test_a_folder_goes_with_its_process(owner):
    process, folder = owner
    process.communicate(timeout=30)
    assert not folder.exists()


def test_what_is_new_or_not_ours_is_left_alone(owner, tmp_path, monkeypatch):
    process, folder = owner
    process.kill()
    process.wait()
    os.utime(folder)
    (tmp_path / "zorplex-notes").mkdir()
    os.utime(tmp_path / "zorplex-notes", (0, 0))
    own_folder.sweep()
    # It is too young to know whether its process has locked it yet.
    assert folder.exists() and (tmp_path / "zorplex-notes").exists()
    os.utime(folder, (0, 0))
    os.chown(folder, 12345, -1) if os.geteuid() == 0 else monkeypatch.setattr(os, "getuid", lambda: -1)
    own_folder.sweep()
    assert folder.exists()


@pytest.mark.parametrize("folder", ["/proc/none", "/dev/null", "/tmp/" + 90 * "a"])
def test_a_folder_for_temporary_files_that_cannot_be_used_is_one_sentence(folder, monkeypatch):
    """Monarch would end in a traceback of its own: it knows TMPDIR alone, and looks for no other
    folder."""
    monkeypatch.setenv("TMPDIR", folder)
    with pytest.raises(
        ConfigError, match=f"'{folder}', (cannot be written|has a path that is 18 bytes too long).*set the .* TMPDIR"
    ):
        own_folder.own_folder()
