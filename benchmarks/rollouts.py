"""Measure the episodes per second of the rollout engine, against ``model.generate`` and against the
floor.

Contenders, all on the same tasks of the compositional kind, in one process:

    engine                 ``zorplex_rl.policy.rollout``
    generate, one by one   a loop over episodes and turns with ``model.generate`` (``turnwise.py``)
    generate, batched      the same code with all episodes in one batch, as a careful user of TRL writes it
    floor, slot cache      the model calls that the engine made, and nothing else, on the engine's own cache
    floor, DynamicCache    the same shapes on transformers' cache, which concatenates a column per token

The floor is recorded, not modelled: a hook on the model notes the batch size and the lengths of
every call of an engine run, and the same calls are replayed through the model's own ``forward``
with prepared inputs. It draws no token, reads no text, runs no tool, moves no row, and encodes no
prompt, so nothing that decodes through ``forward`` in these shapes can be faster. The engine can:
for this architecture it runs the decoding step in fewer operations
(``zorplex_rl/policy/decoder.py``).

Every repetition runs all contenders one after another, in a rotating order, on tasks and seeds of
its own; ratios are taken within a repetition and their median is reported. What ``generate`` draws
differs from what the engine draws, so its episodes are not the same: compare ``tokens per episode``
before you read a ratio closely. Loading, warming up and recording are not timed. Making the engine
and its cache is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from statistics import mean, median

import torch
import tyro
from log import Report, append_report, print_report
from rich.progress import track
from transformers.cache_utils import Cache, DynamicCache
from turnwise import generate_turnwise

from zorplex_rl.policy.kv_cache import SlotCache, as_transformers_cache, fills
from zorplex_rl.policy.load import EMBEDDED, Policy, load_policy
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.task.episode import Episode, Task
from zorplex_rl.task.specs import get_spec

ENGINE, ONE_BY_ONE, BATCHED = "engine", "generate, one by one", "generate, batched"
FLOOR, DYNAMIC_FLOOR = "floor, slot cache", "floor, DynamicCache"
ASKED = (
    "How many episodes per second does the rollout engine sample, compared with a loop over ``model.generate`` and with the floor "
    "(the bare model calls of the same shapes)?"
)
EXPECTED = "At least 13 times the one-at-a-time loop, and at least 75 % of the floor's speed."
QUIET = 0.97
"""Least share of its cores that a process must have had. Below it, other programs used them, and
the times mean little."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    policy: str = EMBEDDED
    """``embedded``, a folder or a hub id."""
    repeats: int = 7
    """Repetitions of every contender, for each layout."""
    batch: int = 64
    """Episodes in flight. Three layouts: a batch in groups of 8, a batch of different prompts, and
    a stream of eight batches in groups of 8."""
    threads: int = 1
    """Torch threads."""
    seed: int = 0
    """Seed of the table."""
    log: bool = True
    """Append the result to LOG.md."""


@dataclass(frozen=True, slots=True)
class Call:
    """Hold one call of the model: ids [B, Q]; a decode step also has its mask [B, 1, Q, width] and
    positions [B, Q]."""

    ids: torch.Tensor
    mask: torch.Tensor | None
    positions: torch.Tensor | None


