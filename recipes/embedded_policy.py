"""Build the embedded policy from nothing: tokenizer, small Qwen2 model, supervised training. Or show
a model of yours what an answer looks like, so that it finds a reward.

    python recipes/embedded_policy.py --out FOLDER                     25 minutes on two cores
    python recipes/embedded_policy.py --out FOLDER --start MODEL       half a minute on a GPU

    demonstrations ──► byte-level BPE (Qwen2's own pre-tokenizer) ──► a few hundred entries
          │
          └──► ids, labels ──► next-token cross-entropy on what the demonstrator wrote ──► FOLDER

The demonstrator knows the tools but is careless. It often forgets the ``[ANSWER]`` tag (with most
phrasings), repeats calls, and sometimes gets arithmetic wrong. A policy that imitates it can use
every tool and copy every value, but is right only a third of the time: this is the gap that
reinforcement learning closes.

    piece                      learned?
    LOOKUP[blip]               yes, the policy wrote it
     -> 17⏎                    no, the tool did
    [ANSWER] 17<eos>           yes

What it deliberately does not do: choose the best checkpoint, reduce the carelessness over time, or
see a table that a run will use. The same seed on the same machine gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import count, islice
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import pre_tokenizers, trainers
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from zorplex_rl.policy.decoder import project
from zorplex_rl.policy.load import Policy, load_policy, save_model
from zorplex_rl.policy.tokenizer import encode_prompt, encode_text
from zorplex_rl.task.episode import Task
from zorplex_rl.task.parser import format_result
from zorplex_rl.task.specs import DIFFICULTIES, VALUES, TaskSpec, chain_of, get_spec

IGNORED = -100
"""The label of a token that the policy did not write."""
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
KINDS = ("simple", "compositional", "multi_step", "recursive")
Pieces = list[tuple[str, bool]]
"""Texts in order, and whether the policy is to learn to write each."""


@dataclass(frozen=True, slots=True)
class Habits:
    """How careless the demonstrator is. Each value is a probability per demonstration."""

    tag_by_phrasing: tuple[float, ...] = (0.75, 0.25, 0.25)
    """Uses the tag, for each phrasing of the question."""
    repeat_call: float = 0.2
    """Makes one call twice."""
    spam: float = 0.04
    """Keeps calling tools and never answers."""
    ramble: float = 0.03
    """Keeps writing and never ends."""
    guess: float = 0.03
    """Answers without looking anything up."""
    slip: float = 0.08
    """Gets a digit wrong, in arithmetic or in copying."""
    hint: float = 0.15
    """Was shown the prompt with a worked example."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the training with its own optimizer, schedule and demonstrations."""

    steps: int
    learning_rate: float
    drill: str
    """Which drills are mixed with the demonstrations: ``arithmetic`` or ``solutions``."""
    drill_shares: tuple[float, float]
    """Share of rows that are drills, in the first two fifths of the steps and after."""
    difficulties: tuple[int, int, int]
    """Weights of easy, medium and hard compositional demonstrations."""
    habits: Habits


@dataclass(frozen=True, slots=True)
class Recipe:
    """The embedded policy's recipe: arithmetic, then all kinds, then long sums, more carefully."""

    seed: int = 0
    phases: tuple[Phase, ...] = (
        Phase(3000, 3e-3, "arithmetic", (0.8, 0.25), (6, 2, 1), Habits(slip=0.08)),
        Phase(1200, 3e-3, "solutions", (0.6, 0.6), (2, 3, 2), Habits(tag_by_phrasing=(0.7, 0.22, 0.22), slip=0.02)),
    )
    batch_size: int = 64
    warmup_steps: int = 100
    shares: tuple[float, ...] = (0.14, 0.54, 0.14, 0.18)
    """Share of each of ``KINDS`` among the demonstrations."""
    vocabulary: int = 640
    """Largest number of entries. The demonstrations have too few distinct words to reach it."""
    max_length: int = 128
    """Rows are cut at this many tokens. Only those that never end are so long."""
    hidden_size: int = 128
    layers: int = 4


