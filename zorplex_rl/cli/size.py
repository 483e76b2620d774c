"""What does a run take in memory, part by part? ``zorplex-rl size``, and a warning of ``train``."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zorplex_rl.cli.presets import PresetName, preset_config
from zorplex_rl.config import Config
from zorplex_rl.sizing.measured import measure
from zorplex_rl.sizing.memory import (
    BYTES,
    Memory,
    Workload,
    available_memory,
    generator_memory,
    logit_bytes,
    trainer_memory,
    version_bytes,
)
from zorplex_rl.sizing.model_shape import ModelShape, shape_of
from zorplex_rl.task.environment import Environment

PROMPTS_TRIED = 8
MODEL_PROCESS = 280_000_000
"""Private bytes of a process with torch and transformers, before it loads a model."""
SMALL_PROCESS = 65_000_000
"""Private bytes of a process without torch."""
SMALL_PROCESSES = 4
"""Dataset, replay buffer, advantages and rewards; slow tools have one more."""

Process = tuple[str, int, Memory]
"""A role with a model, how many processes it has, and what each of them needs."""


@dataclass(frozen=True)
class Size:
    """Print a run's memory, part by part. Takes train's settings, starts no run."""

    config: Config = Config()
    preset: PresetName | None = None
    """Settings by name; explicit flags win. cli/presets.py has the reasons."""
    measure: bool = False
    """Also measure a real training step and a real generator, on one thread of this machine."""

    def defaults(self) -> "Size | None":
        return Size(preset_config(self.preset)) if self.preset else None

    def run(self) -> int:
        from rich.console import Console
        from rich.table import Table

        from zorplex_rl.policy.auto import resolved
        from zorplex_rl.policy.load import whole_folder
        from zorplex_rl.task.own_task import EnvironmentSource

        self.config.check()
        config = resolved(self.config)
        folder = whole_folder(config.policy)
        shape = shape_of(folder)
        work = workload_of(config, folder, shape, EnvironmentSource.of(config).make())
        roles = processes(shape, work, config)
        title = f"{config.policy}: {shape.parameters / 1e6:.1f} million parameters, {config.dtype}"
        table = Table("process", "when", "part", "bytes", title=title, title_justify="left")
        table.columns[-1].justify = "right"
        for role, count, memory in roles:
            table.add_row(f"{role} × {count}", memory.highest, "all of it", gigabytes(memory.total))
            for part in sorted(memory.parts, key=memory.parts.__getitem__, reverse=True):
                table.add_row("", "", part, gigabytes(memory.parts[part]))
            table.add_section()
        Console(highlight=False).print(table)
        if shape.unknown:
            print(f"not known: {shape.unknown}")
        whole = gigabytes(run_bytes(roles, config))
        lengths = f"for prompts of {work.prompt} and answers of {work.response} tokens"
        print(f"a version of the weights: {gigabytes(version_bytes(shape, work))}")
        print(f"all processes of a long run on one machine without a GPU: {whole}, {lengths}")
        if self.measure:
            work = replace(work, evaluated=0)
            trainer, generator = measure([("trainer", work), ("generator", work)], folder)
            print(f"measured: trainer {gigabytes(trainer.peak)}, {trainer.seconds:.2g} s")
            print(f"measured: generator {gigabytes(generator.peak)}, {generator.seconds:.2g} s")
        return 0


def workload_of(
    config: Config, folder: Path, shape: ModelShape, environment: Environment
) -> Workload:
    """Return the workload of ``config``, with the prompts of some tasks of ``environment``. Raises
    ConfigError if the model cannot read them."""
    from zorplex_rl.policy.load import load_tokenizer
    from zorplex_rl.policy.tokenizer import check_length, encode_prompt, shared_length

    tokenizer = load_tokenizer(config.policy, folder, config.template_arguments)
    tasks = [environment.task(index, "train") for index in range(PROMPTS_TRIED)]
    prompts = [encode_prompt(tokenizer, task) for task in tasks]
    longest = max(map(len, prompts))
    check_length(config.policy, shape.reads, longest, config.max_tokens, config.shots)
    return Workload.of(config, longest, shared_length(prompts))


def processes(shape: ModelShape, work: Workload, config: Config) -> list[Process]:
    """Return the processes of ``config`` that hold a model."""
    weights = {"weights": BYTES[work.dtype] * shape.parameters}
    roles = [
        ("trainer", 1, trainer_memory(shape, work)),
        ("generator", config.services.generators, generator_memory(shape, work)),
    ]
    if config.services.spares:
        roles.append(("spare", int(config.services.spares), Memory({"waiting": weights})))
    if config.learner.kl_coefficient > 0 and not config.lora_rank:
        logits = max(logit_bytes(shape, batch) for batch in work.micro_batches())
        roles.append(("reference", 1, Memory({"score": weights | {"logits": logits}})))
    return roles


def run_bytes(roles: Sequence[Process], config: Config) -> int:
    """Return the bytes of main memory that all processes of ``config`` take without a GPU, at most."""
    small = SMALL_PROCESSES + (config.tool_latency > 0)
    # The controller has loaded what a model process has, but no model.
    total = small * SMALL_PROCESS + MODEL_PROCESS
    for _, count, memory in roles:
        total += count * (memory.total + memory.later + MODEL_PROCESS)
    return total


def warn_of_memory(config: Config, shape: ModelShape, work: Workload) -> None:
    """Print a warning if a run of ``config`` without a GPU may need more memory than there is: the kernel
    kills its processes without a message. On a GPU torch itself says what it lacks."""
    available = available_memory()
    needed = run_bytes(processes(shape, work, config), config)
    if needed > available:
        sizes = f"about {gigabytes(needed)} of memory, and {gigabytes(available)} are there"
        problem = f"with answers of {config.max_tokens} tokens this run needs {sizes}"
        advice = "lower --token-budget, --slots or --max-tokens, or take --dtype bfloat16"
        print(f"zorplex-rl: warning: {problem}; {advice}", file=sys.stderr)


def gigabytes(size: float) -> str:
    """Return ``size`` bytes in words: 2.3 GB, 46 MB."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