def record_calls(policy: Policy, run: Callable[[], object]) -> list[Call]:
    """Return the calls of the model that ``run`` makes, prefills included."""
    calls: list[Call] = []

    def note(module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
        copies = [None if tensor is None else tensor.clone() for tensor in (kwargs["input_ids"], mask, positions)]
        calls.append(Call(*copies))

    handle = policy.model.base_model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        run()
    finally:
        handle.remove()
    return calls


@torch.inference_mode()
def replay_on_slots(policy: Policy, calls: list[Call]) -> float:
    """Return the seconds that ``calls`` take on a ``SlotCache``."""
    decodes = [call for call in calls if call.mask is not None]
    length = max(call.mask.shape[-1] for call in decodes)
    cache = SlotCache(policy.model, max(len(call.ids) for call in decodes), -(-length // 32) * 32)
    cache.kv.normal_()
    seen_by_model = as_transformers_cache(cache)
    places = [(torch.arange(len(call.ids)), None if call.positions is None else call.positions[:, 0]) for call in calls]
    started = time.perf_counter()
    for call, (rows, positions) in zip(calls, places, strict=True):
        if call.mask is None:
            _replay_prefill(policy, call)
            continue
        cache.rows, cache.positions, cache.width = rows, positions, call.mask.shape[-1]
        _replay_decode(policy, call, seen_by_model)
    return time.perf_counter() - started


@torch.inference_mode()
def replay_on_dynamic_cache(policy: Policy, calls: list[Call]) -> float:
    """Return the seconds that ``calls`` take on a ``DynamicCache``, narrowed (as views) where rows
    have left."""
    kv = SlotCache(policy.model, max(len(call.ids) for call in calls), max(_seen(call) for call in calls)).kv.normal_()
    cache = DynamicCache(config=policy.model.config)
    for layer, (keys, values) in enumerate(kv):
        cache.update(keys, values, layer)
    started = time.perf_counter()
    for call in calls:
        if call.mask is None:
            _replay_prefill(policy, call)
            continue
        for layer, (keys, values) in zip(cache.layers, kv, strict=True):
            batch, seen = len(call.ids), _seen(call)
            if layer.keys.shape[0] < batch or layer.keys.shape[2] < seen:
                layer.keys, layer.values = keys, values
            layer.keys, layer.values = layer.keys[:batch, :, :seen], layer.values[:batch, :, :seen]
        _replay_decode(policy, call, cache)
    return time.perf_counter() - started


def measure(options: Options, policy: Policy, prompts: int, count: int) -> Report:
    """Run all contenders on ``count`` episodes of ``prompts`` different tasks, ``options.batch`` at
    once, ``options.repeats`` times.

    The loop over single episodes has no use for more of them, and is given the first
    ``options.batch`` only.
    """
    spec = get_spec("compositional", options.seed)
    sampling = Sampling(slots=options.batch)
    seconds: dict[str, list[float]] = {}
    episodes: dict[str, list[Episode]] = {}
    wall = computed = 0.0
    title = f"{count} episodes, {options.batch} at once: {prompts} prompts × {count // prompts} samples"
    for repeat in track(range(-1, options.repeats), description=title, transient=True):
        tasks = [spec.task((repeat + 1) * prompts + index * prompts // count) for index in range(count)]
        run_engine = partial(_run_engine, policy, spec, tasks, 1000 * repeat, sampling)
        calls = record_calls(policy, run_engine)
        contenders: dict[str, Callable[[], list[Episode] | float]] = {
            ENGINE: run_engine,
            FLOOR: partial(replay_on_slots, policy, calls),
            DYNAMIC_FLOOR: partial(replay_on_dynamic_cache, policy, calls),
            BATCHED: partial(_run_generate, policy, spec, tasks, options.batch),
            ONE_BY_ONE: partial(_run_generate, policy, spec, tasks[:: count // options.batch], 1),
        }
        order = list(contenders)
        shift = repeat % len(order)
        torch.manual_seed(repeat + 1)
        for name in order[shift:] + order[:shift]:
            if repeat < 0:
                contenders[name]()
                continue
            started, began = time.perf_counter(), time.process_time()
            result = contenders[name]()
            taken = time.perf_counter() - started
            wall, computed = wall + taken, computed + time.process_time() - began
            each = result / count if isinstance(result, float) else taken / len(result)
            seconds.setdefault(name, []).append(each)
            if isinstance(result, list):
                episodes.setdefault(name, []).extend(result)
    rows = _tabulate(seconds, episodes)
    columns = ["contender", "episodes/s", "its time ÷ engine's", "range", "tokens per episode"]
    share = computed / (wall * options.threads)
    verdict = "" if share > QUIET else ": other work disturbed it, do not quote it"
    return Report(title, columns, rows, [f"The process had its cores {share:.0%} of the time{verdict}."])


def _run_engine(policy: Policy, spec, tasks: list[Task], seed: int, sampling: Sampling) -> list[Episode]:
    requests = [RolloutRequest(task, seed + index) for index, task in enumerate(tasks)]
    return rollout(policy, requests, spec.execute, sampling)


def _run_generate(policy: Policy, spec, tasks: list[Task], at_once: int) -> list[Episode]:
    parts = [tasks[start : start + at_once] for start in range(0, len(tasks), at_once)]
    return [e for part in parts for e in generate_turnwise(policy, part, spec.execute)]


def _replay_prefill(policy: Policy, call: Call) -> None:
    cache = DynamicCache(config=policy.model.config)
    model = policy.model.base_model
    hidden = model(input_ids=call.ids, **fills(model, cache)).last_hidden_state
    policy.model.get_output_embeddings()(hidden[:, -1])


def _replay_decode(policy: Policy, call: Call, cache: Cache) -> None:
    policy.model(
        input_ids=call.ids, attention_mask=call.mask, position_ids=call.positions, **fills(policy.model, cache)
    )


def _seen(call: Call) -> int:
    """Return how many tokens of the longest row are in the cache before ``call``."""
    return 0 if call.mask is None else call.mask.shape[-1] - call.ids.shape[-1]


def _tabulate(seconds: dict[str, list[float]], episodes: dict[str, list[Episode]]) -> list[list[str]]:
    """Return the rows of the table. ``seconds`` are those of one episode."""
    rows = []
    for name, times in seconds.items():
        ratios = [own / other for own, other in zip(times, seconds[ENGINE], strict=True)]
        written = episodes.get(name, episodes[ENGINE])
        tokens = mean(len(episode.token_ids) for episode in written)
        rate, spread = f"{1 / median(times):.1f}", f"{min(ratios):.2f} – {max(ratios):.2f}"
        rows.append([name, rate, f"{median(ratios):.2f}", spread, f"{tokens:.1f}"])
    return rows


def main(options: Options) -> None:
    torch.set_num_threads(options.threads)
    policy = load_policy(options.policy, of_transformers=True)
    batch = options.batch
    layouts = ((batch // 8, batch), (batch, batch), (batch, 8 * batch))
    reports = [measure(options, policy, prompts, count) for prompts, count in layouts]
    for report in reports:
        print_report(report)
    if options.log:
        settings = {name: value for name, value in asdict(options).items() if name not in ("log", "policy")}
        settings = {"policy": _public_name(policy), **settings}
        append_report("benchmarks/rollouts.py", ASKED, EXPECTED, settings, reports)


def _public_name(policy: Policy) -> str:
    """Return the name of ``policy`` in the log: its size, because a path means nothing to
    others."""
    return policy.name if policy.name == EMBEDDED else f"of {policy.model.num_parameters():,} parameters"


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