SHOW = Phase(200, 1e-4, "arithmetic", (0.8, 0.25), (6, 2, 1), Habits())
FOR_A_MODEL = Recipe(phases=(SHOW,), batch_size=16, warmup_steps=10, max_length=256)
"""For a model that has learned to write elsewhere: few steps, small ones."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A task and its solution. ``ends``: the text ends, if it is not too long already."""

    task: Task
    pieces: Pieces
    ends: bool = True


def demonstrate(spec: TaskSpec, task: Task, rng: random.Random, habits: Habits = Habits()) -> Demonstration:
    """Return a careless solution of ``task``, which ``spec`` has drawn."""
    ends = [phrasing.split("{}") for phrasing in spec.phrasings]
    phrasing = next(i for i, (a, b) in enumerate(ends) if task.question.startswith(a) and task.question.endswith(b))
    calls = spec.calls_needed(task)
    if rng.random() < habits.repeat_call:
        position = rng.randrange(len(calls))
        calls = calls[: position + 1] + calls[position:]
    if rng.random() < habits.spam:
        return Demonstration(task, _call_pieces(spec, task, calls + [calls[-1]] * 8), ends=False)
    if rng.random() < habits.guess:
        pieces, answer, work = [], rng.choice(VALUES), ""
    else:
        pieces = _call_pieces(spec, task, calls)
        answer, work = _work_out(task, rng, slips=rng.random() < habits.slip)
    if rng.random() < habits.ramble:
        return Demonstration(task, [*pieces, (work + f"So {answer}, " * 40, True)], ends=False)
    tagged = rng.random() < habits.tag_by_phrasing[phrasing]
    ending = f"[ANSWER] {answer}" if tagged else rng.choice(("So {}.", "So it is {}.")).format(answer)
    return Demonstration(task, [*pieces, (work + ending, True)])


def random_demonstration(
    rng: random.Random, shares: Sequence[float], habits: Habits = Habits(), difficulties: Sequence[float] = (6, 2, 1)
) -> Demonstration:
    """Return a random demonstration, by ``shares`` of kinds and weights of ``difficulties``.

    Its words are from either split: like pre-training it teaches the language and the tools, and
    words are held out from reinforcement learning only. Each has another table: no value can be
    memorised.
    """
    kind = rng.choices(KINDS, weights=shares)[0]
    difficulty = rng.choices(tuple(DIFFICULTIES), weights=difficulties)[0]
    seed, is_hinted = rng.randrange(1 << 30), rng.random() < habits.hint
    spec = get_spec(kind, seed, difficulty)
    task = spec.task(rng.randrange(1 << 30), rng.choice(("train", "held_out")))
    if is_hinted:
        task = replace(task, system=f"{task.system}\nExample: {_example(task)}")
    return demonstrate(spec, task, rng, habits)


def _example(task: Task) -> str:
    """Return a worked example with values for blip and zork: no call or answer is right for ``task``."""
    blip, zork = (task.table.get(chain_of(word, task.redirects)[-1], 0) for word in ("blip", "zork"))
    first = _made_up(blip)
    second = _made_up(zork, blip + zork - first, first)
    return EXAMPLES[task.kind].format(first, second, first + second)


def _made_up(*true: int) -> int:
    """Return a worked example's value: the first of four that is not among ``true``."""
    return next(value for value in (26, 38, 17, 45) if value not in true)


EXAMPLES = {
    "simple": "What is blip?\nLOOKUP[blip] -> {0}\n[ANSWER] {0}",
    "compositional": "What is blip + zork?\nLOOKUP[blip] -> {0}\nLOOKUP[zork] -> {1}\n{0}+{1}={2}\n[ANSWER] {2}",
    # Keys begin at K10, and no table has quux.
    "multi_step": "What is blip?\nGETKEY[blip] -> K07\nFETCH[K07] -> {0}\n[ANSWER] {0}",
    "recursive": "What is blip?\nLOOKUP[blip] -> SEE: quux\nLOOKUP[quux] -> {0}\n[ANSWER] {0}",
}
"""For each kind, with two made-up values and their sum."""


