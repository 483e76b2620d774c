"""Borrow hosts from Kubernetes: ``--hosts kubernetes:N``, through Monarch's job API.

One MonarchMesh of N pods, which Monarch's operator turns into a StatefulSet; deleted at the end of
the run. This project's tests, without a cluster, only check the objects that are sent.
"""

import asyncio
import contextlib
import importlib
import importlib.util
import logging
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from zorplex_rl.config import HostsConfig
from zorplex_rl.errors import ConfigError, HostError
from zorplex_rl.services.runtime import start_runtime
from zorplex_rl.training.hosts.attached import Reached
from zorplex_rl.training.hosts.spec import HostsSpec

MESH = "zorplex"


@contextlib.asynccontextmanager
async def open_kubernetes(spec: HostsSpec, settings: HostsConfig) -> AsyncIterator[list[Reached]]:
    """Create the pods, wait until all are ready, and delete them at the end. Raises HostError."""
    job = kubernetes_job(spec.count, settings)
    start_runtime()
    try:
        try:
            state = await asyncio.to_thread(job.state, cached_path=None)
        except RuntimeError as error:
            raise HostError(f"Kubernetes did not give {spec.count} pods: {error}") from error
        (mesh,) = (getattr(state, name) for name in job._meshes)
        yield [Reached(mesh.slice(hosts=number)) for number in range(spec.count)]
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
    """Return the objects that would be created: Monarch is given a client that asks nobody."""
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
