"""What notebook 05d needs and does not show.

readers_functions        the two functions that a reader wrote in 05b, or the course's
teach  learned           SmolLM2, trained by them; what came of it
teach_narrow  narrow_learned  the same with the learner's layer: only narrow paths are trained
check_path_size          does the learner count as many numbers?
"""

import importlib
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from zorplex_rl.course.figures.tokens import invents as invents
from zorplex_rl.course.kept_file import EXAMPLES
from zorplex_rl.course.lesson import exercise
from zorplex_rl.course.lesson.lesson import table
from zorplex_rl.course.nb05 import leave_a_core, rollout
from zorplex_rl.course.nb05b import RecordedCard, Sampler, counted
from zorplex_rl.course.widgets.live_curve import LiveCurve
from zorplex_rl.policy.evaluate import clustered_interval
from zorplex_rl.policy.load import load_policy
from zorplex_rl.policy.lora import AdaptedLinear, adapted_layers
from zorplex_rl.sizing.model_shape import ModelShape
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.episode import Episode
from zorplex_rl.task.rewards import accuracy, score

SMOLLM2 = ModelShape(30, 576, heads=9, kv_heads=3, intermediate=1536, vocabulary=49_152)
LAYERS = 30 * [(576, 576), (192, 576), (192, 576), (576, 576), *2 * [(1536, 576)], (576, 1536)]
"""The shapes of its layers' weights: query, key, value and output, then gate, up and down."""
SAMPLED = "all weights"
Train = Callable[..., None]


def readers_functions(
    loop: SimpleNamespace, sources: Mapping[str, str]
) -> tuple[Sampler, Callable[..., Any], str]:
    """Return the functions of a reader's file, in the place of 05b's in the notebook ``loop``, and whose they are.

    Where ``sources`` lack one, both are the course's.
    """
    if len(sources) < 2:
        course = loop.Solutions
        return course.sample_episode, course.policy_gradient, "the course's"
    names = dict(vars(loop))
    for source in sources.values():
        exec(source, names)
    return names["sample_episode"], names["policy_gradient"], "yours"


def reader(model: Any) -> Any:
    """Return ``model`` behind the key-value cache of ``my_rl_smollm2.py``."""
    sys.path.insert(0, str(EXAMPLES))
    cached = importlib.import_module("my_rl_smollm2").Reader
    sys.path.remove(str(EXAMPLES))
    return cached(model)


def teach(
    folder: str,
    config: SimpleNamespace,
    train: Train,
    sampler: Sampler,
    curve: LiveCurve,
    card: RecordedCard,
    one_more: Callable[..., None],
) -> list[list[list[Episode]]]:
    """Examine the model in ``folder``, ``train`` it, examine it again. Returns the answers, by exam and kind.

    It reads through a key-value cache, as in ``my_rl_smollm2.py``: the learner's sampler gives it all of the text for
    each token.
    """
    leave_a_core()
    taught = load_policy(folder, of_transformers=True)
    # Reads the same weights with the package's own model, which examines faster.
    policy = load_policy(folder)
    policy.model.load_state_dict(taught.model.state_dict(), assign=True)
    policy.model.tie()

    def examine() -> list[list[Episode]]:
        environment = Zorplex(config.seed, shots=2)
        lookups, sums = (
            environment.tasks((kind,), config.exam, "held_out")
            for kind in ("simple", "compositional")
        )
        episodes = rollout(policy, environment, [*lookups, *sums], card.sampling, one_more)
        for episode in episodes:
            episode.score = score(episode)
        return [episodes[: config.exam], episodes[config.exam :]]

    def on_step(step: int, episodes: Sequence[Episode]) -> None:
        curve.add(SAMPLED, step, accuracy(episodes))
        card.play(policy, step)

    before = examine()
    card.play(policy, 0)
    read = replace(taught, model=reader(taught.model))
    train(read, config, counted(sampler, one_more), on_step)
    after = examine()
    return [before, after]