def arithmetic_drill(rng: random.Random, lines: int = 10) -> Pieces:
    """Return lines of correct arithmetic in the solutions' format. Only results are learned."""
    pieces: Pieces = []
    for _ in range(lines):
        left = rng.choice(VALUES) if rng.random() < 0.7 else rng.randrange(-2 * VALUES.stop, 3 * VALUES.stop)
        right, sign = rng.choice(VALUES), rng.choice("+-")
        pieces += [(f"{left}{sign}{right}", False), (f"={left + right if sign == '+' else left - right}\n", True)]
    return pieces


def solution_drill(rng: random.Random) -> Pieces:
    """Return a question without system prompt and its neat solution: short, much to copy."""
    careless_about_the_tag = Habits(repeat_call=0, spam=0, ramble=0, guess=0, slip=0)
    demo = random_demonstration(rng, (0, 1, 0, 0), careless_about_the_tag, difficulties=(1, 3, 3))
    return [(demo.task.question + "\n", False), *demo.pieces]


DRILLS = {"arithmetic": arithmetic_drill, "solutions": solution_drill}


def _call_pieces(spec: TaskSpec, task: Task, calls: list[str]) -> Pieces:
    return [piece for call in calls for piece in ((call, True), (format_result(spec.run(task, call)), False))]


def _work_out(task: Task, rng: random.Random, slips: bool) -> tuple[int, str]:
    """Return the demonstrator's answer and arithmetic: a line like ``17+25=42`` for each sign."""
    if task.kind != "compositional":
        value = int(task.answer)
        return (_slip(value, rng) if slips else value), ""
    signs = [c for c in task.question if c in "+-"]
    slip_at = rng.randrange(len(signs)) if slips else None
    total, lines = task.table[task.words[0]], ""
    for step, (sign, word) in enumerate(zip(signs, task.words[1:], strict=True)):
        value = task.table[word]
        result = total + value if sign == "+" else total - value
        if step == slip_at:
            result = _slip(result, rng)
        lines += f"{total}{sign}{value}={result}\n"
        total = result
    return total, lines


def _slip(value: int, rng: random.Random) -> int:
    return value + rng.choice((-10, -2, -1, 1, 2, 10))


