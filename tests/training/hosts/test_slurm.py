"""``zorplex-rl train --hosts slurm:2`` on a real Slurm of two nodes (``slurm_cluster.py``).

To the end, to a stop, past the loss of a node; over TLS, and over plain TCP.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from namespaced_hosts import wait_for
from runs import SMALL, as_flags, counters, final_weights, rows, same_weights
from slurm_cluster import Cluster, needs_slurm, slurm_cluster
from zorplex_rl.services.certificates import make_certificates
from zorplex_rl.services.job_worker import PORT
from zorplex_rl.training.hosts.slurm import FIRST_LEASE_SECONDS

from zorplex_rl.config import Config
from zorplex_rl.run.folder import RunFolder

pytestmark = needs_slurm
NODES = ("n1", "n2")
CONFIG = SMALL.changed(
    max_lag=1, generators=2, checkpoint_every=1, hosts="slurm:2", insecure=True, generators_on="others"
)
SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "slurm_batch.sh"
PROGRAM = (sys.executable, "-m", "zorplex_rl")
STRANGER = f"""if True:
    import socket, ssl, sys
    for secured in (False, True):
        connection = socket.create_connection((sys.argv[1], {PORT}), timeout=10)
        try:
            if secured:
                anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
                connection = anybody.wrap_socket(connection)
            connection.sendall(bytes(64))
            print(secured, connection.recv(1))
        except OSError as error:
            print(secured, str(error))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm_cluster(*NODES) as running:
        yield running


@pytest.fixture(scope="module")
def keys(cluster: Cluster) -> Path:
    """What ``zorplex-rl certificates`` makes, on a file system that all nodes see."""
    made = cluster.folder / "keys"
    make_certificates(made, [f"{name},{node.address}" for name, node in cluster.nodes.items()], "ctl,10.77.0.1", days=1)
    return made


@pytest.fixture
def folder(cluster: Cluster) -> Iterator[Path]:
    """Where a run may write: on the controller's host, and seen from here."""
    made = Path(tempfile.mkdtemp(prefix="zorplex-run-", dir="/var/tmp"))
    yield made / "run"
    shutil.rmtree(made)


def train(cluster: Cluster, folder: Path, **settings: object) -> subprocess.Popen[str]:
    return start(cluster, folder, CONFIG.changed(**settings))


