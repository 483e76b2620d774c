"""What the referee of a speedrun refuses, and what it keeps from the entry."""

from __future__ import annotations

import functools
import operator
import random
import sys
import types
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import save

from zorplex_rl.learning.entry_rules import LARGEST_FILE, MODULES, complaints
from zorplex_rl.learning.referee import (
    Attempt,
    disguised,
    draw_tasks,
    take_over,
    verdict,
)
from zorplex_rl.learning.reference_workload import prepare, reference_seconds, work
from zorplex_rl.policy.load import load_policy
from zorplex_rl.task.parser import ToolCall, find_call
from zorplex_rl.task.specs import ZORPLEX_WORDS, run_tool

ENTRIES = sorted((Path(__file__).parents[2] / "speedrun" / "entries").glob("*.py"))
SMALLEST = "from zorplex_rl.learning.entry import Entry\n\n\nclass Mine(Entry):\n    prompts = 4\n"
WITHIN = SMALLEST + "\n    def is_done(self, right):\n        return {}\n"
ATTEMPT = Attempt(seconds=10.0, calibrated=20.0, right=380, tasks=400, curve=[])


def parsed(call: str) -> ToolCall:
    found = find_call(call)
    assert found is not None
    return found


def a_start(seed: int = 0) -> dict[str, torch.Tensor]:
    return disguised(load_policy().model.state_dict(), torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.stem)
def test_the_entries_of_this_repository_keep_the_rules(entry):
    assert list(complaints(entry.read_text())) == []


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (WITHIN.format('open("weights.bin").read()'), "it uses open in line 8"),
        (WITHIN.format('__import__("os")'), "it uses __import__"),
        (WITHIN.format("self.train.__globals__"), "it uses __globals__"),
        (WITHIN.format("torch.load"), "it uses load"),
        (WITHIN.format(f"'{'a' * 201}'"), "it has a text of 201 bytes; at most 200 are allowed"),
        (WITHIN.format(f"'{'語' * 70}'"), "it has a text of 210 bytes; at most 200 are allowed"),
        (WITHIN.format(list(range(300))), "it has 301 numbers; at most 200 are allowed"),
        (WITHIN.format("1  # " + "a" * LARGEST_FILE), f"at most {LARGEST_FILE} are allowed"),
        (WITHIN.format("'What is blip?'"), "it names 'blip', a word of the tasks"),
        ("import time\n" + SMALLEST, "it imports time"),
        ("from zorplex_rl.task.specs import HELD_OUT_WORDS\n" + SMALLEST, "it imports zorplex_rl.task.specs"),
        ("from zorplex_rl.learning.entry import rollout\n" + SMALLEST, "it imports rollout; Entry, Run,"),
        ("from torch import load as read\n" + SMALLEST, "it uses load"),
        (SMALLEST + "    warm = sum(range(10))\n", "it computes in line 6, outside of its functions"),
        (WITHIN.format("torch.sys.modules"), "it uses modules"),
        (WITHIN.format("'{0._given}'.format(self)"), "it uses format"),
        (SMALLEST + "    def __init__(self):\n        pass\n", "it uses __init__"),
        (
            SMALLEST + "    def is_done(self, right, most=sum(range(10))):\n        return True\n",
            "it computes in line 6",
        ),
        ("def early(kind):\n    return kind\n\n@early\n" + SMALLEST.split("\n", 2)[-1].lstrip(), "it has a decorator"),
        (
            WITHIN.format("True") + "        match right:\n            case object(_given=g):\n                pass\n",
            "it uses match",
        ),
        (SMALLEST + 21 * f'    "{"a" * 199}"\n', "its texts have 4"),
        (WITHIN.format(f"0x1{'0' * 16}"), "it has a number of 65 bits; at most 64 are allowed"),
        (WITHIN.format(f"0x{4_000 * 'f'}"), "it has a number of 16000 bits"),
        (WITHIN.format("list(dict(blip=0))"), "it names 'blip', a word of the tasks"),
        (WITHIN.format("'quon_rilk'.split('_')"), "it names 'quon', a word of the tasks"),
        (WITHIN.format(r"'\x62lip'"), "it names 'blip', a word of the tasks"),
        (WITHIN.format(f"dict({'a' * 51}=0)"), "it has a name of 51 bytes; at most 50 are allowed"),
        ("import dataclasses\n" + WITHIN.format("dataclasses.inspect.stack()"), "it uses inspect, a module"),
        ("from dataclasses import inspect\n" + SMALLEST, "it uses inspect, a module"),
        ("from torch.utils import benchmark\n" + SMALLEST, "it imports torch.utils"),
        ("from torch import onnx\n" + SMALLEST, "it imports torch.onnx"),
        ("from functools import reduce as __class_getitem__\n" + SMALLEST, "it uses __class_getitem__"),
        (WITHIN.format("functools.update_wrapper(a, b, ['__globals__'])"), "it uses update_wrapper"),
        (WITHIN.format("(n for n in right).gi_frame.f_back"), "it uses gi_frame"),
        (WITHIN.format("type('A', (), {'__repr__': self})"), "it uses type"),
        (WITHIN.format("torch.set_num_threads(64)"), "it uses set_num_threads"),
        (WITHIN.format("True") + "        Task.question = 1\n", "it sets question, which decides"),
        (WITHIN.format("list(run.policy.tokenizer.get_vocab())"), "it uses get_vocab"),
        ("from torch.nn.functional import *\n" + WITHIN.format("importlib"), "it imports all of torch.nn.functional"),
        ("from torch import _VF\n" + SMALLEST, "it imports torch._VF"),
        ("from torch.autograd.profiler import profile as p\n" + SMALLEST, "it uses profiler, a module"),
        ("from torch.autograd.profiler_util import attrgetter\n" + SMALLEST, "it uses attrgetter"),
        ("import torch\n" + WITHIN.format("torch.cuda.tunable.x"), "it uses cuda, a module"),
        ("import torch\n" + WITHIN.format("torch.utils.data"), "it uses utils, of which torch has others"),
        ("from torch.nn.utils import prune\n" + WITHIN.format("prune.identity(f, '__globals__')"), "it uses prune"),
        (WITHIN.format("torch.nn.Module.get_parameter(f, '__globals__')"), "it uses get_parameter"),
        (WITHIN.format("torch.optim.lr_scheduler.LRScheduler.state_dict(torch)['os']"), "it uses lr_scheduler"),
        ("from torch.optim.swa_utils import SWALR\n" + WITHIN.format("SWALR.state_dict(torch)['os']"), "it uses SWALR"),
        (WITHIN.format("True") + "        torch.nn.Module = object\n", "it sets Module, by which torch checks"),
        ("import functools\n" + WITHIN.format("True") + "        Run.other.attrname = '_tasks'\n", "it uses attrname"),
        (WITHIN.format("FunctionMeta.mro()[1]('A', (), {})"), "it uses mro"),
        ("from dataclasses import copy\n" + WITHIN.format("copy.dispatch_table"), "it uses dispatch_table"),
        ("class Mine(:", "it is no Python: invalid syntax, in line 1"),
        ("x = 1\n", "it has no class that extends Entry"),
        (f"x = {9_000 * '-'}1", "it is no Python: it is nested too deeply"),
    ],
)
def test_an_entry_that_reaches_around_the_rules_is_refused_before_it_starts(source, said):
    assert said in "; ".join(complaints(source))


