"""Do the twenty steps of notebook 05 learn, whatever the seed?

    python benchmarks/twenty_steps.py                 five seeds, about two minutes on one quiet core; appends to LOG.md

Runs the notebook's own ``training_loop`` with its own settings, each time from the embedded policy. The seed changes the tasks and the random draws.
Accuracy is that on 200 held-out compositional tasks, sampled at temperature 1, before and after. Seconds are wall time of the twenty steps; CPU
seconds say what they would take on a quiet machine.
"""

from __future__ import annotations

import importlib.util
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
import tyro
from log import Report, append_report, print_report

from zorplex_rl.learning.train_simple import compare
from zorplex_rl.policy.evaluate import summarise
from zorplex_rl.policy.load import load_policy
from zorplex_rl.policy.rollout import Sampling
from zorplex_rl.task.environment import Zorplex

ASKED = "By how many points do the twenty steps of notebook 05 raise the held-out accuracy (sampled at temperature 1), and in what time?"
EXPECTED = "At least 25 points within 60 s, on five seeds of five."
NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "05_rl_intro.py"


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure. The defaults are the settings of the notebook."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds of tasks and draws."""
    steps: int = 20
    """Training steps."""
    prompts: int = 8
    """Tasks in a batch."""
    samples: int = 8
    """Episodes of each task."""
    learning_rate: float = 2e-4
    """Of AdamW."""
    tasks: int = 200
    """Held-out tasks."""
    log: bool = True
    """Append the result to LOG.md."""


@dataclass(frozen=True, slots=True)
class Result:
    """One seed: accuracies are shares of 1, times are those of the training steps alone."""

    seed: int
    before: float
    after: float
    seconds: float
    cpu_seconds: float

    @property
    def gain(self) -> float:
        """Points of accuracy."""
        return 100 * (self.after - self.before)


def load_notebook() -> ModuleType:
    """Import notebook 05. Its cells do not run."""
    spec = importlib.util.spec_from_file_location("notebook_05", NOTEBOOK)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(NOTEBOOK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure(notebook: ModuleType, options: Options, seed: int) -> Result:
    """Train from the embedded policy with the notebook's loop. Returns the accuracies before and after."""
    settings = SimpleNamespace(seed=seed, **asdict(options))
    environment, sampling = Zorplex(seed), Sampling(temperature=1.0, max_tokens=96, slots=64)
    held_out = environment.tasks(("compositional",), options.tasks, "held_out")
    generator, trainer = load_policy(), load_policy()

    def accuracy() -> float:
        return summarise("held out", notebook.answer_tasks(trainer, environment, held_out, sampling)).accuracy

    before = accuracy()
    began, cpu = time.monotonic(), time.process_time()
    notebook.training_loop(
        generator,
        trainer,
        environment,
        sampling,
        settings,
        compare,
        notebook.training_row_solution,
        lambda step, batch: None,
    )
    seconds, cpu_seconds = time.monotonic() - began, time.process_time() - cpu
    return Result(seed, before, accuracy(), seconds, cpu_seconds)


def main(options: Options) -> None:
    """Train once for every seed, print the table, and append it to the lab log."""
    torch.set_num_threads(1)
    notebook, results = load_notebook(), []
    for seed in options.seeds:
        results.append(measure(notebook, options, seed))
        print(results[-1], f"gain {results[-1].gain:.1f}", flush=True)
    met = sum(result.gain >= 25 for result in results)
    report = Report(
        "Twenty steps of notebook 05",
        ["seed", "before", "after", "points", "s", "CPU s"],
        [
            [
                str(result.seed),
                f"{result.before:.1%}",
                f"{result.after:.1%}",
                f"{result.gain:+.1f}",
                f"{result.seconds:.1f}",
                f"{result.cpu_seconds:.1f}",
            ]
            for result in results
        ],
        [f"At least 25 points on {met} of {len(results)} seeds."],
    )
    print_report(report)
    if options.log:
        append_report(
            "benchmarks/twenty_steps.py",
            ASKED,
            EXPECTED,
            {name: value for name, value in asdict(options).items() if name != "log"},
            [report],
        )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
