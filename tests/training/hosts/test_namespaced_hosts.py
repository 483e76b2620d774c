"""The hosts that other tests run on are hosts: nothing is shared, a kill kills all, a cut is
silent, and nothing is left afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from namespaced_hosts import namespaced_hosts, needs_hosts, wait_for

pytestmark = needs_hosts


def links() -> list[str]:
    """Return the names of all network devices that this process sees."""
    return sorted(path.name for path in Path("/sys/class/net").iterdir())


def processes_in(namespace: str) -> list[str]:
    """Return the processes in a network namespace, such as ``net:[4026531840]``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(process / "ns/net") == namespace:
                found.append(process.name)
    return found


def test_hosts_share_neither_memory_nor_files_nor_names_nor_process_ids():
    before = links()
    with namespaced_hosts("a", "b") as network:
        a, b = network["a"], network["b"]
        assert links() == before
        spaces = [os.readlink(f"/proc/{host.inside.first}/ns/net") for host in (a, b)]
        assert all(map(processes_in, spaces))
        assert a.run("hostname").strip() == "a" and b.run("hostname").strip() == "b"
        assert a.python("import os; print(os.getpid())") == b.python("import os; print(os.getpid())")
        a.run("touch", "/dev/shm/mine", "/tmp/mine", cwd="/")
        assert a.shared_memory() == ["mine"] and b.shared_memory() == []
        assert "mine" not in b.run("ls", "/tmp", cwd="/") and not Path("/tmp/mine").exists()
    assert not any(map(processes_in, spaces)) and links() == before


def test_a_host_sees_in_tmp_what_is_installed_there_and_nothing_else(tmp_path, monkeypatch):
    if not tmp_path.is_relative_to("/tmp"):
        pytest.skip("pytest's folders are elsewhere")
    for name in ("installed", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "installed"))
    with namespaced_hosts("a") as network:
        assert network["a"].run("find", str(tmp_path), "-type", "f", cwd="/").split() == [f"{tmp_path}/installed/file"]
        assert network["a"].shared_memory() == []


def test_a_cut_link_answers_nothing_and_works_again_once_it_is_restored():
    with namespaced_hosts("a", "b") as network:
        host, caller = network["a"], network["b"]
        serve = "import socket; s = socket.create_server(('', 4000)); print('up', flush=True)\nwhile True: s.accept()[0].close()"
        server = host.popen(sys.executable, "-c", serve, stdout=subprocess.PIPE)
        assert server.stdout.readline() == b"up\n"
        dial = f"import socket; socket.create_connection(('{host.address}', 4000), 1.0)"
        caller.python(dial)
        host.cut()
        cut = subprocess.run(caller.entered(sys.executable, "-c", dial), stderr=subprocess.PIPE, text=True)
        # Nothing refuses: the caller's own patience ends.
        assert "TimeoutError" in cut.stderr or "timed out" in cut.stderr
        assert any("create_server" in line for line in host.processes())
        host.restore()
        caller.python(dial)
        host.kill()
        assert server.wait(timeout=10) != 0 and host.processes() == []
        host.start()
        assert host.run("hostname").strip() == "a"


def test_nothing_is_left_of_the_hosts_of_a_killed_process():
    program = """if True:
        import os, time
        from namespaced_hosts import namespaced_hosts
        with namespaced_hosts("a") as network:
            network["a"].popen("sleep", "4321")
            host = network["a"]
            spaces = [os.readlink(f"/proc/{inside.first}/ns/net") for inside in (host.inside, host.switch)]
            print(*spaces, flush=True)
            time.sleep(60)
    """
    before = links()
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    spaces = owner.stdout.readline().decode().split()
    assert len(spaces) == 2 and all(map(processes_in, spaces))
    time.sleep(0.2)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    wait_for(lambda: not any(map(processes_in, spaces)), 10, "host and network ended with their owner")
    assert links() == before
