"""The hosts that other tests run on are hosts: nothing is shared, a kill kills all, a cut is silent, and nothing is left afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from namespaced_hosts import NETNS, namespaced_hosts, needs_hosts, wait_for

pytestmark = needs_hosts


def leftovers(pid: int) -> list[str]:
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    return [path.name for path in NETNS.glob(f"zx{pid}x*")] + [
        line for line in links.splitlines() if f"zx{pid}x" in line
    ]


def test_hosts_share_neither_memory_nor_files_nor_names_nor_process_ids():
    with namespaced_hosts("a", "b") as network:
        a, b = network["a"], network["b"]
        assert a.run("hostname").strip() == "a" and b.run("hostname").strip() == "b"
        assert a.python("import os; print(os.getpid())") == b.python("import os; print(os.getpid())")
        a.run("touch", "/dev/shm/mine", "/tmp/mine", cwd="/")
        assert a.shared_memory() == ["mine"] and b.shared_memory() == []
        assert "mine" not in b.run("ls", "/tmp", cwd="/") and not Path("/tmp/mine").exists()
    assert leftovers(os.getpid()) == []


def test_a_cut_link_answers_nothing_and_works_again_once_it_is_restored():
    with namespaced_hosts("a") as network:
        host = network["a"]
        serve = "import socket; s = socket.create_server(('', 4000)); print('up', flush=True)\nwhile True: s.accept()[0].close()"
        server = host.popen(sys.executable, "-c", serve, stdout=subprocess.PIPE)
        assert server.stdout.readline() == b"up\n"
        dial = f"import socket; socket.create_connection(('{host.address}', 4000), 1.0)"
        subprocess.run([sys.executable, "-c", dial], check=True)
        host.cut()
        cut = subprocess.run([sys.executable, "-c", dial], stderr=subprocess.PIPE, text=True)
        # Nothing refuses: the caller's own patience ends.
        assert "TimeoutError" in cut.stderr or "timed out" in cut.stderr
        assert any("create_server" in line for line in host.processes())
        host.restore()
        subprocess.run([sys.executable, "-c", dial], check=True)
        host.kill()
        assert server.wait(timeout=10) != 0 and host.processes() == []
        host.start()
        assert host.run("hostname").strip() == "a"


def test_the_hosts_of_a_killed_process_end_with_it_and_the_next_use_removes_the_rest(tmp_path):
    program = """if True:
        import time
        from namespaced_hosts import namespaced_hosts
        with namespaced_hosts("a") as network:
            network["a"].popen("sleep", "4321")
            print("up", flush=True)
            time.sleep(60)
    """
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=Path(__file__).parent)
    assert owner.stdout.readline() == b"up\n"
    time.sleep(0.2)
    owner.send_signal(signal.SIGKILL)
    owner.wait()

    def sleeps() -> bool:
        return subprocess.run(["pgrep", "-fx", "sleep 4321"], capture_output=True).returncode == 0

    wait_for(lambda: not sleeps(), 10, "the process on the host ended with the host's owner")
    assert leftovers(owner.pid)
    with namespaced_hosts("b"):
        assert leftovers(owner.pid) == []
