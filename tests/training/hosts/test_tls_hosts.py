"""A run on several hosts over TLS: it learns as without, nothing readable crosses the network, and
who has no certificate is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from namespaced_hosts import namespaced_hosts, needs_hosts, wait_for
from runs import SMALL, as_flags, final_weights, same_weights
from zorplex_rl.services.certificates import make_certificates

from zorplex_rl.config import Config
from zorplex_rl.policy.load import load_policy
from zorplex_rl.services.runtime import SECRET

PORT = 4444
PROGRAM = (sys.executable, "-m", "zorplex_rl")
RECORDER = """if True:
    import signal, socket, sys
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    packets.setsockopt(socket.SOL_SOCKET, 33, 256 << 20)  # SO_RCVBUFFORCE: nothing is lost
    packets.bind(("eth0", 0))
    with open("/tmp/record", "wb", 0) as record:
        print("up", flush=True)
        while True:
            # Without the headers of IP and TCP a pattern may still be cut in two, but not all of them.
            record.write(packets.recv(1 << 17)[54:])
"""


def give_certificates(made: Path, network) -> None:
    """Copy to each host its own files, and nothing else."""
    for name, host in network.items():
        shutil.copytree(made / {"ctl": "controller"}.get(name, name), host.path("/tmp/tls"))


def start(host, *command: str, **options) -> subprocess.Popen:
    return host.popen(
        *PROGRAM, *command, cwd="/", env=os.environ | {SECRET: "between us"}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, **options,
    )  # fmt: skip


def start_worker(host, scheme: str) -> subprocess.Popen:
    permission = ("--tls", "/tmp/tls") if scheme == "tls" else ("--insecure",)
    worker = start(host, "worker", "--listen", f"{scheme}://{host.address}:{PORT}", *permission)
    wait_for(lambda: host.listens(PORT) or worker.poll() is not None, 120, "the worker listens")
    assert worker.poll() is None, worker.stdout.read()
    return worker


def train(network, scheme: str, config: Config, out: str = "/tmp/run") -> subprocess.Popen:
    hosts = "attach:" + ",".join(f"{scheme}://{network[name].address}:{PORT}" for name in "ab")
    permission = {"tls": "/tmp/tls"} if scheme == "tls" else {"insecure": True}
    return start(network["ctl"], "train", *as_flags(config.changed(hosts=hosts, **permission)), "--out", out)


def plain_words(record: bytes) -> list[str]:
    """Return what of a run can be read in ``record``: settings, tasks, tool calls, and weights."""
    weights = [weight for weight in load_policy("embedded").model.state_dict().values() if weight.numel() >= 1000]
    # 32 bytes each, spread over the model: a packet's end cuts few of them in two.
    parts = [weight.flatten()[at : at + 8] for weight in weights for at in (0, 500, 900)]
    words = {b"prompts_per_step": "a setting", b"LOOKUP[": "a tool call", b"Tell the value": "a task"}
    words |= {part.numpy().tobytes(): "a weight" for part in parts if part.unique().numel() == 8}
    return sorted({what for word, what in words.items() if word in record})


def run_recorded(network, scheme: str) -> tuple[Path, bytes]:
    """Train over ``scheme``. Returns the run's folder, and all that crossed the trainer's host's
    link."""
    workers = [start_worker(network[name], scheme) for name in "ab"]
    recorder = network["a"].popen(sys.executable, "-c", RECORDER, cwd="/", stdout=subprocess.PIPE)
    assert recorder.stdout.readline() == b"up\n"
    run = train(network, scheme, SMALL)
    output, _ = run.communicate(timeout=400)
    assert run.returncode == 0, output
    recorder.terminate()
    recorder.wait()
    record = network["a"].path("/tmp/record").read_bytes()
    for worker in workers:
        worker.kill()
    return network["ctl"].path("/tmp/run"), record


@needs_hosts
def test_a_run_over_tls_ends_in_the_weights_of_one_without_and_nothing_readable_crosses_the_network(sync_run, tmp_path):
    made = tmp_path / "made"
    with namespaced_hosts("ctl", "a", "b") as network:
        addresses = {name: f"{name},{host.address}" for name, host in network.items()}
        make_certificates(made, [addresses["a"], addresses["b"]], addresses["ctl"], days=1)
        give_certificates(made, network)
        folder, record = run_recorded(network, "tls")
        assert same_weights(final_weights(folder), final_weights(sync_run.path))
        # Version 0 of the weights alone has more bytes.
        assert len(record) > 3_000_000 and plain_words(record) == []


@pytest.mark.long
@needs_hosts
def test_the_same_words_are_found_where_the_run_goes_over_plain_tcp(sync_run):
    with namespaced_hosts("ctl", "a", "b") as network:
        folder, record = run_recorded(network, "tcp")
        assert same_weights(final_weights(folder), final_weights(sync_run.path))
        assert plain_words(record) == ["a setting", "a task", "a tool call", "a weight"]
