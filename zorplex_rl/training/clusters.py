"""Hosts that a cluster's scheduler lends: ``--hosts slurm:N`` and ``--hosts kubernetes:N``, through Monarch's job API.

    slurm        N jobs of one node each. A node that fails takes its own job along and no other: in one job of N nodes, the loss of the first
                 node, on which its script runs, would end all.
    kubernetes   one MonarchMesh of N pods, which Monarch's operator turns into a StatefulSet. Not run by this project's tests, which have no
                 cluster: they only check the objects that are sent.

In both Monarch's own worker runs on the nodes, from the Python that is installed there; ``zorplex-rl worker`` is not needed. The jobs are cancelled
at the end, however the run ends. If the controller is killed, the workers end with their lease (``services/host.py``), and the jobs with them.
"""

import asyncio
import contextlib
import importlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from zorplex_rl.config import HostsConfig
from zorplex_rl.errors import ConfigError, HostError
from zorplex_rl.services.runtime import start_runtime

if TYPE_CHECKING:
    from zorplex_rl.training.hosts import HostsSpec

MESH = "zorplex"
NODE_LOGS = "/tmp"
"""Where the nodes write what the workers print: no folder of this machine need exist there."""


@contextlib.asynccontextmanager
async def open_slurm(spec: "HostsSpec", settings: HostsConfig) -> AsyncIterator[list[Any]]:
    """Submit a job for each host, wait until all run, and cancel them all at the end. Raises HostError."""
    jobs = [slurm_job(settings, number) for number in range(spec.count)]
    # After the jobs are made, which choose the transport.
    start_runtime()
    try:
        try:
            states = await asyncio.gather(*(asyncio.to_thread(job.state, cached_path=None) for job in jobs))
        except RuntimeError as error:
            raise HostError(f"Slurm did not give {spec.count} nodes: {error}") from error
        yield [getattr(state, MESH) for state in states]
    finally:
        await asyncio.shield(asyncio.gather(*(asyncio.to_thread(job.kill) for job in jobs), return_exceptions=True))


def slurm_job(settings: HostsConfig, number: int) -> Any:
    """Return the job of host ``number``, not yet submitted."""
    from monarch.job import SlurmJob

    # Only now: importing it makes them talkative.
    logging.getLogger("monarch._src.job.slurm").setLevel(logging.ERROR)
    logging.getLogger("monarch._src.job.job").setLevel(logging.WARNING)
    # A job that Slurm starts again on another node would run a worker that nobody knows.
    options = ["--no-requeue", *_words(settings)]
    return SlurmJob(
        {MESH: 1},
        python_exe=shlex.quote(sys.executable),
        slurm_args=options,
        job_name=f"zorplex-{number}",
        log_dir=NODE_LOGS,
        job_start_timeout=int(settings.start_seconds),
    )


def check_slurm(settings: HostsConfig) -> None:
    """Raise ConfigError if no job can be submitted from here."""
    if missing := [program for program in ("sbatch", "squeue", "scancel") if shutil.which(program) is None]:
        raise ConfigError(
            f"--hosts slurm needs {', '.join(missing)}, which is not installed here; run it where you submit jobs"
        )
    _words(settings)
    name = socket.gethostname()
    try:
        loopback = socket.gethostbyname(name).startswith("127.")
    except OSError:
        loopback = True
    if loopback:
        raise ConfigError(
            f"the nodes cannot reach this machine: its name {name!r} does not resolve to an address of its network; mend /etc/hosts or its DNS entry"
        )


