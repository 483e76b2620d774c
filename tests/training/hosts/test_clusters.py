"""What Slurm and Kubernetes are asked for. ``test_slurm.py`` runs on a real Slurm; no Kubernetes
was there to run on."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError, HostError

IMAGE = "registry.example/zorplex:1"


def in_another_process(program: str) -> str:
    """What ``program`` prints. Monarch's jobs choose the transport of the process that makes
    them."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def mesh():
    """The one object that three pods with two GPUs each are asked for with."""
    pytest.importorskip("kubernetes")
    (found,) = json.loads(
        in_another_process(
            "import json; from zorplex_rl.config import Config; from zorplex_rl.training.hosts.kubernetes import kubernetes_objects;"
            f"print(json.dumps(kubernetes_objects(3, Config().changed(image={IMAGE!r}, namespace='lab', pod_gpus=2).cluster)))"
        )
    )
    return found


def test_one_mesh_of_all_pods_is_asked_for(mesh):
    assert (mesh["apiVersion"], mesh["kind"]) == ("monarch.pytorch.org/v1alpha1", "MonarchMesh")
    assert (mesh["metadata"]["namespace"], mesh["spec"]["replicas"]) == ("lab", 3)
    # What the operator's published definition of a MonarchMesh demands of its name.
    assert (
        mesh["metadata"]["name"].isalnum() and mesh["metadata"]["name"].islower() and len(mesh["metadata"]["name"]) < 64
    )
    (container,) = mesh["spec"]["podTemplate"]["spec"]["containers"]
    assert container["image"] == IMAGE and container["resources"]["limits"] == {"nvidia.com/gpu": "2"}


def test_the_pods_are_what_kubernetes_published_schema_demands(mesh):
    schemas = pytest.importorskip("kubernetes_validate")

    def validate(template: dict) -> None:
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "worker"}, "template": template}
        schemas.validate(pod, schemas.latest_version().rpartition(".")[0], strict=True)

    validate(mesh["spec"]["podTemplate"])
    broken = json.loads(json.dumps(mesh["spec"]["podTemplate"]).replace('"emptyDir"', '"emptydir"'))
    with pytest.raises(schemas.ValidationError):
        validate(broken)


def test_two_runs_in_one_namespace_do_not_take_each_others_pods():
    pytest.importorskip("kubernetes")
    names = in_another_process(
        "from zorplex_rl.config import Config; from zorplex_rl.training.hosts.kubernetes import kubernetes_objects;"
        "print(*(kubernetes_objects(1, Config().changed(image='x').cluster)[0]['metadata']['name'] for _ in range(2)))"
    ).split()
    assert len(set(names)) == 2


def test_without_the_package_kubernetes_one_sentence_says_what_to_install(monkeypatch):
    from zorplex_rl.training.hosts import kubernetes

    monkeypatch.setattr(kubernetes.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs the package kubernetes; install zorplex-rl\[kubernetes\]"):
        kubernetes.check_kubernetes(Config().changed(image=IMAGE).cluster)


def test_pods_need_an_image():
    from zorplex_rl.training.hosts.kubernetes import check_kubernetes

    pytest.importorskip("kubernetes")
    with pytest.raises(ConfigError, match="needs --image"):
        check_kubernetes(Config().cluster)


def test_a_plan_of_pods_without_an_image_is_one_sentence(capsys):
    from zorplex_rl.cli.commands import main

    pytest.importorskip("kubernetes")
    assert main(["train", "--hosts", "kubernetes:2", "--plan"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "needs --image" in said.err


def test_the_script_for_slurm_starts_one_worker_on_one_node_with_the_given_options():
    script = in_another_process(
        "from zorplex_rl.config import Config; from zorplex_rl.training.hosts.slurm import slurm_script;"
        "print(slurm_script(Config().changed(slurm_options='partition=gpu gpus-per-node=1', tls='/shared/my keys/controller').cluster))"
    )
    lines = script.splitlines()
    for option in ("--nodes=1", "--no-requeue", "--partition=gpu", "--gpus-per-node=1"):
        assert f"#SBATCH {option}" in lines
    (run,) = [line for line in lines if line.startswith("srun")]
    # Until when it waits for its controller, and where the nodes find their certificates.
    words = shlex.split(run)[1:]
    assert words[:3] == [sys.executable, "-m", "zorplex_rl.services.job_worker"]
    assert float(words[3]) > time.time() and words[4] == "/shared/my keys"


@pytest.mark.parametrize(
    ("squeue", "said"),
    [
        ("PENDING|n/a|Resources|(null)", r"has not begun within 0.5 s \(PENDING, Resources\); ask for fewer nodes"),
        (
            "FAILED|n1|NonZeroExitCode|mine",
            r"\(node n1\) ended .*: FAILED, NonZeroExitCode; look there at /tmp/slurm_7_",
        ),
        ("FAILED|n1|NonZeroExitCode|zorplex-rl: no | key", r"\(node n1\) ended before it could be used: no \| key$"),
    ],
)
def test_a_job_that_does_not_begin_or_ends_at_once_says_why(squeue, said, tmp_path: Path, monkeypatch):
    from zorplex_rl.training.hosts.slurm import _until_it_listens

    (tmp_path / "squeue").write_text(f"#!/bin/sh\necho '{squeue}'\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(HostError, match=said):
        asyncio.run(_until_it_listens(SimpleNamespace(_slurm_job_id="7"), Config().changed(start_seconds=0.5).cluster))


def test_without_slurm_one_sentence_says_where_to_run(monkeypatch, tmp_path: Path):
    from zorplex_rl.training.hosts.slurm import check_slurm

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="needs sbatch, squeue, scancel, which is not installed here"):
        check_slurm(Config().changed(hosts="slurm:1", insecure=True).cluster)


@pytest.mark.parametrize("options", ["partition gpu=", "--time=1", "'time=1"])
def test_options_that_sbatch_would_not_understand_are_refused(options):
    from zorplex_rl.training.hosts.slurm import slurm_job

    with pytest.raises(ConfigError, match="--slurm-options"):
        slurm_job(Config().changed(slurm_options=options).cluster, 0)


@pytest.mark.parametrize("hosts", ["slurm", "slurm:0", "kubernetes:two", "slurm:-1"])
def test_a_number_of_nodes_is_demanded(hosts):
    from zorplex_rl.training.hosts.spec import parse_hosts

    with pytest.raises(ConfigError, match="expected a number of 1 to 999"):
        parse_hosts(hosts)


def test_a_plan_shows_the_placement_and_what_would_be_submitted_and_submits_nothing(tmp_path: Path):
    (tmp_path / "sbatch").write_text("#!/bin/sh\ntouch $0.called\n")
    (tmp_path / "sbatch").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "zorplex_rl", "train", "--hosts", "slurm:2", "--slurm-options", "partition=gpu", "--plan"],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}, cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "slurm 1" in done.stdout and "#SBATCH --partition=gpu" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["sbatch"]