def test_an_entry_may_use_the_parts_of_torch_that_compute():
    imports = "import torch\nimport torch.nn.functional as F\nfrom torch import nn, Tensor\nfrom torch.nn.utils.rnn import pad_sequence\n"
    body = "F.relu(torch.zeros(2).copy_(torch.optim.swa_utils.x)).numpy().data.select(0, 1)"
    assert list(complaints(imports + WITHIN.format(body))) == []


def test_no_name_that_an_entry_may_use_leads_from_what_it_may_import_to_another_module_or_around_the_rules():
    may_use = functools.cache(lambda name: not list(complaints(WITHIN.format(f"module.{name}"))))
    around = (operator.attrgetter, operator.methodcaller, types.FunctionType, types.CodeType, types.MethodType)
    modules = [m for name, m in list(sys.modules.items()) if name.split(".")[0] in MODULES]
    modules, reached = [m for m in modules if not list(complaints(f"import {m.__name__}\n{SMALLEST}"))], list[str]()
    for module in modules:
        for name, value in [(name, value) for name, value in list(vars(module).items()) if may_use(name)]:
            if isinstance(value, types.ModuleType) and value.__name__.split(".")[0] in (*MODULES, "copy"):
                modules += [value] * (value not in modules)
            elif (
                isinstance(value, types.ModuleType)
                or any(value is other for other in around)
                or (isinstance(value, type) and issubclass(value, type))
            ):
                reached.append(f"{module.__name__}.{name}")
    assert len(modules) > 100 and not reached


