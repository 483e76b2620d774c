"""Serve notebook 02: times, what a terminal shows, and checks that play several ranks."""

import contextlib
import copy
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from zorplex_rl.course.lesson import exercise
from zorplex_rl.course.lesson.markup import quote
from zorplex_rl.course.nb04 import play

Examples = tuple[Tensor, Tensor]
"""Inputs and targets."""
Rank = tuple[torch.nn.Module, torch.optim.Optimizer, Examples]
Step = Callable[..., Any]
"""``step(model, optimizer, mine, total_examples, add_up)``: one rank's step; returns the loss of all."""
SIZES = ([2], [1, 1], [2, 1], [2, 0], [1, 3, 2])
"""Examples of each rank, in the runs of ``check_step``: the smallest first."""
_SPAWNED: list[Any] = []


@contextlib.contextmanager
def captured(*descriptors: int) -> Iterator[list[str]]:
    """Collect what this process and its children write to ``descriptors``: lines with text."""
    lines: list[str] = []
    sys.stdout.flush()
    sys.stderr.flush()
    saved = {number: os.dup(number) for number in descriptors}
    with tempfile.TemporaryFile() as file:
        for number in saved:
            os.dup2(file.fileno(), number)
        try:
            yield lines
        finally:
            for number, copied in saved.items():
                os.dup2(copied, number)
                os.close(copied)
            file.seek(0)
            lines += [
                line for line in file.read().decode(errors="replace").splitlines() if line.strip()
            ]


def spawned_once(procs: Any, actor_class: type) -> Any:
    """Return the actors that were spawned into ``procs`` when this was first asked, whatever the class is now."""
    if not _SPAWNED or _SPAWNED[0] is not procs:
        _SPAWNED[:] = procs, procs.spawn("greeters", actor_class)
    return _SPAWNED[1]


def furthest(found: Iterable[Sequence[Tensor]], right: Sequence[Tensor]) -> float:
    """Return the largest difference between several lists of weights and the ``right`` one."""
    return max(
        float((mine - its).abs().max())
        for weights in found
        for mine, its in zip(weights, right, strict=True)
    )


def on_ranks(step: Step, ranks: Sequence[Rank], total_examples: int) -> list[tuple[Rank, Any]]:
    """Run ``step`` as every rank. Returns each rank after it, with its answer."""

    def program(rank: int, collective: Callable[[str, Tensor], Tensor]) -> tuple[Rank, Any]:
        exercise.case(f"`ddp_step` on rank {rank}, with {_sizes(ranks)} examples on the ranks,")
        after = model, optimizer, mine = copy.deepcopy(ranks[rank])
        for new, old in zip(model.parameters(), ranks[rank][0].parameters(), strict=True):
            new.grad = copy.deepcopy(old.grad)  # deepcopy leaves gradients behind

        def add_up(tensor: Tensor) -> Tensor:
            return collective("add_up", tensor).detach()

        try:
            return after, step(model, optimizer, mine, total_examples, add_up)
        except RuntimeError as error:
            if "does not require grad" not in str(error):
                raise
            raise AssertionError(
                "`add_up` returns plain numbers, and no gradient flows back through it: "
                "call `backward` on your own loss, and then add up the gradients"
            ) from None

    return play(program, len(ranks))


def _sizes(ranks: Sequence[Rank]) -> str:
    return quote([len(targets) for _, _, (_, targets) in ranks])


