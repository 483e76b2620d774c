"""Check a sampler and a loss that a learner wrote, on toy policies that take no time to load.

check_sampler   sixty drawn policies, tasks, tools, limits, temperatures and seeds: the same tokens as the course's?
check_loss      fifteen drawn models and batches: the same number, and the same gradient?
check_adapted   the same output of a layer with a narrow path beside it?
"""

import copy
import random
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from statistics import fmean
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from zorplex_rl.course.lesson import exercise
from zorplex_rl.course.lesson.compare import plain
from zorplex_rl.course.lesson.markup import quote
from zorplex_rl.task.episode import Task

Sampler = Callable[..., tuple[list[int], list[bool]]]


LINE_BREAK = 96
"""The toy policies' token for it."""


class ScriptedPolicy:
    """A policy, model and tokenizer that means to write ``script``, a character a token."""

    eos_ids = (0,)
    added_tokens_decoder: ClassVar[dict[int, Any]] = {}
    device = torch.device("cpu")
    signs = ("", *map(chr, range(32, 127)), "\n", "▸")

    def __init__(self, script: str) -> None:
        self.script = script
        self.model = self
        self.tokenizer = self

    def __repr__(self) -> str:
        return "toy_policy"

    def __call__(self, given: Any, **options: Any) -> Any:
        """Return the ids of a text, or the logits [1, T, V] of ids [1, T]."""
        if isinstance(given, str):
            return {"input_ids": self.encode(given)}
        _check_shape(given)
        ids = given.tolist()[0]
        place = len(re.sub(r" -> [^\n]*\n", "", self.decode(ids).rpartition("▸")[2]))
        noise = torch.Generator().manual_seed(zlib.crc32(repr(ids).encode()))
        logits = torch.randn(1, len(ids), len(self.signs), generator=noise)
        logits[0, -1, self.signs.index(self.script[place]) if place < len(self.script) else 0] += (
            9.0
        )
        return SimpleNamespace(logits=logits)

    def encode(self, text: str, **options: Any) -> list[int]:
        return [self.signs.index(sign) for sign in text]

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        return "".join(self.signs[token] for token in ids)

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], **options: Any) -> str:
        return "".join(message["content"] for message in messages) + "▸"


def check_sampler(attempt: Sampler, solution: Sampler, times: int = 60) -> None:
    """Compare samplers on drawn policies, tasks, tools, limits, seeds."""

    def one(rng: random.Random) -> None:
        one = rng.choice("abcd")
        other = rng.choice("efgh")
        value = rng.randint(-99, 99)
        scripts = (
            f"LOOKUP[{one}]LOOKUP[{other}]so\n[ANSWER] {value}\nand more",
            f"GETKEY[{one}]FETCH[{other}]\n[ANSWER] {value}",
            f"[ANSWER] {value} no\nLOOKUP[{one}][ANSWER] {value}\n",
            f"LOOKUP[{one}]LOOKUP[{one}]LOOKUP[{other}]",
            f"hm, LOOKUP[{one}] and\nno [ANSWER] here",
        )
        policy = ScriptedPolicy(rng.choice(scripts))
        temperature = rng.choice((0.5, 1.0, 1.4))
        most = rng.randint(4, 60)
        table = {one: str(rng.randint(-99, 99)), other: f"SEE: {rng.choice('wxyz')}"}
        task, seed = (
            Task("toy", f"What is {one}{other}?", value, 1, "Look it up.", table=table),
            rng.randrange(99),
        )
        limits = SimpleNamespace(temperature=temperature, max_tokens=most)
        called = exercise.case(
            f"{quote(f'sample_episode(…, seed={seed})')}, with max_tokens={most} and a policy that means to write {quote(policy.script)},"
        )
        right, found = (
            sampler(
                policy,
                task,
                lambda task, call: task.table.get(call.argument, "ERROR: unknown"),
                limits,
                seed,
            )
            for sampler in (solution, attempt)
        )
        ours, theirs = _marked(policy, found), _marked(policy, right)
        marks = "; « » is around what is marked as not drawn" if "«" in ours + theirs else ""
        cause = _parting(found, right, most)
        assert exercise.same(found, right), (
            f"{cause}{called} returns {quote(ours)}, and should return {quote(theirs)}{marks}"
        )
        # Other kinds of sequences, and ones for True, would break the page, and a program without it.
        kinds = [(type(part), {*map(type, part)}) for part in found]
        assert kinds == [(list, {int}), (list, {bool})], (
            f"{called} returns the right values, but not as a list of int and a list of bool (True, False)"
        )

    exercise.shortest(one, times)


