"""Small real runs in places of their own, to strike and to watch: what the benchmarks of faults
share.

    with open_place("two hosts, tcp", folder) as place:
        run = place.train(*SMALL, "--out", str(folder / "run"))     on the host ctl, through the command line
        run.members()                                               {process id: its role}, on all hosts
        run.finish(limit=120)                                       its exit code, or None if it hangs
        place.leftovers()                                           what is left of it on any host

A place is one host (``one machine``, ``processes:2``) or three (``two hosts, …``): namespaces of
this machine, each with a network, process ids, a /tmp and a /dev/shm of its own. So whatever a run
leaves behind is seen, and nothing else is. All of it ends with the process that opened the place.
Linux and root are needed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from namespaced_hosts import Host, Network, namespaced_hosts, why_not

SMALL = (
    "--task simple --max-lag 0 --steps 24 --prompts-per-step 2 --group-size 4 --eval-tasks 4 --eval-every 100 "
    "--checkpoint-every 4 --max-tokens 64 --device cpu"
).split()
"""A run of about 20 s on two idle cores, most of which is its start."""
PROGRAM = (sys.executable, "-m", "zorplex_rl")
PORT = 4444
HOSTS = ("a", "b")
OTHERS = ("root", "torchinductor_root")
"""Folders in /tmp that Monarch and torch make for a user, once for all programs."""
LOSS = "4,32 0 0 4294963256,37 0 1 {},6 0 0 0,6 0 0 2"
"""A classic BPF program for ``tc``: draw 32 random bits, and drop the packet if the number is not
above {}."""


for number in (signal.SIGINT, signal.SIGHUP):
    # In a shell's background job, and under nohup, they are ignored, and so they would be in every
    # run.
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)


@functools.cache
def flags_of(command: str) -> str:
    """Return what ``zorplex-rl COMMAND --help`` prints: earlier versions have no TLS."""
    return subprocess.run([*PROGRAM, command, "--help"], capture_output=True, text=True).stdout


def places() -> list[str]:
    """Return the places that this version of the package knows."""
    return ["one machine", "processes:2", "two hosts, tcp", *["two hosts, tls"] * ("--tls" in flags_of("worker"))]


class Run:
    """One ``zorplex-rl train`` in a place. ``log`` is the file with everything that it printed."""

    def __init__(self, place: Place, words: tuple[str, ...], log: Path) -> None:
        self.place, self.log, self.began = place, log, time.monotonic()
        self._used: dict[int, float] = {}
        self.folder = Path(words[next(words.index(flag) for flag in ("--out", "--resume") if flag in words) + 1])
        with log.open("wb") as file:
            options: dict[str, Any] = {"stdout": file, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
            command = (*PROGRAM, "train", *words, *place.flags)
            self.process = place.ctl.popen(*command, cwd="/", env=place.environment, **options)

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def members(self) -> dict[int, str]:
        """Return the role of every process of this run that is alive, by its number here."""
        found = {}
        for host in self.place.network.values():
            for pid, words, role in processes(host):
                if role or any(word in words for word in ("train", "worker")):
                    found[pid] = role or ("controller" if "train" in words else "worker")
        return found

    def processor_seconds(self) -> float:
        """Return the processor seconds that it has used, workers left out: how far it is, however
        busy the machine."""
        for pid, role in self.members().items():
            if role != "worker":
                with contextlib.suppress(OSError):
                    self._used[pid] = processor_seconds(pid)
        return sum(self._used.values())

    def wait_until(self, used: float) -> None:
        """Return when it has used so many processor seconds, or is over."""
        while not self.is_over and self.processor_seconds() < used:
            time.sleep(0.1)

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to one process, which may be gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        if number == signal.SIGCONT:
            # nsenter stands still with the program that it runs, and waits to be continued itself.
            for waiting in (self.process, *self.place.workers.values()):
                if waiting.poll() is None:
                    waiting.send_signal(signal.SIGCONT)

    def finish(self, limit: float) -> int | None:
        """Wait for its end. Returns the exit code, or None if it is still there after ``limit``
        seconds: then it is killed."""
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            for pid in self.members():
                self.signal(pid, signal.SIGKILL)
            self.process.wait(10)
            return None

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def rows(self, event: str = "") -> list[dict[str, Any]]:
        """Return the rows of its folder so far, all or those of one ``event``."""
        with contextlib.suppress(OSError):
            lines = (self.folder / "metrics.jsonl").read_bytes().splitlines()
            found = [json.loads(line) for line in lines if line.endswith(b"}")]
            return [row for row in found if not event or row["event"] == event]
        return []

    def weights(self) -> str | None:
        """Return a fingerprint of the weights that it has left behind."""
        file = self.folder / "policy" / "model.safetensors"
        return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None

    def has_checkpoint(self) -> bool:
        return any((self.folder / "checkpoints").glob("step_*"))


class Place:
    """Where runs are started. ``ctl`` is the host of the command line, the others are those of
    ``zorplex-rl worker``."""

    def __init__(self, kind: str, network: Network, folder: Path) -> None:
        self.kind, self.network, self.folder = kind, network, folder
        self.ctl = network["ctl"]
        self.hosts = {name: host for name, host in network.items() if name != "ctl"}
        self.workers: dict[str, subprocess.Popen[Any]] = {}
        self.environment = os.environ | {"ZORPLEX_SECRET": "between us"}
        self.flags: tuple[str, ...] = ("--hosts", kind) if kind.startswith("processes") else ()
        if not self.hosts:
            return
        scheme = kind.rpartition(" ")[2]
        self._addresses = {name: f"{scheme}://{host.address}:{PORT}" for name, host in self.hosts.items()}
        if scheme == "tls":
            self.make_certificates(folder / "tls")
            permission = ("--tls", str(folder / "tls" / "controller"))
            self._of_worker = {name: ("--tls", str(folder / "tls" / name)) for name in self.hosts}
        else:
            # Versions without TLS have nothing to permit.
            permission = ("--insecure",) * ("--insecure" in flags_of("worker"))
            self._of_worker = dict.fromkeys(self.hosts, permission)
        self.flags = ("--hosts", "attach:" + ",".join(self._addresses.values()), *permission)
        self.heal()

    def make_certificates(self, folder: Path) -> None:
        """Make an authority and certificates for all machines of this place."""
        controller, *hosts = (f"{name},{host.address}" for name, host in self.network.items())
        words = (*hosts, "--to", str(folder), "--controller", controller)
        subprocess.run([*PROGRAM, "certificates", *words], check=True, stdout=subprocess.DEVNULL)

    def train(self, *words: str, log: str = "out.txt") -> Run:
        """Start ``zorplex-rl train`` here; the hosts are named already."""
        return Run(self, words, self.folder / log)

    def heal(self) -> None:
        """Have every host up, connected, and with a worker that listens."""
        for name, host in self.hosts.items():
            if not host.inside.is_up:
                host.start()
            host.restore()
            # Where nothing was lost, there is nothing to remove.
            subprocess.run(host.inside.enter("tc", "qdisc", "del", "dev", "eth0", "clsact"), capture_output=True)
            if not host.listens(PORT):
                with (self.folder / f"worker-{name}.txt").open("ab") as log:
                    command = (*PROGRAM, "worker", "--listen", self._addresses[name], *self._of_worker[name])
                    options: dict[str, Any] = {"stdout": log, "stderr": subprocess.STDOUT}
                    self.workers[name] = host.popen(*command, cwd="/", env=self.environment, **options)
        for name, host in self.hosts.items():
            if not eventually(lambda host=host: host.listens(PORT), 120):
                raise OSError(f"the worker on {name} does not listen; see {self.folder}")

    def lose_packets(self, name: str, share: float) -> None:
        """Drop this share of the packets that the host sends, at random."""
        enter = self.hosts[name].inside.enter
        subprocess.run(enter("tc", "qdisc", "add", "dev", "eth0", "clsact"), check=True)
        program = LOSS.format(int(share * 2**32))
        words = f"filter add dev eth0 egress bpf direct-action bytecode {program.replace(' ', '~')}".split()
        subprocess.run(enter("tc", *(word.replace("~", " ") for word in words)), check=True)

    def age_folders(self, seconds: float = 120.0) -> None:
        """Make the temporary folders of all hosts look older: what is young is not swept, as its
        owner may just have begun."""
        for host in self.network.values():
            if host.inside.is_up:
                for path in host.path("/tmp").iterdir():
                    os.utime(path, times=(time.time() - seconds,) * 2, follow_symlinks=False)

    def leftovers(self, seconds: float = 40.0) -> list[str]:
        """Return what a run that is over has left behind, after at most ``seconds``: its processes,
        folders and sockets."""
        eventually(lambda: not self._left(), seconds)
        found = self._left()
        # A worker may wait for the next run. If it is asked to end, nothing at all is left.
        for name, host in self.hosts.items():
            for pid, words, _ in processes(host):
                if "worker" in words:
                    os.kill(pid, signal.SIGTERM)
            if not eventually(lambda host=host: not host.processes(), 15):
                found.append(f"{name}: {host.processes()[0][:80]} after SIGTERM for the worker")
            found += [f"{name}: {file}" for file in _files(host)]
        return sorted(set(found))

    def _left(self) -> list[str]:
        found = [f"ctl: process {words[:60]}" for _, words, _ in processes(self.ctl)]
        found += [f"ctl: {file}" for file in _files(self.ctl)]
        found += [f"ctl: abstract socket {name}" for name in _abstract_sockets(self.ctl)]
        for name, host in self.hosts.items():
            found += [f"{name}: process {role}" for _, _, role in processes(host) if role]
        return found


def processes(host: Host) -> Iterator[tuple[int, str, str]]:
    """Yield number, command line and role (empty for one that Monarch has not started) of every
    process on ``host``."""
    if not host.inside.is_up:
        return
    here = os.readlink(f"/proc/{host.inside.first}/ns/pid")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(process / "ns/pid") != here or int(process.name) == host.inside.first:
                continue
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            variables = (process / "environ").read_bytes().split(b"\0")
            named = next(
                (v.partition(b"=")[2].decode() for v in variables if v.startswith(b"HYPERACTOR_PROCESS_NAME=")), ""
            )
            # generator_0-0 @ host
            role = named.partition(" @")[0].rpartition("-")[0].rstrip("0123456789").rstrip("_")
            if words:
                yield int(process.name), words, role


def processor_seconds(pid: int) -> float:
    """Return the processor seconds that a process has used. Raises OSError if it is gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _files(host: Host) -> list[str]:
    if not host.inside.is_up:
        return []
    found = [path for folder in ("/tmp", "/dev/shm") for path in host.path(folder).iterdir() if path.name not in OTHERS]
    return [f"/{'tmp' if path.parent.name == 'tmp' else 'dev/shm'}/{path.name}" for path in found]


