"""What only a GPU can show, on the first one of this machine. Skipped where there is none."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import pytest
import torch
from runs import SMALL, rows, train_here

from zorplex_rl.course.nb07 import Writer
from zorplex_rl.devices import count_gpus
from zorplex_rl.policy.load import EMBEDDED_PATH, load_policy
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.run.folder import RunFolder
from zorplex_rl.services.runtime import concurrent_endpoint
from zorplex_rl.services.spawn import spawn
from zorplex_rl.sizing.measured import measure
from zorplex_rl.sizing.memory import Workload
from zorplex_rl.task.specs import get_spec
from zorplex_rl.training.transports import subscribe
from zorplex_rl.weights.layout import Layout, named_weights

pytestmark = pytest.mark.slow

if not count_gpus():
    pytest.skip("this machine has no GPU", allow_module_level=True)
GPU = "cuda:0"
WIDTH = 2048


def square_layers(count: int = 8) -> torch.nn.Module:
    return torch.nn.ParameterList(torch.zeros(WIDTH, WIDTH, device=GPU) for _ in range(count))


class GpuWriterActor(Writer):
    """Publishes a model on the GPU, in which every number is the version: what comes before a
    publication is still being computed when it is asked for."""

    def __init__(self) -> None:
        super().__init__(square_layers)

    @concurrent_endpoint
    async def publish(self) -> int:
        await asyncio.to_thread(self._publish)
        return self.version

    @torch.no_grad()
    def _publish(self) -> None:
        self.version += 1
        busy = torch.ones(WIDTH, WIDTH, device=GPU)
        for parameter in self.model:
            for _ in range(20):
                busy = (busy @ busy) / WIDTH
            parameter.copy_(busy * self.version)
        self.publisher.publish(self.model, self.version)


def test_weights_on_the_gpu_come_out_of_a_buffer_bit_for_bit():
    torch.manual_seed(0)
    source = {f"layer {index}": torch.randn(1000 + index, device=GPU) for index in range(20)}
    target = {name: torch.zeros_like(tensor) for name, tensor in source.items()}
    layout = Layout.of(source)
    buffer = torch.zeros(layout.size, dtype=torch.uint8, pin_memory=True)
    for _ in range(50):
        for tensor in source.values():
            tensor.mul_(1.01).add_(0.1)
        layout.pack(source, buffer)
        for tensor in target.values():
            tensor.zero_()
        layout.unpack(buffer, target)
        assert all(torch.equal(source[name], target[name]) for name in source)


@pytest.mark.parametrize("transport", ["message", "rdma"])
def test_a_model_on_the_gpu_gets_what_another_process_published_from_there(transport):
    async def run():
        writer, model = await spawn("writer", GpuWriterActor), square_layers()
        try:
            source = replace(await writer.actor.open_ring.call_one(), owner=writer.actor)
            subscriber = await subscribe(source, transport, model)
            for version in range(1, 31):
                assert await writer.actor.publish.call_one() == version
                assert await subscriber.pull() == version
                assert all(
                    bool((tensor == float(version)).all())
                    for tensor in named_weights(model).values()
                )
        finally:
            await writer.stop()

    asyncio.run(run())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_policy_on_the_gpu_answers_as_on_the_cpu(dtype):
    spec = get_spec("compositional", 0)
    requests = [RolloutRequest(spec.task(index), index) for index in range(64)]
    answers = [
        [
            episode.text
            for episode in rollout(
                load_policy("embedded", device, dtype),
                requests,
                spec.execute,
                Sampling(0.0, slots=32),
            )
        ]
        for device in ("cpu", GPU)
    ]
    same = sum(one == other for one, other in zip(*answers, strict=True))
    assert same >= (60 if dtype == "float32" else 48)


def test_an_asynchronous_run_on_the_gpu_learns_and_survives_the_death_of_its_generator(tmp_path):
    config = SMALL.changed(
        task="compositional", device="cuda", max_lag=1, steps=16, prompts_per_step=8, group_size=8, eval_tasks=200, eval_every=16,
        learning_rate=5e-4, checkpoint_every=16, generators=1,
    )  # fmt: skip
    started = []

    def show(row):
        if row["event"] == "step" and row["step"] == 4:
            service = started[0].services["generator"]
            os.kill(
                next(replica.pid for replica in service.replicas if replica.pid), signal.SIGKILL
            )

    run: RunFolder = train_here(config, tmp_path / "run", show=show, on_start=started.append)
    assert [row["role"] for row in rows(run.path, "restart")] == ["generator"]
    before, *_, after = (row["sampled_accuracy"] for row in rows(run.path, "eval"))
    assert len(rows(run.path, "step")) == config.steps and after > before + 0.1


@pytest.mark.parametrize("role", ["trainer", "generator"])
def test_what_a_process_takes_of_the_gpu_is_measured_in_a_process_of_its_own(role):
    work = Workload(prompts=2, tasks=2, group_size=4, response=24, evaluated=0)
    (found,) = measure([(role, work)], EMBEDDED_PATH, "cuda")
    assert 1e6 < found.peak < 1e9 and found.seconds > 0
