"""A run on several hosts: what is asked for, where roles live, and what happens when hosts die, are
cut off and come back."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from namespaced_hosts import Network, namespaced_hosts, needs_hosts, wait_for
from runs import SMALL, as_flags, counters, final_weights, same_weights, train_here, undisturbed_weights

import zorplex_rl
from zorplex_rl.cli.commands import main
from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError
from zorplex_rl.run_folder import RunFolder
from zorplex_rl.services.host import Host, Tenant
from zorplex_rl.services.lease import Lease
from zorplex_rl.services.runtime import SECRET
from zorplex_rl.timeline import Span, Timeline
from zorplex_rl.training.hosts.checks import check_cluster
from zorplex_rl.training.hosts.placement import THIS, Hosts, PlanRow, plan
from zorplex_rl.training.hosts.spec import check_hosts, parse_hosts

PORT = 4444
PROGRAM = (sys.executable, "-m", "zorplex_rl")
TWO = "attach:tcp://10.0.0.2:4444,tcp://10.0.0.3:4444"


@pytest.mark.parametrize(
    "text",
    [
        "pigeon",
        "this:2",
        "processes:0",
        "processes:two",
        "attach:",
        "attach:tcp://a:4444,b:4444",
        "attach:tcp://a:70000",
        "attach:tcp://0.0.0.0:4444",
        "attach:tcp://*:4444",
        "attach:tcp://[::]:4444",
        "attach:tcp://[0::0]:4444",
        "attach:tcp://0:4444",
        "attach:tcp://[1:2]:4444",
        "attach:tcp://a..b:4444",
        f"attach:tcp://{'a' * 70}:4444",
        "attach:tcp://a?b:4444",
        "attach:tcp://a:٣",
        "attach:tcp://a:4444,tcp://a:4444",
        "attach:tcp://a:4444,tcp://A:04444",
        "attach:tcp://[::1]:4444,tcp://[0:0::1]:4444",
    ],
)
def test_hosts_that_cannot_be_are_refused_in_one_sentence(text, wording):
    with pytest.raises(ConfigError) as refused:
        parse_hosts(text)
    wording(refused.value, text)


@pytest.mark.parametrize(
    "settings",
    [
        {"listen": "tcp://10.0.0.1:5555"},
        {"hosts": TWO, "listen": "10.0.0.1"},
        {"hosts": TWO, "trainer_host": 2},
    ],
)
def test_settings_that_contradict_the_hosts_are_refused(settings, wording):
    with pytest.raises(ConfigError) as refused:
        check_hosts(Config().changed(**settings))
    wording(refused.value, str(settings))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"hosts": "attach:tcp://no.such.host.invalid:4444"}, "names no.such.host.invalid, .*; correct the name, or give the host's address"),
        ({"hosts": "attach:tcp://127.0.0.1:4444,tcp://localhost:4444"}, "tcp://localhost:4444, which is tcp://127.0.0.1:4444"),
        ({"listen": "tcp://no.such.host.invalid:5555"}, "--listen .*; give an address of this machine"),
        ({"listen": "tcp://192.0.2.1:5555"}, "--listen .*; give an address of this machine"),
    ],
)  # fmt: skip
def test_hosts_that_nobody_can_reach_are_refused_before_anything_is_written(settings, said):
    with pytest.raises(ConfigError, match=said) as refused:
        check_cluster(Config().changed(**({"hosts": "attach:tcp://127.0.0.1:4444", "insecure": True} | settings)))
    assert "\n" not in str(refused.value)


def test_a_port_that_is_taken_is_refused_before_anything_is_written():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match="Address already in use"):
            check_cluster(Config().changed(hosts="attach:tcp://127.0.0.1:4444", listen=address))
    check_cluster(Config().changed(hosts="attach:tcp://127.0.0.1:4444", listen=address))


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_a_worker_that_cannot_listen_says_so_in_one_sentence(host, capsys):
    assert main(["worker", "--listen", f"tcp://{host}:4444", "--insecure"]) == 2
    assert capsys.readouterr().err.endswith("; give an address of this machine with a free port\n")


def test_a_worker_says_that_it_waits_and_ends_with_ctrl_c():
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    worker = subprocess.Popen([*PROGRAM, "worker", "--listen", address], stdout=subprocess.PIPE, text=True)
    try:
        assert any(f"waiting for a run at {address}; Ctrl-C ends this" in line for line in worker.stdout)
        worker.send_signal(signal.SIGINT)
        assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.communicate()


def test_the_trainer_lives_on_the_first_host_and_generators_are_spread():
    config = Config().changed(hosts=TWO, generators=2, spares=1, tool_latency=0.1, tool_replicas=2)
    placed = plan(config, ["a", "b"])
    assert placed["trainer"] == "a" and placed["generator_0"] == "b"
    assert sorted(placed[f"generator_{number}"] for number in range(3)) == ["a", "b", "b"]
    assert {placed[name] for name in ("dataset", "replay", "advantage", "reward_0")} == {THIS}
    assert {placed["tools_0"], placed["tools_1"]} == {"a", "b"}
    assert plan(config.changed(trainer_host=1), ["a", "b"])["trainer"] == "b"
    apart = plan(config.changed(generators_on="others"), ["a", "b"])
    assert {apart[f"generator_{number}"] for number in range(3)} == {"b"}
    assert set(plan(config, []).values()) == {THIS}


def test_all_ranks_of_the_trainer_live_on_its_host_and_are_in_its_row_of_the_plan():
    config = Config().changed(hosts=TWO, trainer_processes=2, trainer_host=1, generators=2, spares=0)
    check_hosts(config)
    here, a, b = (row.replicas for row in PlanRow.rows(config))
    assert b == ("trainer", "trainer rank 1") and a == ("generator_0", "generator_1")
    assert not any("generator" in name or "trainer" in name for name in here)


def test_every_replica_is_in_exactly_one_row_of_the_plan_and_nothing_is_written(tmp_path):
    config = SMALL.changed(hosts=TWO, generators=2)
    rows = PlanRow.rows(config)
    assert sorted(replica for row in rows for replica in row.replicas) == sorted(plan(config, ["a", "b"]))
    command = [*PROGRAM, "train", "--plan", "--hosts", TWO, "--generators", "2"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert [line.split()[0] for line in shown.splitlines()] == ["this", "10.0.0.2:4444", "10.0.0.3:4444"]
    assert "trainer" in shown.splitlines()[1] and "generator_0" in shown.splitlines()[2]
    assert list(tmp_path.iterdir()) == []


def test_a_message_that_was_long_on_its_way_does_not_extend_a_lease():
    """The controller has ended its wait at (the arrival of the last token + the lease); by then the
    host must be over."""
    lease = Lease(seconds=10.0, now=0.0)
    last_token = 5.0
    lease.renew(last_token)
    # The link is cut here. The last renewal that was sent, with the same token, arrives when it is
    # restored.
    lease.renew(last_token)
    assert lease.runs_out == 15.0


def test_what_is_recorded_on_a_host_is_put_on_this_machines_clock():
    far = Host("far", mesh=None, lease=10.0)
    far.compare_clocks(sent=50.0, there=1050.5, received=51.0)
    far.tenants.append(Tenant("generator_0", 1, has_ended=lambda: False, on_lost=lambda reason: None))
    hosts = Hosts(Config(), [far])
    spans = [Span("generator_0", "generate", 1060.0, 1061.0, {}), Span("reward_0", "reward", 61.0, 62.0, {})]
    assert [(span.start, span.end) for span in hosts.in_our_time(spans)] == [(60.0, 61.0), (61.0, 62.0)]


class Flaky(Host):
    """A host to which the first copy of a policy fails."""

    tries = 0

    async def send_folder(self, here: Path) -> str:
        self.tries += 1
        if self.tries == 1:
            raise OSError("No space left on device")
        return f"/there/{here.name}"


def test_a_policy_that_could_not_be_sent_is_sent_again_for_the_next_replica_and_once_only(tmp_path):
    policy = tmp_path / "policy"
    shutil.copytree(Path(zorplex_rl.__file__).parent / "policy" / "embedded", policy)

    async def send() -> list[str]:
        host = Flaky("far", mesh=None, lease=10.0)
        hosts = Hosts(Config().changed(policy=str(policy)), [host])
        with pytest.raises(OSError, match="No space"):
            await hosts._config_on(host)
        found = [(await hosts._config_on(host)).policy for _ in range(2)]
        assert host.tries == 2
        return found

    assert asyncio.run(send()) == ["/there/policy"] * 2


NEIGHBOURS = """if True:
    import json, os, sys, time
    from zorplex_rl.weights.shared_memory import SharedHandle, allocate, open_shared
    # A child shares memory, under the process number that is wanted, and this process reads.
    number, value, foreign = json.loads(sys.argv[1])
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(number - 1))
    told, tell = os.pipe()
    if os.fork() == 0:
        memory, handle = allocate(1 << 16)
        memory.fill_(value)
        if foreign:
            os.dup2(handle.descriptor, foreign[1])
        shared = [handle.pid, handle.descriptor, handle.size, handle.proof.hex()]
        os.write(tell, json.dumps(shared).encode())
        time.sleep(600)
    own = json.loads(os.read(told, 1 << 16))
    pid, descriptor, size, proof = foreign or own
    there = os.stat(f"/proc/{pid}/fd/{descriptor}").st_size
    try:
        said = f"read {set(open_shared(SharedHandle(pid, descriptor, size, bytes.fromhex(proof))).tolist())}"
    except OSError as error:
        said = str(error)
    print(json.dumps([own, [there, said]]), flush=True)
    time.sleep(600)
