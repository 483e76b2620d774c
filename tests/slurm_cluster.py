"""A real Slurm on one machine: munged, slurmctld and a slurmd for each node, every one on a
namespaced host (``namespaced_hosts.py``).

    with slurm_cluster("n1", "n2") as cluster:
        cluster.popen("zorplex-rl", "train", "--hosts", "slurm:2", …)      on the host ``ctl``, where users log in
        cluster.jobs()                                                    what squeue says
        cluster.nodes["n2"].kill()                                         its slurmd and everything on it, at once

Debian's packages slurmctld, slurmd, slurm-client, munge and iproute2 are needed, Linux and root:
``why_not`` says what is missing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from namespaced_hosts import Host, namespaced_hosts, wait_for
from namespaced_hosts import why_not as why_no_hosts

CONTROLLER = "ctl"
SLURM_CONF = """
ClusterName=zorplex
SlurmctldHost=ctl
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SlurmdTimeout=10
SlurmctldTimeout=10
InactiveLimit=0
MinJobAge=300
KillWait=2
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={name} NodeHostname={name} NodeAddr={address} CPUs=2 State=UNKNOWN"


class Cluster:
    """A running Slurm. ``login`` is the host of its controller, ``nodes`` are those on which jobs
    run, ``folder`` is seen by all of them."""

    def __init__(self, login: Host, nodes: dict[str, Host], folder: Path, environment: dict[str, str]) -> None:
        self.login, self.nodes, self.folder, self.environment = login, nodes, folder, environment

    def popen(self, *command: str, **options: Any) -> subprocess.Popen[Any]:
        """Start ``command`` on the controller's host."""
        return self.login.popen(*command, env=self.environment, **options)

    def run(self, *command: str, timeout: float = 60.0) -> str:
        """Run ``command`` on the controller's host. Returns what it wrote; raises
        CalledProcessError if it fails."""
        done = subprocess.run(
            self.login.entered(*command),
            env=self.environment,
            timeout=timeout,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        return done.stdout

    def jobs(self) -> dict[str, str]:
        """Return the state of every job that is pending, running or completing, by its id."""
        return dict(line.split() for line in self.run("squeue", "-h", "-o", "%i %T").splitlines())

    def ended(self) -> dict[str, str]:
        """Return how every job that is over has ended, by its id."""
        return dict(
            line.split() for line in self.run("squeue", "-h", "-t", "CA,CD,F,NF,TO", "-o", "%i %T").splitlines()
        )

    def leftovers(self) -> list[str]:
        """Return the processes on the nodes that do not belong to Slurm itself."""
        return [
            line
            for node in self.nodes.values()
            for line in node.processes()
            if "slurmd" not in line.split()[0] or "stepd" in line
        ]


@functools.cache
def why_not() -> str | None:
    """Return why no Slurm can be started here, or None if it can."""
    programs = ("munged", "slurmctld", "slurmd", "squeue", "sbatch", "scancel", "scontrol")
    if missing := [program for program in programs if shutil.which(program) is None]:
        return f"Slurm is not installed: {', '.join(missing)} (Debian: slurmctld slurmd slurm-client munge)"
    return why_no_hosts()


needs_slurm = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
"""Marks a test that starts a Slurm."""


@contextlib.contextmanager
def slurm_cluster(*names: str) -> Iterator[Cluster]:
    """Start a Slurm whose nodes have these names. Ends everything on all of its hosts in the
    end."""
    # Not below /tmp, of which each host has its own.
    folder = Path(tempfile.mkdtemp(prefix="zorplex-slurm-", dir="/var/tmp"))
    daemons: list[subprocess.Popen[Any]] = []
    try:
        with namespaced_hosts(CONTROLLER, *names) as network:
            login, nodes = network[CONTROLLER], {name: network[name] for name in names}
            environment = _configure(folder, network)
            _start_munge(folder, login, environment, daemons)
            with (folder / "daemons.log").open("w") as log:
                quiet: dict[str, Any] = {"env": environment, "stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
                daemons.append(login.popen("slurmctld", "-D", **quiet))
                daemons += [host.popen("slurmd", "-D", "-N", name, **quiet) for name, host in nodes.items()]
            cluster = Cluster(login, nodes, folder, environment)

            def all_idle() -> bool:
                with contextlib.suppress(subprocess.CalledProcessError):
                    return cluster.run("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * len(names)
                return False

            wait_for(all_idle, 60, f"every node is idle; see {folder}")
            yield cluster
    finally:
        for daemon in daemons:
            daemon.wait(timeout=20)
        shutil.rmtree(folder, ignore_errors=True)


def _configure(folder: Path, hosts: dict[str, Host]) -> dict[str, str]:
    """Write what the daemons read, and give every host the names of the others. Returns the
    environment for all programs."""
    (folder / "state").mkdir()
    names = "".join(f"{host.address} {name}\n" for name, host in hosts.items())
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
    for host in hosts.values():
        host.run("mount", "--bind", str(folder / "hosts"), "/etc/hosts")
    nodes = "\n".join(
        NODE.format(name=name, address=host.address) for name, host in hosts.items() if name != CONTROLLER
    )
    (folder / "slurm.conf").write_text(SLURM_CONF.format(folder=folder, nodes=nodes))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return os.environ | {"PATH": path, "SLURM_CONF": str(folder / "slurm.conf")}


def _start_munge(folder: Path, host: Host, environment: dict[str, str], daemons: list[subprocess.Popen[Any]]) -> None:
    """Start the daemon with which the others prove who they are; all hosts reach its socket through
    the common file system."""
    home = folder / "munge"
    home.mkdir(mode=0o755)
    folder.chmod(0o755)
    (home / "key").write_bytes(os.urandom(1024))
    (home / "key").chmod(0o400)
    options = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    words = [f"--{name}={home / file}" for name, file in options.items()]
    daemons.append(host.popen("munged", "--foreground", "--force", *words, env=environment, stderr=subprocess.DEVNULL))
    wait_for((home / "socket").exists, 20, "munged has a socket")
