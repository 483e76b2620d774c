"""Serve notebook 10: processes that are measured, its slider, and the checks.

measured_cases(config, cases)              real trainers and generators, each in its own process
allocation(best_split, …)                  seconds of every split of some GPUs, for the slider
check_…(attempt, solution)                 the checks of the page's exercises
"""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from zorplex_rl.course.lesson import exercise
from zorplex_rl.course.nb10_gpus import MODELS, Side, Split, splits
from zorplex_rl.course.widgets.what_if import Answer, Bar, Panel
from zorplex_rl.policy.load import EMBEDDED_PATH
from zorplex_rl.sizing.measured import Measured, measure
from zorplex_rl.sizing.memory import ZERO, Workload
from zorplex_rl.sizing.model_shape import ModelShape

PARTS = 32
"""Steps in which GPUs are divided: one by one up to 32."""


def measured_cases(
    config: SimpleNamespace, cases: Sequence[tuple[str, Workload]]
) -> list[Measured]:
    """Measure the page's model in each of ``cases``, in its own process."""
    with tempfile.TemporaryDirectory() as folder:
        make_model(config.shape, Path(folder))
        return measure(cases, folder)


def make_model(shape: ModelShape, folder: Path, seed: int = 0) -> None:
    """Write a Qwen2 of ``shape``, random float32, and the embedded tokenizer to ``folder``."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(seed)
    sizes = Qwen2Config(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        intermediate_size=shape.intermediate,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=32768,
        **({"head_dim": shape.head_size} if shape.head_size else {}),
    )
    Qwen2ForCausalLM(sizes).save_pretrained(folder)
    for file in EMBEDDED_PATH.iterdir():
        if file.name.startswith(("tokenizer", "chat", "generation")):
            shutil.copy(file, folder)


def job(answer: int, prompt: int = 512, group: int = 16) -> Workload:
    """Return a step of 1,024 episodes in 16 bits."""
    low = "bfloat16"
    return Workload(prompt, answer, 1024 // group, group, evaluated=0, dtype=low, transfer=low)


def best_of(best_split: Callable[..., int | None], found: Sequence[Split]) -> Split | None:
    """Return the one of ``found``, all splits, that the page's ``best_split`` chooses."""

    def seconds(side: Side) -> float:
        return side.seconds if side.fits else float("inf")

    chosen = best_split(
        len(found) + 1,
        lambda parts: seconds(found[parts - 1].sampling),
        lambda parts: seconds(found[len(found) - parts].training),
    )
    return None if chosen is None else found[chosen - 1]


def best_split_of(
    best_split: Callable[..., int | None], model: str, answer: int, gpus: int
) -> Split | None:
    """Return the best split in steps of 1 / ``PARTS``, which the slider marks and the text tells."""
    return best_of(best_split, splits(MODELS[model], job(answer), gpus, PARTS))


def allocation(
    best_split: Callable[..., int | None], model: str, answer: int, gpus: int, eighths: int
) -> Answer:
    """Return what the slider shows: seconds of every split, and the numbers of the chosen one."""
    found = splits(MODELS[model], job(answer), gpus)
    mine = found[eighths - 1]
    best = best_split_of(best_split, model, answer, gpus)
    if best is not None and best not in found:
        found = sorted([*found, best], key=lambda split: split.sampling.gpus)
    bars = []
    for split in found:
        text = seconds_text(split.seconds) + " ★" * (split == best) if split.fits else "no room"
        colour = "grey" if not split.fits else "blue" if split.waits == "trainer" else "vermilion"
        name = f"{split.sampling.gpus} + {split.training.gpus}" + " ◂" * (split == mine)
        bars.append(Bar(name, split.seconds if split.fits else 0.0, text, colour))
    numbers = [
        (
            name,
            seconds_text(side.seconds) if side.fits else "no room",
            f"{side.processes} × {side.tensor} GPUs, {f'{side.slots} slots, ' * bool(side.slots)}{side.bytes / 1e9:.0f} GB each",
        )
        for name, side in (("Sampling", mine.sampling), ("Training", mine.training))
    ]
    if best is None:
        said = f"No split of {gpus} GPUs has room for {model} with answers of {answer:,} tokens."
    elif not mine.fits:
        said = f"This split has no room; the best one generates on {best.sampling.gpus} GPUs: {seconds_text(best.seconds)} a step."
    else:
        who = "trainer waits" if mine.waits == "trainer" else "generators wait"
        other = f"the best split has {best.sampling.gpus}: {seconds_text(best.seconds)}"
        better = "no split is faster" if mine == best else other
        said = f"With {mine.sampling.gpus} of {gpus} GPUs for generators a step takes {seconds_text(mine.seconds)} and the {who}; {better}."
    longest = max([split.seconds for split in found if split.fits], default=1.0)
    return Answer(
        [Panel("Seconds (GPUs: generators + trainer)", bars, most=longest)], said, numbers=numbers
    )