"""


@needs_hosts
def test_foreign_memory_of_the_same_size_behind_the_same_process_number_is_not_taken_for_the_publishers():
    number = 1000

    def neighbours(host, value, foreign=None):
        """The handle of memory full of ``value`` that a process with that number shares on ``host``;
        and what another process there reads, with ``foreign`` as its handle."""
        asked = json.dumps([number, value, foreign])
        running = host.popen(sys.executable, "-c", NEIGHBOURS, asked, stdout=subprocess.PIPE, text=True)
        return json.loads(running.stdout.readline())

    with namespaced_hosts("a", "b") as network:
        handle, here = neighbours(network["a"], 7)
        other, elsewhere = neighbours(network["b"], 9, handle)
        assert handle[0] == other[0] == number
        # All but the random bytes is the same on both.
        assert here[0] == elsewhere[0] == handle[2] + len(handle[3]) // 2
        assert here[1] == "read {7}"
        assert "is not the one that shared these weights" in elsewhere[1]


@contextmanager
def workers(network: Network, *names: str, environment: dict[str, str] | None = None):
    """Workers on these hosts; what to give to ``--hosts``."""
    environment = os.environ | {SECRET: "between us"} | (environment or {})
    with ExitStack() as running:
        for name in names:
            host = network[name]
            process = host.popen(
                *PROGRAM, "worker", "--listen", address_of(host), "--insecure", cwd="/", env=environment
            )
            running.callback(process.wait)
            running.callback(process.kill)
        for name in names:
            wait_for(lambda host=network[name]: host.address in host.listening(), 120, "the worker listens")
        yield "attach:" + ",".join(address_of(network[name]) for name in names)


def address_of(host) -> str:
    return f"tcp://{host.address}:{PORT}"


def begin(controller, config: Config, *more: str, secret: str = "between us") -> subprocess.Popen:
    """Train on ``controller``, into a folder that no other host can see."""
    return controller.popen(
        *PROGRAM, "train", *as_flags(config.changed(insecure=True)), "--out", "/tmp/run", *more, cwd="/", env=os.environ | {SECRET: secret},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def rows(path: Path, event: str) -> list[dict]:
    return [row for row in RunFolder(path).metrics() if row["event"] == event]


def transports(path: Path) -> dict[str, set[str]]:
    """Return by which transports each generator has pulled."""
    found: dict[str, set[str]] = {}
    for span in Timeline.load(RunFolder(path).timeline).spans:
        if span.kind == "pull":
            found.setdefault(span.actor, set()).add(span.args["transport"])
    return found


def temporary_files(host) -> list[str]:
    """What runs have left in the folder of the worker on ``host``, apart from what Monarch's loop
    that waits there has made."""
    return [str(path) for path in host.path("/tmp").glob("zorplex-*/tmp/*") if not path.name.startswith(".tmp")]


LONGER = SMALL.changed(steps=14, checkpoint_every=3)


@needs_hosts
def test_generator_host_killed_trainers_host_killed_and_a_host_cut_off_and_back_the_run_ends_as_if_nothing_had_happened():
    """The weights are those of a run in one process that nothing disturbed, bit for bit: every
    group was trained on once, in its turn."""
    with namespaced_hosts("ctl", "a", "b", "c", "d") as network, workers(network, "a", "b", "c", "d") as hosts:
        controller, path = network["ctl"], network["ctl"].path("/tmp/run")
        began = time.monotonic()
        run = begin(controller, LONGER.changed(hosts=hosts))

        def step(number: int) -> None:
            wait_for(lambda: len(rows(path, "step")) >= number or run.poll() is not None, 200, f"step {number}")
            assert run.poll() is None, run.stdout.read()

        def recovered(number: int, struck: float) -> float:
            wait_for(lambda: len(rows(path, "restart")) >= number or run.poll() is not None, 200, f"restart {number}")
            assert run.poll() is None, run.stdout.read()
            return time.monotonic() - struck

        step(1)
        set_up = time.monotonic() - began
        # Nothing listens but what was asked for, and no host has touched its /dev/shm.
        assert controller.listening() == {controller.address}
        for name in "abcd":
            assert network[name].listening() == {network[name].address}
            assert network[name].shared_memory() == []
        network["b"].kill()
        seconds = {"generator's host killed": recovered(1, time.monotonic())}
        step(5)
        network["a"].kill()
        seconds["trainer's host killed"] = recovered(2, time.monotonic())
        step(9)
        network["c"].cut()
        cut = time.monotonic()
        seconds["generator's host cut off"] = recovered(3, cut)
        # Cut off, it ends by itself; when it is back, there is nothing on it that could do
        # anything.
        wait_for(lambda: not network["c"].of_runs(), LONGER.cluster.lease + 5 - (time.monotonic() - cut), "c is over")
        network["c"].restore()
        output, _ = run.communicate(timeout=200)
        assert run.returncode == 0, output
        assert [row["role"] for row in rows(path, "restart")] == ["generator", "trainer", "generator"]
        assert [row["step"] for row in rows(path, "step")] == list(range(1, LONGER.steps + 1))
        found = counters(RunFolder(path))
        assert found["trained"] == LONGER.steps * LONGER.prompts_per_step
        assert found["started"] == found["trained"] + found["abandoned"]
        assert same_weights(final_weights(path), undisturbed_weights(LONGER))
        # It lived on another host than the trainer.
        assert transports(path)["generator_0"] == {"rdma"}
        wait_for(lambda: not any(network[name].of_runs() for name in ("ctl", *"abcd")), 30, "nothing is left")
        wait_for(lambda: temporary_files(network["d"]) == [], 30, "no file of the run is left")
        print({what: round(took, 1) for what, took in seconds.items()}, f"set-up {set_up:.1f}")
        assert max(seconds.values()) < 15 + set_up


@pytest.mark.long
@needs_hosts
@pytest.mark.parametrize(
    ("role", "seconds"),
    [("trainer", 0.0), ("trainer", 4.0), ("trainer", math.inf), ("generator", 1.5), ("generator", math.inf)],
)
def test_a_host_that_is_killed_while_a_run_starts_costs_nothing_but_time(sync_run, role, seconds):
    """It is killed so many ``seconds`` after the first process there is started; ``inf``: right
    after the first evaluation."""
    with namespaced_hosts("ctl", "a", "b") as network, workers(network, "a", "b") as hosts:
        path, struck = network["ctl"].path("/tmp/run"), network["a" if role == "trainer" else "b"]
        run = begin(network["ctl"], SMALL.changed(hosts=hosts))
        # The first one of a run is the host's keeper.
        wait_for(lambda: len(struck.of_runs()) > 1 or run.poll() is not None, 200, f"the {role} is started")
        if seconds < math.inf:
            time.sleep(seconds)
        else:
            wait_for(lambda: rows(path, "eval") or run.poll() is not None, 200, "the first evaluation is over")
        assert run.poll() is None, run.stdout.read()
        struck.kill()
        output, _ = run.communicate(timeout=400)
        assert run.returncode == 0, output
        assert "Traceback" not in output
        assert [row["step"] for row in rows(path, "step")] == list(range(1, SMALL.steps + 1))
        assert same_weights(final_weights(path), final_weights(sync_run.path))


GROUP = SMALL.changed(steps=12, checkpoint_every=3, trainer_processes=2)


def ranks(host) -> set[str]:
    """The trainer's processes on ``host``, by their numbers there: no others listen at its loopback
    address."""
    lines = host.run("ss", "-Hltnp", cwd="/").splitlines() if host.inside.is_up else []
    return {number for line in lines if "127.0.0.1" in line.split()[3] for number in re.findall(r"pid=(\d+)", line)}


@pytest.mark.long
@needs_hosts
def test_a_trainers_rank_killed_its_host_killed_and_its_next_host_cut_off_the_group_starts_again_only_when_all_ranks_are_over(
    once, tmp_path
):
    undisturbed = once("group", lambda folder: train_here(GROUP, folder))
    names = "abcd"
    with namespaced_hosts("ctl", *names) as network, workers(network, *names) as hosts:
        path = network["ctl"].path("/tmp/run")
        run = begin(network["ctl"], GROUP.changed(hosts=hosts, generators_on="others"))

        def reached(event: str, number: int) -> None:
            """Wait until there are so many rows. All this time the ranks are on one host."""

            def are_there() -> bool:
                by_host = {name: found for name in names if (found := ranks(network[name]))}
                assert len(by_host) <= 1 and all(len(found) <= 2 for found in by_host.values()), by_host
                return len(rows(path, event)) >= number or run.poll() is not None

            wait_for(are_there, 200, f"{event} {number}")
            assert run.poll() is None, run.stdout.read()

        def home() -> str:
            (name,) = (name for name in names if len(ranks(network[name])) == 2)
            return name

        reached("step", 1)
        assert home() == "a" and network["a"].listening() == {network["a"].address, "127.0.0.1"}
        assert all(network[name].listening() == {network[name].address} for name in "bcd")
        first = ranks(network["a"])
        network["a"].run("kill", "-9", max(first), cwd="/")
        reached("restart", 1)
        # The other rank waited for it in a collective, where only the keeper of its host could end
        # it.
        assert not first & ranks(network[home()])
        reached("step", 4)
        network[home()].kill()
        reached("restart", 2)
        reached("step", 8)
        cut = network[home()]
        before = {name: len(network[name].of_runs()) for name in names}
        cut.cut()

        def is_over() -> bool:
            grown = [name for name in names if len(network[name].of_runs()) > before[name]]
            # Looked at last: whoever is there now was there when the others were looked at.
            left = cut.of_runs()
            assert not (left and grown), f"a process was started on {grown} before those of {cut.name} were over"
            return not left

        wait_for(is_over, GROUP.cluster.lease + 5, "the host that is cut off ends by itself")
        reached("restart", 3)
        output, _ = run.communicate(timeout=200)
        assert run.returncode == 0, output
        assert [row["role"] for row in rows(path, "restart")] == ["trainer"] * 3
        assert [row["step"] for row in rows(path, "step")] == list(range(1, GROUP.steps + 1))
        assert same_weights(final_weights(path), final_weights(undisturbed))
        assert transports(path)["generator_0"] == {"rdma"}


@needs_hosts
def test_all_processes_of_a_run_end_when_its_controller_is_killed_and_the_worker_waits_for_the_next_run():
    with namespaced_hosts("ctl", "a") as network, workers(network, "a") as hosts:
        run = begin(network["ctl"], SMALL.changed(hosts=hosts, steps=500))
        wait_for(lambda: len(rows(network["ctl"].path("/tmp/run"), "step")) >= 1, 200, "a step")
        assert len(network["a"].of_runs()) >= 2
        network["ctl"].kill()
        wait_for(lambda: not network["a"].of_runs(), 30, "what the run has started ends")
        wait_for(lambda: network["a"].listens(PORT), 60, "the worker waits for the next run")
        wait_for(lambda: temporary_files(network["a"]) == [], 60, "no file of the run is left")
        run.wait(timeout=10)
        run.stdout.close()


@needs_hosts
def test_a_host_with_another_version_is_refused_and_so_is_a_controller_without_the_secret(tmp_path):
    shutil.copytree(Path(zorplex_rl.__file__).parent, tmp_path / "other" / "zorplex_rl")
    module = tmp_path / "other" / "zorplex_rl" / "__init__.py"
    module.write_text(module.read_text().replace(zorplex_rl.__version__, "0.0.1"))
    with namespaced_hosts("ctl", "a", "b") as network:
        # Into the host's own /tmp, since that of this process is not seen there.
        shutil.copytree(tmp_path / "other", network["a"].path("/tmp/other"))
        other = workers(network, "a", environment={"PYTHONPATH": "/tmp/other"})
        with other as of_other_version, workers(network, "b") as asking_for_the_secret:
            old = begin(network["ctl"], SMALL.changed(hosts=of_other_version))
            guesses = SMALL.changed(hosts=asking_for_the_secret)
            guessing = begin(network["ctl"], guesses, "--out", "/tmp/other-run", secret="guessed")
            refused, unheard = (run.communicate(timeout=120)[0] for run in (old, guessing))
    assert old.returncode == guessing.returncode == 1
    assert "Traceback" not in refused + unheard
    assert f"host {network['a'].address}:{PORT} has zorplex-rl 0.0.1" in refused.splitlines()[-1]
    assert f"host {network['b'].address}:{PORT} does not answer; make sure that" in unheard.splitlines()[-1]
    # Nothing but what is for people: Monarch's own report of the message that nobody took is not.
    assert "undeliverable" not in unheard


def train_on_two_workers(config: Config, path: Path) -> None:
    command = [*PROGRAM, "train", *as_flags(config.changed(hosts="processes:2")), "--out", str(path)]
    run = subprocess.run(command, timeout=200, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert len(rows(path, "step")) == config.steps
    assert transports(path) == {"generator_0": {"shm"}}


@pytest.mark.long
def test_two_workers_of_this_machine_stand_in_for_hosts_and_leave_no_file_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "")
    # The path of a Unix socket has at most 107 characters, so the folder is not in ``tmp_path``.
    with tempfile.TemporaryDirectory() as temporary:
        monkeypatch.setenv("TMPDIR", temporary)
        train_on_two_workers(SMALL.changed(steps=2, tool_latency=0.01), tmp_path / "run")
        assert os.listdir(temporary) == []


def test_a_trainer_of_two_processes_on_the_second_host_makes_the_weights_of_one_process_here(sync_run, tmp_path):
    train_on_two_workers(SMALL.changed(trainer_processes=2, trainer_host=1), tmp_path / "run")
    expected, found = final_weights(sync_run.path), final_weights(tmp_path / "run")
    assert expected.keys() == found.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, atol=1e-5, rtol=0)