def start(cluster: Cluster, folder: Path, config: Config) -> subprocess.Popen[str]:
    flags = [*as_flags(config), "--out", str(folder)]
    return cluster.popen(*PROGRAM, "train", *flags, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(run: subprocess.Popen[str], timeout: float = 500) -> tuple[int, str]:
    try:
        said, _ = run.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        run.kill()
        raise
    return run.returncode, said


def all_is_gone(cluster: Cluster) -> None:
    """Fail unless no job and no process is left."""
    wait_for(lambda: not cluster.jobs(), 30, "no job is left")
    wait_for(lambda: not cluster.leftovers(), 30, f"no process is left: {cluster.leftovers()}")


@pytest.mark.long
def test_a_run_is_submitted_and_trains_to_the_end_and_leaves_nothing_behind(cluster, folder):
    began = time.monotonic()
    run = train(cluster, folder)
    wait_for(lambda: list(cluster.jobs().values()).count("RUNNING") == 2 or run.poll() is not None, 200, "two jobs run")
    print(f"two jobs run {time.monotonic() - began:.1f} s after the command began")
    code, said = finish(run)
    print(f"the run ends {time.monotonic() - began:.1f} s after it began")
    assert code == 0, said
    assert [row["step"] for row in rows(folder, "step")] == [1, 2, 3, 4]
    all_is_gone(cluster)


@pytest.mark.long
def test_a_run_over_tls_ends_in_the_weights_of_one_on_this_machine(cluster, folder, keys, sync_run):
    code, said = finish(start(cluster, folder, SMALL.changed(hosts="slurm:2", tls=str(keys / "controller"))))
    assert code == 0, said
    assert same_weights(final_weights(folder), final_weights(sync_run.path))
    all_is_gone(cluster)


def test_a_run_that_is_stopped_writes_a_checkpoint_and_cancels_its_jobs(cluster, folder, keys):
    run = train(cluster, folder, steps=1000, insecure=False, tls=str(keys / "controller"))
    wait_for(lambda: rows(folder, "step") or run.poll() is not None, 400, "a step is done")
    assert len(cluster.jobs()) == 2, finish(run)
    # Who speaks no TLS gets an alert of TLS, and nothing else; who has no certificate, another one.
    plain, unknown = cluster.run(sys.executable, "-c", STRANGER, "n1").splitlines()
    assert plain == "False b'\\x15'" and "certificate required" in unknown.lower().replace("_", " "), (plain, unknown)
    signal_in(cluster, "zorplex_rl train", signal.SIGTERM)
    asked = time.monotonic()
    code, said = finish(run)
    print(f"stopped {time.monotonic() - asked:.1f} s after SIGTERM")
    assert code == 130 and "stopped after a checkpoint" in said, said
    assert RunFolder(folder).newest_checkpoint() is not None
    all_is_gone(cluster)


@pytest.mark.long
def test_a_batch_job_trains_with_its_controller_inside_the_allocation(cluster, folder, keys):
    flags = [*as_flags(CONFIG), "--out", str(folder)]
    # The script names the hosts itself, and how they are reached.
    del flags[(hosts := flags.index("--hosts")) : hosts + 2]
    del flags[(tls := flags.index("--tls")) : tls + 2]
    flags.remove("--insecure")
    output, encrypted = folder.with_name("batch.log"), f"--export=ALL,ZORPLEX_TLS={keys / 'controller'}"
    cluster.run("sbatch", "--nodes=2", f"--output={output}", encrypted, str(SCRIPT), *flags)
    wait_for(lambda: not cluster.jobs(), 500, "the job is over")
    assert set(cluster.ended().values()) <= {"COMPLETED", "CANCELLED"}, output.read_text()
    assert RunFolder(folder).is_finished(CONFIG.steps), output.read_text()
    assert "waiting for a run at tls://n1:4444" in output.read_text()
    all_is_gone(cluster)


@pytest.mark.parametrize("seen", ["nowhere", pytest.param("not on the node", marks=pytest.mark.long)])
def test_a_node_without_its_certificate_says_so_here_and_its_job_ends(cluster, folder, keys, tmp_path, seen):
    node, known = cluster.nodes["n2"], keys / "n2"
    if seen == "nowhere":
        known.rename(aside := keys / "aside")
    else:
        # As where the node does not mount that file system.
        node.run("mount", "-t", "tmpfs", "tmpfs", str(keys))
    try:
        code, said = finish(train(cluster, folder, insecure=False, tls=str(keys / "controller")))
    finally:
        aside.rename(known) if seen == "nowhere" else node.run("umount", str(keys))
    assert code == 1, said
    (line,) = [line for line in said.splitlines() if "authority.pem" in line]
    assert f"(node n2) ended before it could be used: --tls is '{known}', where authority.pem cannot be read" in line
    assert "Traceback" not in said
    all_is_gone(cluster)


@pytest.mark.parametrize("how", ["the node is lost", pytest.param("its job is cancelled", marks=pytest.mark.long)])
def test_a_run_goes_on_after_the_loss_of_a_node_and_trains_on_each_group_once(how):
    with tempfile.TemporaryDirectory(prefix="zorplex-run-", dir="/var/tmp") as above, slurm_cluster(*NODES) as cluster:
        folder = Path(above, "run")
        run = train(cluster, folder, steps=8, telemetry=True)
        wait_for(lambda: rows(folder, "step") or run.poll() is not None, 400, "a step is done")
        assert run.poll() is None, finish(run)
        looking = cluster.popen(*PROGRAM, "status", str(folder), stdout=subprocess.PIPE, text=True)
        assert "\n  trainer" in looking.communicate(timeout=300)[0]
        jobs = [line.split() for line in cluster.run("squeue", "-h", "-o", "%j %A %N").splitlines()]
        ((number, lost),) = [where for name, *where in jobs if name.startswith("zorplex-1_")]
        if how == "its job is cancelled":
            cluster.run("scancel", number)
        else:
            cluster.nodes[lost].kill()
        killed_at = time.monotonic()
        wait_for(lambda: rows(folder, "restart") or run.poll() is not None, 200, "what was lost is replaced")
        print(f"the first replica is replaced {time.monotonic() - killed_at:.1f} s after the loss of a node")
        code, said = finish(run)
        print([(row["died"], round(row["recovery_seconds"], 1), row["reason"]) for row in rows(folder, "restart")])
        assert code == 0, said
        assert [row["step"] for row in rows(folder, "step")] == list(range(1, 9))
        assert counters(RunFolder(folder))["trained"] == 8 * CONFIG.prompts_per_step
        wait_for(lambda: not cluster.leftovers(), 30, "no process is left on the node that lives")


@pytest.mark.long
def test_jobs_end_by_themselves_when_their_controller_was_killed_while_it_waited_for_nodes(cluster, folder):
    run = train(cluster, folder, hosts="slurm:3", start_seconds=30)
    wait_for(lambda: list(cluster.jobs().values()).count("RUNNING") == 2 and len(cluster.jobs()) == 3, 60, "one waits")
    signal_in(cluster, "zorplex_rl train", signal.SIGKILL)
    began = time.monotonic()
    run.wait(timeout=30)
    wait_for(lambda: not cluster.jobs(), 30 + FIRST_LEASE_SECONDS + 30, "no job is left")
    print(f"all three jobs have ended {time.monotonic() - began:.0f} s after the controller was killed")
    all_is_gone(cluster)


def signal_in(cluster: Cluster, words: str, number: int) -> None:
    """Send a signal to the program on the controller's host whose command line has ``words``, and
    to nothing else."""
    lines = cluster.run("ps", "-eo", "pid=,args=").splitlines()
    (pid,) = [line.split()[0] for line in lines if words in line and "python" in line.split()[1]]
    cluster.run("kill", f"-{number}", pid)