def test_the_starting_policy_computes_the_same_with_other_weights():
    policy = load_policy()
    ids = torch.arange(60)[None]
    expected, own = policy.model(input_ids=ids).logits, policy.model.state_dict()
    start, other = a_start(), a_start(seed=1)
    moved = [name for name, values in start.items() if not torch.equal(values, own[name])]
    assert len(moved) == len([name for name in start if not name.endswith("bias")])
    assert not torch.equal(start["model.norm.weight"], other["model.norm.weight"])
    policy.model.load_state_dict(start, strict=False)
    torch.testing.assert_close(policy.model(input_ids=ids).logits, expected, atol=1e-3, rtol=1e-3)


def test_a_change_of_weights_that_was_found_elsewhere_does_not_fit():
    policy, ids = load_policy(), torch.arange(60)[None]
    own = {name: values.clone() for name, values in policy.model.state_dict().items()}
    change = {name: 0.02 * torch.randn_like(values) for name, values in own.items() if name.endswith("proj.weight")}
    logits = {}
    for seed, start in ((None, own), (0, a_start(0)), (1, a_start(1))):
        policy.model.load_state_dict({n: w + change.get(n, 0) for n, w in start.items()}, strict=False)
        logits[seed] = policy.model(input_ids=ids).logits
    assert (logits[0] - logits[None]).abs().max() > 0.1
    assert (logits[1] - logits[0]).abs().max() > 0.1


def test_which_words_are_held_out_is_drawn_and_their_tables_are_in_no_training_task():
    renamed = dict(zip(ZORPLEX_WORDS, random.Random(3).sample(ZORPLEX_WORDS, 32), strict=True))
    training, held_out = (draw_tasks(5, split, 50, renamed) for split in ("train", "held_out"))
    words = [{word for task in tasks for word in task.table} for tasks in (training, held_out)]
    assert len(words[0]) == len(words[1]) == 16
    assert not words[0] & words[1]
    for task in (*training, *held_out):
        assert all(word in task.question.split() or f"{word}?" in task.question.split() for word in task.words[:3])
        results = [int(run_tool(task, parsed(f"LOOKUP[{word}]"))) for word in task.words]
        signs = [1] + [1 if sign == "+" else -1 for sign in task.question.split() if sign in ("+", "-")]
        assert task.answer == sum(sign * value for sign, value in zip(signs, results, strict=True))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model.norm.weight": torch.ones(127)}, "other names, shapes or types"),
        ({"more": torch.ones(1)}, "other names, shapes or types"),
        ({"model.norm.weight": torch.full((128,), torch.nan)}, "not finite"),
    ],
)
def test_weights_of_another_policy_are_refused(changed, said):
    policy, start = load_policy(), a_start()
    assert said in str(take_over(policy, start, save(start | changed)))
    assert "can be read" in str(take_over(policy, start, b""))
    assert take_over(policy, start, save(start)) is None


def test_the_target_is_reached_by_a_one_sided_bound_over_all_seeds_and_refuted_on_none():
    good = verdict([ATTEMPT] * 8)
    assert (good.refused, good.seconds, good.calibrated, good.accuracy) == (None, 10.0, 20.0, 0.95)
    assert 0.94 < good.bound < 0.95
    barely = verdict([replace(ATTEMPT, right=362)] * 8)
    assert barely.refused == "2896 of 3200 held-out answers are right; that is not 90% with 95% confidence"
    one_bad = verdict([ATTEMPT] * 7 + [replace(ATTEMPT, right=340)])
    assert one_bad.refused == "on one seed 340 of 400 held-out answers are right, and 90% are expected"
    few = verdict([replace(ATTEMPT, right=362)] * 7)
    assert (few.refused, few.is_final, good.is_final) == (None, False, True), "too few to be sure, and nothing refuted"
    assert verdict([ATTEMPT, replace(ATTEMPT, refused="it opened 'x'")]).refused == "it opened 'x'"


def test_the_reference_workload_samples_and_learns_what_it_has_sampled_and_is_always_the_same():
    def first(steps: int) -> torch.Tensor:
        parts = prepare(learning_rate=1e-3)
        return torch.stack([work(*parts, tokens=6) for _ in range(steps)])

    once, again = first(20), first(3)
    assert torch.equal(once[:3], again)
    assert once[-5:].mean() > once[:5].mean() + 0.2, "it samples more and more what it has sampled"


def test_the_reference_workload_is_timed_in_two_processes_that_leave_nothing_behind():
    before = set(psutil.Process().children())
    assert 0 < reference_seconds(times=1) < 60
    assert set(psutil.Process().children()) == before
