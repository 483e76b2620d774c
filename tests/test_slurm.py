"""``zorplex-rl train --hosts slurm:2`` on a real Slurm of two nodes (``slurm_cluster.py``), to the end, to a stop, and past the loss of a node."""

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
from runs import SMALL, as_flags, counters, rows
from slurm_cluster import Cluster, needs_slurm, slurm_cluster

from zorplex_rl.run_folder import RunFolder

pytestmark = needs_slurm
NODES = ("n1", "n2")
CONFIG = SMALL.changed(max_lag=1, generators=2, checkpoint_every=1, hosts="slurm:2", generators_on="others")
SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "slurm_batch.sh"
PROGRAM = (sys.executable, "-m", "zorplex_rl")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm_cluster(*NODES) as running:
        yield running


@pytest.fixture
def folder(cluster: Cluster) -> Iterator[Path]:
    """Where a run may write: on the controller's host, and seen from here."""
    made = Path(tempfile.mkdtemp(prefix="zorplex-run-", dir="/var/tmp"))
    yield made / "run"
    shutil.rmtree(made)


def train(cluster: Cluster, folder: Path, **settings: object) -> subprocess.Popen[str]:
    flags = [*as_flags(CONFIG.changed(**settings)), "--out", str(folder)]
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


def test_a_run_that_is_stopped_writes_a_checkpoint_and_cancels_its_jobs(cluster, folder):
    run = train(cluster, folder, steps=1000)
    wait_for(lambda: rows(folder, "step") or run.poll() is not None, 400, "a step is done")
    assert len(cluster.jobs()) == 2, finish(run)
    signal_in(cluster, "zorplex_rl train", signal.SIGTERM)
    asked = time.monotonic()
    code, said = finish(run)
    print(f"stopped {time.monotonic() - asked:.1f} s after SIGTERM")
    assert code == 130 and "stopped after a checkpoint" in said, said
    assert RunFolder(folder).newest_checkpoint() is not None
    all_is_gone(cluster)


@pytest.mark.long
def test_a_batch_job_trains_with_its_controller_inside_the_allocation(cluster, folder):
    flags = [*as_flags(CONFIG), "--out", str(folder)]
    # The script names the hosts itself.
    del flags[(hosts := flags.index("--hosts")) : hosts + 2]
    output = folder.with_name("batch.log")
    cluster.run("sbatch", "--nodes=2", f"--output={output}", str(SCRIPT), *flags)
    wait_for(lambda: not cluster.jobs(), 500, "the job is over")
    assert set(cluster.ended().values()) <= {"COMPLETED", "CANCELLED"}, output.read_text()
    assert RunFolder(folder).is_finished(CONFIG.steps), output.read_text()
    all_is_gone(cluster)


def test_a_run_goes_on_after_the_loss_of_a_node_and_trains_on_each_group_once():
    with tempfile.TemporaryDirectory(prefix="zorplex-run-", dir="/var/tmp") as above, slurm_cluster(*NODES) as cluster:
        folder = Path(above, "run")
        run = train(cluster, folder, steps=8, telemetry=True)
        wait_for(lambda: rows(folder, "step") or run.poll() is not None, 400, "a step is done")
        assert run.poll() is None, finish(run)
        looking = cluster.popen(*PROGRAM, "status", str(folder), stdout=subprocess.PIPE, text=True)
        assert "\n  trainer" in looking.communicate(timeout=300)[0]
        nodes = dict(line.split() for line in cluster.run("squeue", "-h", "-o", "%j %N").splitlines())
        (lost,) = [node for job, node in nodes.items() if job.startswith("zorplex-1_")]
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


def signal_in(cluster: Cluster, words: str, number: int) -> None:
    """Send a signal to the program on the controller's host whose command line has ``words``, and to nothing else."""
    lines = cluster.run("ps", "-eo", "pid=,args=").splitlines()
    (pid,) = [line.split()[0] for line in lines if words in line and "python" in line.split()[1]]
    cluster.run("kill", f"-{number}", pid)