def check_path_size(attempt: Callable[..., int], solution: Callable[..., int]) -> None:
    """Compare counts for drawn layers."""

    def draw(rng: random.Random) -> tuple[list[tuple[int, int]], int]:
        sizes = range(1, 9)
        shapes = [(rng.choice(sizes), rng.choice(sizes)) for _ in range(rng.randint(1, 3))]
        return shapes, rng.randint(1, 4)

    exercise.agree(
        attempt,
        solution,
        draw,
        examples=[([(3, 5)], 1), ([(3, 5)], 2), ([(3, 5), (2, 2)], 1)],
        mistakes={
            "you counted the weights themselves": lambda shapes, rank: sum(map(math.prod, shapes)),
            "`B` is missing": lambda shapes, rank: sum(rank * shape[1] for shape in shapes),
            "`A` is missing": lambda shapes, rank: sum(rank * shape[0] for shape in shapes),
            "the rank is missing": lambda shapes, rank: sum(map(sum, shapes)),
        },
    )


def teach_narrow(
    folder: str,
    config: SimpleNamespace,
    train: Train,
    sampler: Sampler,
    adapted: Callable[..., Any],
    one_more: Callable[..., None],
) -> list[float]:
    """Train paths beside the layers of the model in ``folder``, which ``adapted`` computes. Returns the share
    of right answers in each batch."""
    leave_a_core()
    policy = load_policy(folder, of_transformers=True, lora_rank=config.rank)
    for layer in adapted_layers(policy.model).values():
        layer.forward = partial(_narrow_output, adapted, layer)  # type: ignore[method-assign]
    shares = list[float]()
    read = replace(policy, model=reader(policy.model))
    train(
        read,
        config,
        counted(sampler, one_more),
        lambda step, episodes: shares.append(accuracy(episodes)),
    )
    return shares


def _narrow_output(adapted: Callable[..., Any], layer: AdaptedLinear, x: torch.Tensor) -> Any:
    return adapted(x, layer.weight, layer.lora_a, layer.lora_b, layer.scale)


def narrow_learned(
    curve: LiveCurve, shares: Sequence[float], answers: int
) -> tuple[int | list[int], str]:
    """Return the right option of the prediction, and why, from the curve of all weights and the ``shares``, each
    of so many ``answers``."""
    if not shares:
        return [], "SmolLM2 is not on this machine."
    whole = [share for _, share in dict(curve.series)[SAMPLED]]
    gain, chance = shares[-1] - shares[0], math.sqrt(2 / answers)
    return (
        1 + (gain > chance) - (gain < -chance),
        f"With narrow paths from {shares[0]:.0%} to {shares[-1]:.0%}, with all weights from {whole[0]:.0%} to {whole[-1]:.0%}. "
        f"By chance two shares of {answers} answers may differ by {100 * chance:.0f} points, which is two standard errors at most. "
        "What is less, between two steps or two curves, shows nothing.",
    )


def learned(marks: list[list[list[Episode]]]) -> tuple[int | list[int], str, list[Any]]:
    """Return what ``reveal`` shows of the answers: the right option, why, and a table.

    A kind is answered better if, of the questions whose mark changed, the 95 % interval says that
    more than half turned right.
    """
    if not marks:
        return [], "SmolLM2 is not on this machine.", []
    better, rows, why = list[bool](), list[dict[str, str]](), ""
    for before, after in zip(*marks, strict=True):
        changed = [
            new
            for old, new in zip(before, after, strict=True)
            if old.scored.correct != new.scored.correct
        ]
        turned_right = [new.scored.correct > 0 for new in changed]
        words = [tuple(sorted(new.task.words)) for new in changed]
        better.append(bool(changed) and clustered_interval(turned_right, words)[0] > 0.5)
        kind, right = before[0].task.kind, turned_right.count(True)
        shares = [accuracy(before), accuracy(after)]
        row = {"kind": kind, "before": f"{shares[0]:.0%}", "after": f"{shares[1]:.0%}"}
        rows.append(row | {"turned right": f"{right}", "turned wrong": f"{len(changed) - right}"})
        why += f"`{kind}`: from {shares[0]:.0%} to {shares[1]:.0%}. "
        why += (
            f"{right} of {len(before)} questions turned right, and {len(changed) - right} wrong. "
        )
        if shares == [0, 0]:
            why += "It was never once right, and not in the training: what was learned there did not carry over. "
    why += "We call a kind *better* if chance alone would turn so many right, and so few wrong, less than once in forty times."
    caption = f"SmolLM2 before and after training, {len(marks[0][0])} sampled answers to held-out tasks of each kind"
    option = [[True, False], [False, True], [True, True], [False, False]].index(better)
    return option, why, [table(caption, rows)]