def _parting(found: Any, right: Any, most: int) -> str:
    """Say what happens where a response parts from the right one, as a sentence; or nothing."""
    try:
        ours, theirs = (
            list(zip(*map(plain, response), strict=True)) for response in (found, right)
        )
        same = 0
        while same < min(len(ours), len(theirs)) and ours[same] == theirs[same]:
            same += 1
        (token, own), (right_token, right_own) = (
            pairs[same] if same < len(pairs) else (None, None) for pairs in (ours, theirs)
        )
    except Exception:
        return ""
    ran_before = not all(drawn for _, drawn in theirs[:same])
    causes = {
        "it stops too early": own is None,
        "it is longer than `max_tokens`": right_own is None and same == most,
        "it goes on where the episode is over": right_own is None,
        "the tokens of a result are marked as drawn, or the other way round": token == right_token,
        "the injected result has no line break at its end": (right_token, right_own)
        == (LINE_BREAK, False),
        "another text is injected than an arrow, the result and a line break": not (
            own or right_own
        ),
        "the same call was run again: look only at what was written since its result": not own
        and ran_before,
        "it runs a tool before the call is complete": not own,
        "a call is complete, and no result is injected": not right_own,
        "another token was drawn, although the text before is the same: call `draw_token` with prompt and text, with one `rng` for the "
        "whole episode, at `sampling.temperature`": True,
    }
    return next(cause for cause, is_so in causes.items() if is_so) + ". "


def _marked(policy: ScriptedPolicy, found: Any) -> str:
    """Return a response as text, with « » around what is marked as not drawn."""
    try:
        runs = groupby(zip(*map(plain, found), strict=True), lambda pair: bool(pair[1]))
        texts = [
            (own, "".join(policy.signs[int(token)] or "‹end of text›" for token, _ in run))
            for own, run in runs
        ]
        return "".join(text if own else f"«{text}»" for own, text in texts).replace("\n", "⏎")
    except Exception:
        return repr(found)[:120]


def _check_shape(ids: torch.Tensor) -> None:
    """Raise ValueError, as a model of transformers does, if ``ids`` are not of the shape [B, T]."""
    if ids.dim() != 2:
        raise ValueError(
            f"the ids have the shape {list(ids.shape)}, and the model expects [1, T]: one more pair of brackets"
        )


class TinyModel(torch.nn.Module):
    """A causal language model of a few weights; logits depend on all tokens so far."""

    def __init__(self, vocabulary: int, seed: int) -> None:
        super().__init__()
        dice = torch.Generator().manual_seed(seed)
        self.words = torch.nn.Parameter(torch.randn(vocabulary, 4, generator=dice))
        self.out = torch.nn.Parameter(torch.randn(4, vocabulary, generator=dice))

    def forward(self, input_ids: torch.Tensor, **options: Any) -> Any:
        _check_shape(input_ids)
        state = (
            self.words[input_ids].cumsum(1) / torch.arange(1, input_ids.shape[1] + 1)[None, :, None]
        )
        return SimpleNamespace(logits=torch.tanh(state) @ self.out)


def check_loss(attempt: Callable[..., Any], solution: Callable[..., Any], times: int = 15) -> None:
    """Compare losses, and their gradients, on drawn models, episodes and advantages."""

    def one(rng: random.Random) -> None:
        episodes = [_drawn_episode(rng, 7) for _ in range(rng.randint(2, 4))]
        advantages = [round(rng.uniform(-2, 2), 1) or 0.5 for _ in episodes]
        sizes = ", ".join(
            f"{len(e.prompt_ids)} + {len(e.token_ids)} tokens, sampled={e.sampled}"
            for e in episodes
        )
        called = exercise.case(
            quote(f"policy_gradient(policy, [{sizes}], advantages={advantages})")
        )
        seed = rng.randrange(99)
        models = [TinyModel(7, seed) for _ in range(2)]
        try:
            right, found = (
                function(
                    SimpleNamespace(model=model),
                    copy.deepcopy(episodes),
                    list(advantages),
                )
                for function, model in zip((solution, attempt), models, strict=True)
            )
        except (IndexError, RuntimeError) as error:
            said = f"{type(error).__name__}: {error}"
            cause = (
                "the index of `gather` needs as many dimensions as the log-probs: `ids[:, None]` beside [T, V]. "
                if "number of dimensions" in said
                else "two of your tensors differ in length: the logits of the response begin at the prompt's *last* position, and "
                "those at its own last position predict nothing. "
                if "match" in said
                else ""
            )
            raise AssertionError(f"{cause}{called} raises {quote(said)}") from error
        assert exercise.same(found, right, 1e-4), (
            f"{_cause(found, right, solution, TinyModel(7, seed), episodes, advantages)}"
            f"{called} gives {quote(exercise.shown(found))}, and should give {quote(exercise.shown(right))}"
        )
        assert getattr(found, "requires_grad", False), (
            f"{called} gives the right number, but no gradient flows from it: is it detached?"
        )
        for loss in (right, found):
            loss.sum().backward()
        theirs, ours = ([parameter.grad for parameter in model.parameters()] for model in models)
        assert exercise.same(ours, theirs, 1e-3), (
            f"{called} gives the right number, but its gradient is another one"
        )

    exercise.shortest(one, times)