def slurm_script(settings: HostsConfig) -> str:
    """Return the script that is submitted for the first host, and submit nothing: Monarch is given another ``sbatch``."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = Path(folder, "sbatch")
        recorder.write_text('#!/bin/sh\ncat > "$0.script"\necho Submitted batch job 0\n')
        recorder.chmod(0o755)
        usual = os.environ["PATH"]
        os.environ["PATH"] = f"{folder}{os.pathsep}{usual}"
        try:
            slurm_job(settings, 0).apply()
        finally:
            os.environ["PATH"] = usual
        return Path(f"{recorder}.script").read_text()


def _words(settings: HostsConfig) -> list[str]:
    """Return the options for sbatch. Raises ConfigError."""
    try:
        words = shlex.split(settings.slurm_options or "")
    except ValueError as error:
        raise ConfigError(f"--slurm-options is {settings.slurm_options!r}; it cannot be read: {error}") from error
    for word in words:
        if not re.fullmatch(r"[a-z][a-z0-9-]*(=.+)?", word):
            raise ConfigError(
                f"--slurm-options has {word!r}; write each as name=value, as in 'partition=gpu time=01:00:00'"
            )
    return [f"--{word}" for word in words]


@contextlib.asynccontextmanager
async def open_kubernetes(spec: "HostsSpec", settings: HostsConfig) -> AsyncIterator[list[Any]]:
    """Create the pods, wait until all are ready, and delete them at the end. Raises HostError."""
    job = kubernetes_job(spec.count, settings)
    start_runtime()
    try:
        try:
            state = await asyncio.to_thread(job.state, cached_path=None)
        except RuntimeError as error:
            raise HostError(f"Kubernetes did not give {spec.count} pods: {error}") from error
        (mesh,) = (getattr(state, name) for name in job._meshes)
        yield [mesh.slice(hosts=number) for number in range(spec.count)]
    finally:
        await asyncio.shield(asyncio.to_thread(job.kill))


def kubernetes_job(count: int, settings: HostsConfig) -> Any:
    """Return a job of ``count`` pods, not yet applied. Raises ConfigError."""
    check_kubernetes(settings)
    from monarch.job.kubernetes import ImageSpec, KubeConfig, KubernetesJob

    logging.getLogger("monarch._src.job.kubernetes").setLevel(logging.WARNING)

    file = Path(os.environ.get("KUBECONFIG") or "~/.kube/config").expanduser()
    job = KubernetesJob(
        settings.namespace,
        timeout=int(settings.start_seconds),
        # Without a file: from inside the cluster.
        kubeconfig=KubeConfig.from_path(str(file)) if file.is_file() else None,
    )
    resources: dict[str, str | int] | None = {"nvidia.com/gpu": settings.pod_gpus} if settings.pod_gpus else None
    # A mesh of that name that is there already would be changed, and it may be another run's.
    job.add_mesh(
        f"{MESH}{uuid.uuid4().hex[:8]}",
        count,
        image_spec=ImageSpec(settings.image, resources, shared_memory_size=settings.pod_memory),
    )
    return job


def kubernetes_objects(count: int, settings: HostsConfig) -> list[dict[str, Any]]:
    """Return the objects that would be created, and create nothing: nobody is asked, and Monarch is given another client."""
    job = kubernetes_job(count, settings)
    client: Any = importlib.import_module("kubernetes.client")
    created: list[dict[str, Any]] = []

    class Recorder:
        def __init__(self, api_client: Any = None) -> None:
            pass

        def get_namespaced_custom_object(self, **address: Any) -> None:
            raise client.ApiException(status=404)

        def create_namespaced_custom_object(self, body: dict[str, Any], **address: Any) -> None:
            created.append(body)

    usual, client.CustomObjectsApi = client.CustomObjectsApi, Recorder
    job._kubeconfig = SimpleNamespace(load=lambda: None)
    try:
        job.apply()
    finally:
        client.CustomObjectsApi = usual
    return created


def check_kubernetes(settings: HostsConfig) -> None:
    """Raise ConfigError if a package or a setting is missing."""
    if importlib.util.find_spec("kubernetes") is None:
        raise ConfigError("--hosts kubernetes needs the package kubernetes; install zorplex-rl[kubernetes]")
    if not settings.image:
        raise ConfigError(
            "--hosts kubernetes needs --image: a container image in which this version of zorplex-rl is installed"
        )
