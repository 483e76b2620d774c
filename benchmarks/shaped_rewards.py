"""Record the runs of notebook 08b on shaped rewards: what a policy learns when tool calls are paid,
or cost something.

    python benchmarks/shaped_rewards.py               twelve runs, about three minutes on one quiet core; writes shaped_rewards.json

Runs the notebook's own ``train`` with its own settings, once for each bonus and weight of the KL
penalty. The numbers of a step are means over its batch: the shaped reward, the share of right
answers, the tool calls of an episode, and KL to the reference in nats a token. The same run gives
the same numbers again on the same kind of machine.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import fmean
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import tyro
from log import describe_machine

from zorplex_rl.course import nb08b
from zorplex_rl.task.rewards import accuracy

RECORDED = Path(__file__).with_name("shaped_rewards.json")
NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "08b_judging_a_run.py"


@dataclass(frozen=True, slots=True)
class Options:
    """What to record."""

    bonuses: tuple[float, ...] = (-0.1, 0.0, 0.1, 0.5)
    """Reward of every tool call."""
    penalties: tuple[float, ...] = (0.0, 0.3, 3.0)
    """Weight of the KL penalty."""
    out: Path = RECORDED
    """The file to write."""


def load_notebook() -> ModuleType:
    """Import notebook 08b. Its cells do not run."""
    spec = importlib.util.spec_from_file_location("notebook_08b", NOTEBOOK)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(NOTEBOOK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings_of(notebook: ModuleType) -> SimpleNamespace:
    """Return the notebook's settings for the embedded policy."""
    with patch.object(notebook.mo, "cli_args", dict):
        _, values = notebook.settings.run()
    config: SimpleNamespace = values["config"]
    return config


def record(notebook: ModuleType, config: SimpleNamespace, bonus: float, penalty: float) -> dict[str, Any]:
    """Train once. Returns the bonus, the penalty and a list for each number, with a value for every
    step."""
    series: dict[str, list[float]] = {"reward": [], "accuracy": [], "calls": [], "kl": []}

    for step in notebook.train(config, notebook.shaped(bonus), config.hack_steps, penalty):
        series["reward"].append(round(step.reward, 4))
        series["accuracy"].append(round(accuracy(step.episodes), 4))
        series["calls"].append(round(fmean(episode.tool_calls for episode in step.episodes), 3))
        series["kl"].append(round(notebook.kl_solution(*nb08b.tokens_of(step.episodes, step.before)), 4))
    return {"bonus": bonus, "penalty": penalty, **series}


def main(options: Options) -> None:
    """Train once for each setting, and write what was measured."""
    torch.set_num_threads(1)
    notebook = load_notebook()
    config = settings_of(notebook)
    runs = []
    for penalty in options.penalties:
        for bonus in options.bonuses:
            runs.append(record(notebook, config, bonus, penalty))
            print(f"bonus {bonus:g}, penalty {penalty:g}: {runs[-1]['accuracy'][-1]:.0%} right", flush=True)
    shared = {"steps": config.hack_steps, "learning_rate": config.learning_rate, "seed": config.seed}
    about = {"command": "benchmarks/shaped_rewards.py", "date": date.today().isoformat(), "machine": describe_machine()}
    options.out.write_text(json.dumps(about | {"conditions": shared, "runs": runs}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