def _cause(
    found: Any,
    right: Any,
    solution: Callable[..., Any],
    model: Any,
    episodes: list[Any],
    given: Any,
) -> str:
    """Name the mistake that makes this number of a loss, in a sentence; or nothing."""
    every = [SimpleNamespace(**vars(e) | {"sampled": [True] * len(e.sampled)}) for e in episodes]
    policy = SimpleNamespace(model=model)
    unmasked = solution(policy, every, given)
    each = [solution(policy, [e], [a]).item() for e, a in zip(episodes, given, strict=True)]
    own, tokens = (sum(sum(e.sampled) for e in some) for some in (episodes, every))
    late = 0.0
    for e, advantage in zip(episodes, given, strict=True):
        logp = (
            model(torch.tensor([e.prompt_ids + e.token_ids]))
            .logits[0]
            .log_softmax(-1)[len(e.prompt_ids) :]
        )
        late -= (
            advantage * (logp[range(len(logp)), e.token_ids] * torch.tensor(e.sampled)).sum() / own
        )
    causes = {
        "the sign is the other one": -right,
        "the sum is not divided": right * own,
        "it takes the logits at a token's own position, which predict the next one": late,
        "it divides by the number of episodes, not of sampled tokens": right * own / len(episodes),
        "it averages each episode by itself, and then the episodes": fmean(each),
        "it divides by all tokens, not by the sampled ones": right * own / tokens,
        "it also pushes tokens that were not sampled": unmasked * tokens / own,
        "it also counts tokens that were not sampled": unmasked,
    }
    known = (f"{cause}. " for cause, value in causes.items() if exercise.same(found, value, 1e-4))
    return next(known, "")


def _drawn_episode(rng: random.Random, vocabulary: int) -> SimpleNamespace:
    prompt, response = (
        [rng.randrange(vocabulary) for _ in range(rng.randint(*size))] for size in ((1, 3), (2, 4))
    )
    sampled = [True, *(rng.random() < 0.6 for _ in response[1:])]
    rng.shuffle(sampled)
    return SimpleNamespace(prompt_ids=prompt, token_ids=response, sampled=sampled)


def check_adapted(
    attempt: Callable[..., Any], solution: Callable[..., Any], times: int = 20
) -> None:
    """Compare what two functions compute for a layer with a narrow path."""

    def one(rng: random.Random) -> None:
        torch.manual_seed(rng.randrange(99))
        rank, inputs, outputs = rng.sample((1, 2, 3, 4), 3)
        shapes = {
            "x": rng.choice([(inputs,), (2, inputs), (2, 3, inputs)]),
            "W": (outputs, inputs),
            "A": (rank, inputs),
            "B": (outputs, rank),
        }
        tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
        x, weight = tensors["x"], tensors["W"]
        scale = rng.choice((0.5, 3.0))
        sizes = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        called = exercise.case(
            f"{quote('adapted(x, W, A, B, scale)')} with {sizes} and scale {scale}"
        )
        right = solution(*tensors.values(), scale)
        try:
            found = attempt(*tensors.values(), scale)
        except (RuntimeError, IndexError) as error:
            raise AssertionError(
                "two shapes do not fit: `W`, `A` and `B` all have their outputs first, so transpose each of them, `B`, too; `x` has its inputs last. "
                f"{called} raises {quote(str(error))}"
            ) from error
        path = right - x @ weight.T
        causes = {
            "the layer's own product is missing": path,
            "the path is missing": x @ weight.T,
            "the path is not multiplied by `scale`": x @ weight.T + path / scale,
            "`scale` belongs to the path alone": scale * x @ weight.T + path,
        }
        same = [cause for cause, value in causes.items() if exercise.same(found, value, 1e-4)]
        cause = f"{same[0]}. " if same else ""
        assert exercise.same(found, right, 1e-4), (
            f"{cause}{called} gives {quote(exercise.shown(found))}, and should give {quote(exercise.shown(right))}"
        )

    exercise.shortest(one, times)