def _abstract_sockets(host: Host) -> list[str]:
    lines = Path(f"/proc/{host.inside.first}/net/unix").read_text().splitlines()
    return [line.split()[-1] for line in lines if line.split()[-1].startswith("@")]


@contextlib.contextmanager
def open_place(kind: str, folder: Path) -> Iterator[Place]:
    """Make the hosts of ``kind`` (one of ``places()``), and end them and whatever runs on them.
    ``folder`` is for logs."""
    if reason := why_not():
        raise OSError(reason)
    folder.mkdir(parents=True, exist_ok=True)
    with namespaced_hosts("ctl", *(HOSTS if kind.startswith("two") else ())) as network:
        place = Place(kind, network, folder)
        try:
            yield place
        finally:
            for host in network.values():
                host.kill()
            for worker in place.workers.values():
                worker.wait()


def eventually(claim: Callable[[], Any], seconds: float) -> bool:
    """Return whether ``claim()`` comes true within ``seconds``."""
    until = time.monotonic() + seconds
    while not claim():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def append_row(file: Path, row: dict[str, Any]) -> None:
    """Add ``row`` to a .jsonl file."""
    with file.open("a") as opened:
        opened.write(json.dumps(row, ensure_ascii=False) + "\n")


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Return all rows of a .jsonl file, none if it is not there."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
