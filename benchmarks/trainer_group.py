"""What does a trainer of two processes cost, and what does it save?

    python benchmarks/trainer_group.py --out DIR      about ten minutes on two quiet cores; appends to LOG.md

accuracy   ``zorplex-rl train`` with its defaults, once with each number of processes; a run that is finished in DIR already is not repeated
time       a training step on one recorded batch: the embedded policy, 64 episodes; wall seconds, and processor seconds of all processes together
memory     peak resident memory of a process over some steps with a random Qwen2 model, 8 episodes; after the imports, so without torch's own

The numbers of processes take turns in ``time`` and ``memory``, so that other work on the machine
disturbs all of them alike.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
import tyro
from log import Report, append_report, print_report

from zorplex_rl.config import Config
from zorplex_rl.learning.advantages import group_relative
from zorplex_rl.policy.load import load_policy
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.run_folder import RunFolder
from zorplex_rl.services.processes import processor_seconds
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.rewards import score
from zorplex_rl.training.controller import devices_of
from zorplex_rl.training.hosts.placement import Hosts
from zorplex_rl.training.loop import run_training
from zorplex_rl.training.trainer import TrainerHandle
from zorplex_rl.training.trainer_group import trainer_of

ASKED = (
    "Does a trainer of two processes reach the accuracy of one, and what do its steps cost in time and save in memory?"
)
EXPECTED = (
    "Greedy accuracy of at least 0.97 with both. On two cores, which the generators share, no faster: at most twice the wall time of one process. "
    "For a model of 45 million parameters at most 65 % of one process's memory in each."
)


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    out: Path
    """Folder of the training runs."""
    processes: tuple[int, ...] = (1, 2)
    """Numbers of trainer processes."""
    rounds: int = 2
    """How often they take turns."""
    steps: int = 4
    """Steps that are timed in each turn, after one that is not."""
    layers: int = 16
    """Layers of the random model, 2.8 million parameters each."""
    log: bool = True
    """Append the result to LOG.md."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One turn: seconds for each step, processor seconds for each step, and the peak memory of a
    process beyond that before loading, in MB."""

    seconds: float
    cpu_seconds: float
    megabytes: float


def recorded_batch(groups: int, size: int) -> tuple:
    """Return episodes of the embedded policy, and their advantages."""
    zorplex = Zorplex(0)
    tasks = zorplex.tasks(("compositional:easy",), groups, "train")
    requests = [RolloutRequest(task, size * g + i, g) for g, task in enumerate(tasks) for i in range(size)]
    episodes = rollout(load_policy(), requests, zorplex.execute, Sampling())
    for episode in episodes:
        episode.score = score(episode)
    rewards = [[e.scored.reward for e in episodes[g * size : (g + 1) * size]] for g in range(groups)]
    return episodes, [a for group in group_relative(rewards) for a in group]


def random_model(folder: Path, layers: int) -> int:
    """Write a random Qwen2 model with the embedded policy's tokenizer to ``folder``. Returns its
    number of parameters."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    embedded = load_policy()
    torch.manual_seed(0)
    settings = {
        "hidden_size": 512,
        "intermediate_size": 1408,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
    }
    model = Qwen2ForCausalLM(Qwen2Config(**(vars(embedded.model.config) | settings | {"layer_types": None})))
    model.save_pretrained(folder)
    embedded.tokenizer.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


async def turn(config: Config, batch: tuple, steps: int) -> Measured:
    """Start a trainer, take ``steps`` steps after a first one, and stop it."""
    trainer = TrainerHandle(trainer_of(config, devices_of(config), Hosts(config, [])))
    async with trainer.service:
        pids = trainer.replica.pids
        await trainer.step(*batch)
        began, cpu = time.monotonic(), processor_seconds(pids)
        for _ in range(steps):
            await trainer.step(*batch)
        seconds, cpu = time.monotonic() - began, processor_seconds(pids) - cpu
        return Measured(seconds / steps, cpu / steps, max(map(peak_megabytes, pids)))


def peak_megabytes(pid: int) -> float:
    """Return the peak resident memory of a process, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1000


def accuracies(options: Options) -> Report:
    """Train with each number of processes, and return the table of accuracies."""
    rows = []
    for processes in options.processes:
        config, path = Config().changed(trainer_processes=processes), options.out / f"processes_{processes}"
        if path.exists():
            folder, config = RunFolder.reopen(path)
        else:
            folder = RunFolder.create(path, config)
            asyncio.run(run_training(config, folder))
        assert folder.is_finished(config.steps) and config.services.trainer_processes == processes
        before, *_, after = folder.evaluations()
        rows.append(
            [
                str(processes),
                *(f"{row[f'{how}_accuracy']:.2f}" for row in (before, after) for how in ("greedy", "sampled")),
                f"{after['seconds']:.0f}",
            ]
        )
    columns = ["processes", "greedy before", "sampled before", "greedy after", "sampled after", "s"]
    return Report(f"`zorplex-rl train --trainer-processes N`, {config.steps} steps", columns, rows)


def compare(options: Options, title: str, policy: str, batch: tuple, base: float) -> Report:
    """Return the table of steps with each number of processes; of several turns, the median."""
    found: dict[int, list[Measured]] = {processes: [] for processes in options.processes}
    for _ in range(options.rounds):
        for processes, turns in found.items():
            config = Config(policy=policy, device="cpu").changed(trainer_processes=processes)
            turns.append(asyncio.run(turn(config, batch, options.steps)))
            print(title, processes, turns[-1], flush=True)
    rows = [
        [
            str(processes),
            f"{median(t.seconds for t in turns):.2f}",
            f"{median(t.cpu_seconds for t in turns):.2f}",
            f"{median(t.megabytes for t in turns) - base:.0f}",
        ]
        for processes, turns in found.items()
    ]
    return Report(title, ["processes", "s a step", "CPU s a step", "peak MB of a process, beyond the imports"], rows)


def main(options: Options) -> None:
    """Measure, print the tables, and append them to the lab log."""
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    # A trainer of the smallest model there is: torch, transformers, and hardly anything else.
    reports = [accuracies(options)]
    large = options.out / "random_model"
    parameters = random_model(large, options.layers)
    small = asyncio.run(turn(Config(device="cpu"), recorded_batch(1, 2), 1))
    reports.append(compare(options, "Embedded policy, 64 episodes", "embedded", recorded_batch(8, 8), small.megabytes))
    title = f"Random model, {parameters / 1e6:.0f} million parameters, float32, 8 episodes"
    reports.append(compare(options, title, str(large), recorded_batch(2, 4), small.megabytes))
    for report in reports:
        print_report(report)
    if options.log:
        settings = {name: value for name, value in asdict(options).items() if name not in ("log", "out")}
        append_report("benchmarks/trainer_group.py", ASKED, EXPECTED, settings, reports)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