def check_step(step: Step) -> None:
    """Compare steps of some ranks with those of one process. Raises AssertionError."""
    for seed, sizes in enumerate(SIZES):
        chance = torch.Generator().manual_seed(seed)
        total_examples = sum(sizes)
        inputs, targets = (
            torch.randn(total_examples, 2, generator=chance),
            torch.randn(total_examples, 1, generator=chance),
        )
        parts = list(zip(inputs.split(sizes), targets.split(sizes), strict=True))
        alone = _learner(seed)
        ranks: list[Rank] = [(*_learner(seed), part) for part in parts]
        for number in (1, 2):
            right = _one_process(*alone, inputs, targets)
            before = ranks
            answers = on_ranks(step, before, total_examples)
            ranks = [after for after, _ in answers]
            for rank, ((model, _, _), loss) in enumerate(answers):
                where = f"with {quote(sizes)} examples on the ranks, in step {number}, rank {rank}"
                tensors = (each.parameters() for each in (before[rank][0], model, alone[0]))
                for old, mine, its in zip(*tensors, strict=True):
                    if torch.allclose(mine, its, rtol=1e-4, atol=1e-6):
                        continue
                    worst = int((mine - its).abs().flatten().nan_to_num(torch.inf).argmax())
                    start, found, wanted = (
                        each.flatten()[worst].item() for each in (old, mine, its)
                    )
                    agree = (
                        furthest(
                            [[*each.state_dict().values()] for each, *_ in ranks],
                            [*model.state_dict().values()],
                        )
                        == 0
                    )
                    cause = _cause((found - start) / ((wanted - start) or 1), agree, sizes, number)
                    raise AssertionError(
                        f"{cause}{where} has a weight of {quote(f'{found:.4f}')}, and should have {quote(f'{wanted:.4f}')}, "
                        f"as one process with all {total_examples} examples"
                    )
                said = loss.item() if isinstance(loss, Tensor) and loss.numel() == 1 else loss
                nothing = (
                    "the mean of no examples is `nan`, so use a sum: "
                    if exercise.same(said, torch.nan)
                    else ""
                )
                assert exercise.same(said, right, 1e-4), (
                    f"{nothing}{where} returns {quote(exercise.shown(loss))}, and should return {quote(f'{right:.4f}')}, "
                    f"the mean loss of all {total_examples} examples"
                )


def _cause(times: float, agree: bool, sizes: Sequence[int], number: int) -> str:
    """Return what is probably behind a wrong weight, as a sentence; or nothing. ``times`` says how far the step went
    of the right one, ``agree`` whether all ranks have the same weights."""
    if times == 0:
        return "the step has not changed the weights: "
    if number > 1:
        return "the first step was right, and its gradients are probably still there: "
    if len(sizes) == 1:
        return "one rank alone is wrong already, so look at what the sum is divided by: "
    if not agree:
        return "the ranks differ now, so their gradients have not been added up: "
    if exercise.same(times, len(sizes), 1e-2):
        return f"the gradient is {times:.0f} times the right one, because you added up the ranks' means; divide by `total_examples`: "
    if len(set(sizes)) > 1:
        return "with equal parts it was right, but a mean of the ranks' means weighs the examples of a small part more: "
    return ""


def _learner(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1 + 0.1 * seed, momentum=0.5)


def _one_process(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor
) -> float:
    """Take a step on all examples. Returns the loss before it."""
    optimizer.zero_grad()
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item()


def draw_states(chance: random.Random) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Draw two state dicts; of shared names, some have another shape of as many numbers."""
    shapes = [(2,), (3,), (2, 3), (3, 2), (1,), (1, 2)]

    def state() -> dict[str, Tensor]:
        names = chance.sample(["in", "norm", "hidden", "out", "value"], chance.randint(1, 5))
        number = float(chance.randint(-99, 99))
        return {name: torch.full(chance.choice(shapes), number) for name in names}

    return state(), state()


def draw_lines(chance: random.Random) -> tuple[dict[int, list[tuple[float, str]]]]:
    """Draw the lines of some ranks, each rank's in order; ranks often share a time."""

    def lines() -> list[tuple[float, str]]:
        times = sorted(chance.sample(range(6), chance.randint(0, 4)))
        return [(float(time), chance.choice(["loss nan", "loss 0.71", "a", "z"])) for time in times]

    ranks = chance.sample(range(4), chance.randint(1, 4))
    return ({rank: lines() for rank in ranks},)


def check_own_memory(
    hand_over: Callable[[dict[str, Tensor], dict[str, Tensor]], dict[str, Tensor]],
) -> None:
    """Raise AssertionError if the answer shares memory with an argument, or modifies one."""
    old = {"kept": torch.ones(2)}
    new = {"kept": torch.zeros(2), "grown": torch.zeros(3)}
    for tensor in hand_over(old, new).values():
        tensor += 7
    for name, state, value in (("old", old, 1), ("new", new, 0)):
        assert all((tensor == value).all() for tensor in state.values()), (
            f"{quote(name)} has changed, by the call or with its answer: return clones, and write into them only"
        )
