"""A run on several hosts, made of network namespaces: everything between them is encrypted, both
ends are known, and what becomes of hosts that die, are cut off and come back."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from namespaced_hosts import Host as NamespacedHost
from namespaced_hosts import Network, namespaced_hosts, needs_hosts, wait_for
from runs import (
    SMALL,
    as_flags,
    counters,
    final_weights,
    same_weights,
    train_here,
    undisturbed_weights,
)

from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError, HostError
from zorplex_rl.hosts.hosts import TLS_FILES, Host, Hosts, check_encryption, parse_hosts
from zorplex_rl.hosts.lease import LEASE_SECONDS, Lease
from zorplex_rl.run.folder import RunFolder

pytestmark = pytest.mark.slow

PORT = 4444
PROGRAM = (sys.executable, "-m", "zorplex_rl")
TLS = dict(
    zip(TLS_FILES, ("/tmp/tls/host.pem", "/tmp/tls/host.key", "/tmp/tls/ca.pem"), strict=True)
)
LONGER = SMALL.changed(steps=14, checkpoint_every=3)


@pytest.mark.parametrize(
    "text", ["pigeon", "this:2", "processes:0", "attach:", "attach:a:4444", "attach:tcp://a"]
)
def test_hosts_that_cannot_be_are_refused(text):
    with pytest.raises(ConfigError, match="--hosts is"):
        parse_hosts(text)


def test_nothing_goes_unencrypted_between_hosts_unless_that_is_allowed(monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match="--insecure"):
        check_encryption(["tcp://10.0.0.2:4444"], insecure=False)
    check_encryption(["tcp://10.0.0.2:4444"], insecure=True)
    for name in TLS_FILES:
        monkeypatch.setenv(name, str(tmp_path / "missing.pem"))
    with pytest.raises(ConfigError, match="HYPERACTOR_TLS_CERT"):
        check_encryption(["tls://10.0.0.2:4444"], insecure=True)


def test_the_trainer_lives_on_the_first_host_that_is_alive_and_generators_are_spread():
    hosts = Hosts(Config(), [Host(name, mesh=None) for name in "abc"])
    placed = {
        name: hosts.place(name).name
        for name in ("trainer", "generator_0", "generator_1", "generator_2")
    }
    assert placed == {"trainer": "a", "generator_0": "b", "generator_1": "c", "generator_2": "a"}
    assert [hosts.place(name) for name in ("dataset_0", "replay_buffer_0", "reward_0")] == [
        None
    ] * 3
    hosts.hosts[0].lost.set()
    assert hosts.place("trainer_1").name == "b"
    for host in hosts.hosts:
        host.lost.set()
    with pytest.raises(HostError, match="no host is left"):
        hosts.place("trainer_2")


def test_a_message_that_was_long_on_its_way_does_not_extend_a_lease():
    """The controller has ended its wait at (the arrival of the last token + the lease); by then the
    host must be over."""
    lease = Lease(now=0.0)
    lease.renew(5.0)
    # The link is cut here. The last renewal that was sent, with the same token, arrives when it is
    # restored.
    lease.renew(5.0)
    assert lease.runs_out == 5.0 + LEASE_SECONDS


def test_a_run_on_two_workers_of_this_machine_ends_in_the_weights_of_a_run_without_hosts(tmp_path):
    train_here(SMALL.changed(hosts="processes:2"), tmp_path / "run")
    assert same_weights(final_weights(tmp_path / "run"), undisturbed_weights(SMALL))


def give_certificates(folder: Path, *hosts: NamespacedHost) -> None:
    """Make an authority and one certificate as docs/HOSTS.md does, and copy them to these hosts."""
    folder.mkdir()

    def openssl(words: str) -> None:
        subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True)

    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    openssl(f"req -x509 {key} -keyout ca.key -out ca.pem -days 30 -subj /CN=zorplex")
    openssl(f"req {key} -keyout host.key -out host.csr -subj /CN=host")
    names = ",".join(f"IP:{host.address}" for host in hosts)
    (folder / "host.ext").write_text(
        f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n"
    )
    openssl(
        "x509 -req -in host.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile host.ext -out host.pem -days 30"
    )
    for host in hosts:
        shutil.copytree(folder, host.path("/tmp/tls"))


@contextmanager
def workers(network: Network, names: str):
    """Workers on these hosts. Yields what to give to ``--hosts``."""
    addresses = {name: f"tls://{network[name].address}:{PORT}" for name in names}
    with ExitStack() as running:
        for name, address in addresses.items():
            process = network[name].popen(
                *PROGRAM, "worker", "--listen", address, cwd="/", env=os.environ | TLS
            )
            running.callback(process.wait)
            running.callback(process.kill)
        for name in names:
            wait_for(
                lambda host=network[name]: host.address in host.listening(),
                120,
                "the worker listens",
            )
        yield "attach:" + ",".join(addresses.values())


def begin(controller, config: Config) -> subprocess.Popen:
    """Train on ``controller``, into a folder that no other host can see."""
    return controller.popen(
        *PROGRAM, "train", *as_flags(config), "--out", "/tmp/run", cwd="/", env=os.environ | TLS,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def rows(path: Path, event: str) -> list[dict]:
    return [row for row in RunFolder(path).metrics() if row["event"] == event]


@needs_hosts
def test_over_tls_a_generators_host_killed_the_trainers_killed_and_its_next_cut_off_cost_nothing_but_time(
    tmp_path,
):
    """The weights are those of a run in one process that nothing disturbed, bit for bit: every
    group was trained on once, in its turn."""
    with namespaced_hosts("ctl", "a", "b", "c", "d") as network:
        give_certificates(tmp_path / "tls", *network.values())
        with workers(network, "abcd") as hosts:
            controller, path = network["ctl"], network["ctl"].path("/tmp/run")
            run = begin(controller, LONGER.changed(hosts=hosts))

            def reached(event: str, number: int) -> None:
                wait_for(
                    lambda: len(rows(path, event)) >= number or run.poll() is not None,
                    200,
                    f"{event} {number}",
                )
                assert run.poll() is None, run.stdout.read()

            reached("step", 1)
            # Nothing listens but what was asked for, and no host has touched its /dev/shm.
            assert controller.listening() == {controller.address}
            for name in "abcd":
                assert network[name].listening() == {network[name].address}
                assert network[name].shared_memory() == []
            speaks_tls_only(controller, network["d"].address)
            network["b"].kill()
            reached("restart", 1)
            reached("step", 5)
            network["a"].kill()
            reached("restart", 2)
            reached("step", 9)
            # The trainer is on c now.
            network["c"].cut()
            cut = time.monotonic()
            reached("restart", 3)
            # Cut off, it ends by itself; when it is back, nothing on it could do anything.
            wait_for(
                lambda: not network["c"].of_runs(),
                LEASE_SECONDS + 5 - (time.monotonic() - cut),
                "c is over",
            )
            network["c"].restore()
            output, _ = run.communicate(timeout=200)
            assert run.returncode == 0, output
            roles = [row["role"] for row in rows(path, "restart")]
            assert roles[:2] == ["generator", "trainer"] and "trainer" in roles[2:]
            assert [row["step"] for row in rows(path, "step")] == list(range(1, LONGER.steps + 1))
            found = counters(RunFolder(path))
            assert found["trained"] == LONGER.steps * LONGER.prompts_per_step
            assert found["started"] == found["trained"] + found["abandoned"]
            assert same_weights(final_weights(path), undisturbed_weights(LONGER))
            wait_for(
                lambda: not any(network[name].of_runs() for name in ("ctl", *"abcd")),
                30,
                "nothing is left",
            )


def speaks_tls_only(controller, address: str) -> None:
    """Assert that a worker there refuses a controller without a certificate."""
    program = (
        "import socket, ssl\n"
        "context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)\n"
        "context.check_hostname, context.verify_mode = False, ssl.CERT_NONE\n"
        f"with context.wrap_socket(socket.create_connection(({address!r}, {PORT}))) as secured:\n"
        "    secured.settimeout(10)\n"
        "    version = secured.version()\n"
        "    try:\n"
        "        print(version, secured.recv(1))\n"
        "    except ssl.SSLError as error:\n"
        "        print(version, error.reason)\n"
    )
    assert controller.python(program).split() == ["TLSv1.3", "TLSV13_ALERT_CERTIFICATE_REQUIRED"]


@pytest.mark.long
@needs_hosts
def test_a_host_of_another_authority_is_not_used_and_the_run_says_so(tmp_path):
    with namespaced_hosts("ctl", "a") as network:
        for host in network.values():
            give_certificates(tmp_path / host.name, host)
        with workers(network, "a") as hosts:
            run = begin(network["ctl"], SMALL.changed(hosts=hosts))
            output, _ = run.communicate(timeout=120)
            assert run.returncode != 0 and "does not answer" in output and "authority" in output


def test_a_worker_says_that_it_waits_ends_with_ctrl_c_and_refuses_an_address_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        command = [*PROGRAM, "worker", "--insecure", "--listen", address]
        refused = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert refused.returncode == 1 and "cannot listen" in refused.stderr
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert any(f"waiting for a run at {address}" in line for line in worker.stdout)
        worker.send_signal(2)
        assert worker.wait(30) == 130
    finally:
        worker.kill()
        worker.communicate()