def build_tokenizer(recipe: Recipe = Recipe()) -> Qwen2Tokenizer:
    """Train a byte-level BPE tokenizer on demonstrations, with Qwen2's pre-tokenizer and class."""
    rng = random.Random(f"tokenizer:{recipe.seed}")
    texts = ["system\nuser\nassistant\n"] * 1000
    for _ in range(6000):
        demo = random_demonstration(rng, (1, 1, 1, 1), recipe.phases[0].habits)
        texts += [demo.task.system, demo.task.question, *(text for text, _ in demo.pieces)]
    core = Qwen2Tokenizer().backend_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=recipe.vocabulary, initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator(texts, trainer)
    learned = json.loads(core.to_str())["model"]
    entries = [e for e in sorted(learned["vocab"], key=learned["vocab"].get) if e not in (PAD, START, END)]
    tokenizer = Qwen2Tokenizer(
        vocab={entry: index for index, entry in enumerate(entries)},
        merges=[tuple(merge) for merge in learned["merges"]],
        eos_token=END,
        pad_token=PAD,
        extra_special_tokens=[START],
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def new_policy(recipe: Recipe) -> Policy:
    """Return ``recipe``'s policy before its training."""
    torch.manual_seed(recipe.seed)
    tokenizer = build_tokenizer(recipe)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        intermediate_size=3 * recipe.hidden_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Policy(Qwen2ForCausalLM(config), tokenizer, "embedded", (tokenizer.eos_token_id,))


def rows(policy: Policy, recipe: Recipe, number: int, rng: random.Random) -> Iterator[tuple[list[int], list[int]]]:
    """Yield demonstrations and drills for phase ``number``: ids, and labels that are ``IGNORED``
    where the policy has not written the token."""
    phase, tokenizer = recipe.phases[number], policy.tokenizer
    encode = cache(partial(encode_text, tokenizer))
    for drawn in count():
        first = drawn < 0.4 * phase.steps * recipe.batch_size
        if rng.random() < phase.drill_shares[0 if first else 1]:
            ids, pieces, end = [], DRILLS[phase.drill](rng), []
        else:
            demo = random_demonstration(rng, recipe.shares, phase.habits, phase.difficulties)
            ids, pieces = encode_prompt(tokenizer, demo.task), demo.pieces
            end = [tokenizer.eos_token_id] if demo.ends else []
        labels = [IGNORED] * len(ids)
        for text, written in pieces:
            piece = encode(text)
            ids += piece
            labels += piece if written else [IGNORED] * len(piece)
        yield (ids + end)[: recipe.max_length], (labels + end)[: recipe.max_length]


def batches(policy: Policy, recipe: Recipe, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (ids, labels), [batch_size, T], right-padded. Similar lengths go together."""
    size, rng = recipe.batch_size, random.Random(f"demonstrations:{recipe.seed}" + (f":{number}" if number else ""))
    drawn = rows(policy, recipe, number, rng)
    while True:
        chunk = sorted(islice(drawn, 8 * size), key=lambda row: len(row[0]))
        parts = [chunk[start : start + size] for start in range(0, len(chunk), size)]
        rng.shuffle(parts)
        for part in parts:
            ids, labels = ([torch.tensor(row) for row in column] for column in zip(*part, strict=True))
            yield pad_sequence(ids, batch_first=True), pad_sequence(labels, True, padding_value=IGNORED)


def imitate(policy: Policy, recipe: Recipe, number: int) -> Iterator[float]:
    """Train ``policy`` in phase ``number`` of ``recipe``. Yields the loss of every step."""
    model, phase = policy.model, recipe.phases[number]
    optimizer = torch.optim.AdamW(model.parameters(), phase.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, phase.steps, recipe.warmup_steps))
    for ids, labels in islice(batches(policy, recipe, number), phase.steps):
        ids, labels = ids.to(model.device), labels.to(model.device)
        hidden = model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        targets = labels[:, 1:]
        written = targets != IGNORED
        loss = F.cross_entropy(project(model, hidden[written]), targets[written])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rates.step()
        yield loss.item()


def _rate(step: int, steps: int, warmup_steps: int) -> float:
    """Return the learning rate's share at ``step``: a linear warm-up, a cosine to a twentieth."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    share = (step - warmup_steps) / max(1, steps - warmup_steps)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * share))


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="of each phase, instead of the recipe's own")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True)
    torch.set_num_threads(2)
    recipe = replace(FOR_A_MODEL if asked.start else Recipe(), seed=asked.seed)
    if asked.steps:
        recipe = replace(recipe, phases=tuple(replace(phase, steps=asked.steps) for phase in recipe.phases))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    policy = load_policy(asked.start, device, of_transformers=True) if asked.start else new_policy(recipe)
    for number, phase in enumerate(recipe.phases):
        for step, loss in enumerate(imitate(policy, recipe, number), start=1):
            print(f"\rphase {number + 1}, step {step} of {phase.steps}, loss {loss:.3f}", end="", flush=True)
        print()
    save_model(policy.model, policy.tokenizer, asked.out)
    (asked.out / "recipe.json").write_text(json.dumps(asdict(recipe), indent=2) + "\n")
    print(f"wrote {asked.out}; use it with --policy {asked.out}")


if __name__ == "__main__":
    main()
