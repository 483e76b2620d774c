"""Do the twenty steps of notebook 05 learn, whatever the seed?

    python benchmarks/twenty_steps.py                 five seeds, about three minutes on one quiet core; appends to LOG.md

Runs the notebook's own ``train`` with its own settings and the course's solutions, each time from
the embedded policy. The seed changes the tasks and the random draws. Accuracy is that on 200
held-out compositional tasks, sampled at temperature 1, before and after. Seconds are wall time of
the twenty steps; CPU seconds say what they would take on a quiet machine.
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

from zorplex_rl.learning.train_simple import play
from zorplex_rl.policy.load import load_policy
from zorplex_rl.policy.rollout import Sampling
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.rewards import accuracy

ASKED = "By how many points do the twenty steps of notebook 05 raise the held-out accuracy (sampled at temperature 1), and in what time?"
EXPECTED = "At least 40 points within 60 s, on five seeds of five."
NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "05_rl_intro.py"


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure. The defaults are the settings of the notebook."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds of tasks and draws."""
    steps: int = 20
    """Training steps."""
    prompts: int = 4
    """Tasks in a batch."""
    samples: int = 4
    """Episodes of each task."""
    learning_rate: float = 3e-4
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
    """Train from the embedded policy with the notebook's loop. Returns the accuracies before and
    after."""
    settings = SimpleNamespace(**asdict(options) | {"seed": seed})
    environment, sampling = Zorplex(seed), Sampling(temperature=1.0, max_tokens=96, max_turns=96, slots=64)
    held_out = environment.tasks(("compositional",), options.tasks, "held_out")
    policy = load_policy()

    def right() -> float:
        return accuracy(play(policy, environment, held_out, seed, sampling))

    before = right()
    began, cpu = time.monotonic(), time.process_time()
    notebook.train(
        policy,
        environment,
        sampling,
        settings,
        notebook.sample_episode_solution,
        notebook.policy_gradient_solution,
        lambda step, episodes: None,
    )
    seconds, cpu_seconds = time.monotonic() - began, time.process_time() - cpu
    return Result(seed, before, right(), seconds, cpu_seconds)


def main(options: Options) -> None:
    """Train once for every seed, print the table, and append it to the lab log."""
    torch.set_num_threads(1)
    notebook, results = load_notebook(), []
    for seed in options.seeds:
        results.append(measure(notebook, options, seed))
        print(results[-1], f"gain {results[-1].gain:.1f}", flush=True)
    met = sum(result.gain >= 40 for result in results)
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
        [f"At least 40 points on {met} of {len(results)} seeds."],
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