def seconds_text(seconds: float) -> str:
    """Write seconds with a digit where they are few."""
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def check_static_parts(attempt: Callable[..., Any], solution: Callable[..., Any]) -> None:
    """Compare drawn budgets with ``solution``, and know the usual mistakes."""

    def changed(part: str, factor: Callable[[int], float]) -> Callable[..., Any]:
        def mistake(n: int, e: int, ranks: int, stage: int) -> Any:
            right = solution(n, e, ranks, stage)
            return right | {part: factor(e) * right[part]}

        return mistake

    def only_its_own(n: int, e: int, ranks: int, stage: int) -> Any:
        right = solution(n, e, ranks, stage)
        own = {part: size for part, size in right.items() if ZERO[part] == stage}
        return solution(n, e, ranks, 0) | own

    exercise.agree(
        attempt,
        solution,
        lambda draw: (
            48 * draw.randint(1, 99),
            draw.choice([2, 4]),
            draw.choice([2, 3, 8]),
            draw.randint(0, 3),
        ),
        times=40,
        examples=[(1000, 2, 4, stage) for stage in range(4)] + [(1000, 4, 4, 1)],
        mistakes={
            "you divide at every stage, and stage 0 divides nothing": lambda n, e, ranks, _: (
                solution(n, e, ranks, 3)
            ),
            "you divide at each stage only what it adds; it also divides what the stages below divide": only_its_own,
            "weights in float32 need no masters beside them": lambda n, e, ranks, stage: (
                solution(n, e, ranks, stage)
                | {"masters": solution(n, 2, ranks, stage)["masters"]}
            ),
            "gradients are float32 here, whatever the weights are": changed(
                "gradients", lambda e: e / 4
            ),
            "AdamW has two moments for each parameter": changed("moments", lambda _: 0.5),
        },
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seconds:
    """Hold a side's seconds by its GPUs, for a check; infinitely many below ``room``."""

    work: float
    least: float
    room: int

    def __repr__(self) -> str:
        seconds = f"max({self.work} / g, {self.least:g})" if self.least else f"{self.work} / g"
        return f"lambda g: {seconds}" + f" if g >= {self.room} else inf" * (self.room > 1)

    def __call__(self, gpus: int) -> float:
        assert gpus >= 1, (
            f"a side is asked for its seconds on `{gpus}` GPUs; each side needs one at least"
        )
        return max(self.work / gpus, self.least) if gpus >= self.room else float("inf")


def check_best_split(attempt: Callable[..., Any], solution: Callable[..., Any]) -> None:
    """Compare best splits with ``solution``: sides that never fit, and ties."""

    def some(draw: Random) -> tuple[int, Seconds, Seconds]:
        gpus = draw.choice([2, 3, 8, 24])
        sides = [
            Seconds(
                draw.randint(10, 400),
                draw.choice([0.0, 0.0, 60.0]),
                draw.choice([1, 1, gpus // 2, gpus - 1]),
            )
            for _ in range(2)
        ]
        return gpus, sides[0], sides[1]

    def least(cost: Callable[[tuple[float, float]], float]) -> Callable[..., int | None]:
        def mistake(gpus: int, sampling: Seconds, training: Seconds) -> int | None:
            if solution(gpus, sampling, training) is None:
                return None
            return min(range(1, gpus), key=lambda g: cost((sampling(g), training(gpus - g))))

        return mistake

    def ignores_room(gpus: int, sampling: Seconds, training: Seconds) -> int:
        return min(range(1, gpus), key=lambda g: max(sampling(g), training(gpus - g)))

    def other_side(gpus: int, sampling: Seconds, training: Seconds) -> Any:
        best = solution(gpus, sampling, training)
        return None if best is None else gpus - best

    exercise.agree(
        attempt,
        solution,
        some,
        times=60,
        examples=[(4, Seconds(60, 0, 1), Seconds(20, 0, 1)), (4, Seconds(60, 0, 3), Seconds(20, 0, 3))],
        mistakes={
            "if no split has room, return `None`": ignores_room,
            "you add the two times; the sides work side by side, so the slower one decides": least(sum),
            "you take the two most equal times, but equal times may both be long": least(lambda pair: abs(pair[0] - pair[1])),
            "you return the trainer's GPUs": other_side,
            "half is best only if both sides need as long": lambda gpus, *_: gpus // 2,
        },
    )  # fmt: skip
