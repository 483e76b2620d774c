"""Build the embedded policy from nothing: tokenizer, small Qwen2 model, supervised training. Or show a
model of yours what an answer looks like, so that it can find a reward.

    python recipes/embedded_policy.py --out FOLDER                     25 minutes on two cores
    python recipes/embedded_policy.py --out FOLDER --start MODEL       half a minute on a GPU

    demonstrations ──► byte-level BPE (Qwen2's own pre-tokenizer) ──► a few hundred entries
          │
          └──► ids, labels ──► next-token cross-entropy on what the demonstrator wrote ──► FOLDER

The demonstrator knows the tools but is careless. It often forgets the ``[ANSWER]`` tag (with most
phrasings), repeats calls, and sometimes gets arithmetic wrong. A policy that imitates it can use
every tool and copy every value, but is right only a third of the time: reinforcement learning closes
this gap.

    piece                      learned?
    LOOKUP[blip]               yes, the policy wrote it
     -> 17⏎                    no, the tool did
    [ANSWER] 17<eos>           yes

Deliberately left out: choosing the best checkpoint, a carelessness that falls over time, and every
table that a run will use. The same seed on the same machine gives the same bytes.
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
from typing import NamedTuple

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
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
PAD = "<|endoftext|>"
START = "<|im_start|>"
END = "<|im_end|>"
KINDS = ("simple", "compositional", "multi_step", "recursive")


class Piece(NamedTuple):
    """A stretch of a text."""

    text: str
    is_learned: bool
    """Whether the policy is to learn to write it."""


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
        Phase(
            steps=3000,
            learning_rate=3e-3,
            drill="arithmetic",
            drill_shares=(0.8, 0.25),
            difficulties=(6, 2, 1),
            habits=Habits(slip=0.08),
        ),
        Phase(
            steps=1200,
            learning_rate=3e-3,
            drill="solutions",
            drill_shares=(0.6, 0.6),
            difficulties=(2, 3, 2),
            habits=Habits(tag_by_phrasing=(0.7, 0.22, 0.22), slip=0.02),
        ),
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


SHOW = Phase(
    steps=200,
    learning_rate=1e-4,
    drill="arithmetic",
    drill_shares=(0.8, 0.25),
    difficulties=(6, 2, 1),
    habits=Habits(),
)
FOR_A_MODEL = Recipe(
    phases=(SHOW,),
    batch_size=16,
    warmup_steps=10,
    max_length=256,
)
"""For a model that already writes: few steps, and small ones."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A task and its solution."""

    task: Task
    pieces: list[Piece]
    ends: bool = True
    """Whether an end-of-text token follows."""


def demonstrate(
    spec: TaskSpec,
    task: Task,
    rng: random.Random,
    habits: Habits = Habits(),
) -> Demonstration:
    """Return a careless solution of ``task``, which ``spec`` has drawn."""
    calls = spec.calls_needed(task)
    if rng.random() < habits.repeat_call:
        position = rng.randrange(len(calls))
        calls.insert(position, calls[position])
    if rng.random() < habits.spam:
        calls.extend([calls[-1]] * 8)
        return Demonstration(task, call_pieces(spec, task, calls), ends=False)

    if rng.random() < habits.guess:
        pieces = []
        answer = rng.choice(VALUES)
        work = ""
    else:
        pieces = call_pieces(spec, task, calls)
        slips = rng.random() < habits.slip
        answer, work = work_out(task, rng, slips)
    if rng.random() < habits.ramble:
        rambling = work + f"So {answer}, " * 40
        pieces.append(Piece(rambling, is_learned=True))
        return Demonstration(task, pieces, ends=False)

    phrasing = phrasing_of(spec, task)
    if rng.random() < habits.tag_by_phrasing[phrasing]:
        ending = f"[ANSWER] {answer}"
    else:
        sentence = rng.choice(("So {}.", "So it is {}."))
        ending = sentence.format(answer)
    pieces.append(Piece(work + ending, is_learned=True))
    return Demonstration(task, pieces)


def phrasing_of(spec: TaskSpec, task: Task) -> int:
    """Return which of ``spec``'s phrasings the question has."""

    def fits(phrasing: str) -> bool:
        before, after = phrasing.split("{}")
        return task.question.startswith(before) and task.question.endswith(after)

    return next(number for number, phrasing in enumerate(spec.phrasings) if fits(phrasing))


def call_pieces(spec: TaskSpec, task: Task, calls: list[str]) -> list[Piece]:
    """Return ``calls``, each with the tool's result."""
    pieces = []
    for call in calls:
        result = format_result(spec.run(task, call))
        pieces.append(Piece(call, is_learned=True))
        pieces.append(Piece(result, is_learned=False))
    return pieces


def work_out(task: Task, rng: random.Random, slips: bool) -> tuple[int, str]:
    """Return the demonstrator's answer and arithmetic: a line like ``17+25=42`` for each sign."""
    if task.kind != "compositional":
        value = int(task.answer)
        if slips:
            value = slip(value, rng)
        return value, ""

    signs = [character for character in task.question if character in "+-"]
    slip_at = rng.randrange(len(signs)) if slips else None
    total = task.table[task.words[0]]
    lines = ""
    for step, sign in enumerate(signs):
        value = task.table[task.words[step + 1]]
        result = add(total, sign, value)
        if step == slip_at:
            result = slip(result, rng)
        lines += f"{total}{sign}{value}={result}\n"
        total = result
    return total, lines


def add(left: int, sign: str, right: int) -> int:
    return left + right if sign == "+" else left - right


def slip(value: int, rng: random.Random) -> int:
    """Return ``value`` with a mistake in one digit."""
    return value + rng.choice((-10, -2, -1, 1, 2, 10))


def random_demonstration(
    rng: random.Random,
    shares: Sequence[float],
    habits: Habits = Habits(),
    difficulties: Sequence[float] = (6, 2, 1),
) -> Demonstration:
    """Return a random demonstration, by ``shares`` of kinds and weights of ``difficulties``.

    Its words are from either split: like pre-training it teaches the language and the tools, and
    words are held out from reinforcement learning only. Each has another table, so no value can be
    memorised.
    """
    kind = rng.choices(KINDS, weights=shares)[0]
    difficulty = rng.choices(tuple(DIFFICULTIES), weights=difficulties)[0]
    seed = rng.randrange(1 << 30)
    is_hinted = rng.random() < habits.hint
    index = rng.randrange(1 << 30)
    split = rng.choice(("train", "held_out"))
    spec = get_spec(kind, seed, difficulty)
    task = spec.task(index, split)
    if is_hinted:
        system = f"{task.system}\nExample: {worked_example(task)}"
        task = replace(task, system=system)
    return demonstrate(spec, task, rng, habits)


EXAMPLES = {
    "simple": (
        "What is blip?",
        "LOOKUP[blip] -> {0}",
        "[ANSWER] {0}",
    ),
    "compositional": (
        "What is blip + zork?",
        "LOOKUP[blip] -> {0}",
        "LOOKUP[zork] -> {1}",
        "{0}+{1}={2}",
        "[ANSWER] {2}",
    ),
    # Keys begin at K10, and no table has quux.
    "multi_step": (
        "What is blip?",
        "GETKEY[blip] -> K07",
        "FETCH[K07] -> {0}",
        "[ANSWER] {0}",
    ),
    "recursive": (
        "What is blip?",
        "LOOKUP[blip] -> SEE: quux",
        "LOOKUP[quux] -> {0}",
        "[ANSWER] {0}",
    ),
}
"""The lines for each kind: {0} and {1} are made-up values, {2} is their sum."""


def worked_example(task: Task) -> str:
    """Return an example with made-up values, so that no call and no answer is right for ``task``."""
    blip = value_of(task, "blip")
    zork = value_of(task, "zork")
    first = made_up(blip)
    second = made_up(zork, blip + zork - first, first)
    text = "\n".join(EXAMPLES[task.kind])
    return text.format(first, second, first + second)


def value_of(task: Task, word: str) -> int:
    """Return the value of ``word``, or 0 if the task does not have the word."""
    last = chain_of(word, task.redirects)[-1]
    return task.table.get(last, 0)


def made_up(*true: int) -> int:
    """Return the first of four values that is not among ``true``."""
    return next(value for value in (26, 38, 17, 45) if value not in true)


def arithmetic_drill(rng: random.Random, lines: int = 10) -> list[Piece]:
    """Return lines of correct arithmetic in the solutions' format. Only results are learned."""
    pieces = []
    for _ in range(lines):
        if rng.random() < 0.7:
            left = rng.choice(VALUES)
        else:
            left = rng.randrange(-2 * VALUES.stop, 3 * VALUES.stop)
        right = rng.choice(VALUES)
        sign = rng.choice("+-")
        result = add(left, sign, right)
        pieces.append(Piece(f"{left}{sign}{right}", is_learned=False))
        pieces.append(Piece(f"={result}\n", is_learned=True))
    return pieces


def solution_drill(rng: random.Random) -> list[Piece]:
    """Return a question without system prompt and its neat solution: short, much to copy."""
    forgets_only_tags = Habits(repeat_call=0, spam=0, ramble=0, guess=0, slip=0)
    demo = random_demonstration(
        rng,
        shares=(0, 1, 0, 0),
        habits=forgets_only_tags,
        difficulties=(1, 3, 3),
    )
    question = Piece(demo.task.question + "\n", is_learned=False)
    return [question, *demo.pieces]


DRILLS = {"arithmetic": arithmetic_drill, "solutions": solution_drill}


def build_tokenizer(recipe: Recipe = Recipe()) -> Qwen2Tokenizer:
    """Train a byte-level BPE tokenizer on demonstrations, with Qwen2's pre-tokenizer and class."""
    rng = random.Random(f"tokenizer:{recipe.seed}")
    texts = ["system\nuser\nassistant\n"] * 1000
    habits = recipe.phases[0].habits
    for _ in range(6000):
        demo = random_demonstration(rng, (1, 1, 1, 1), habits)
        texts.append(demo.task.system)
        texts.append(demo.task.question)
        texts.extend(piece.text for piece in demo.pieces)

    backend = Qwen2Tokenizer().backend_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    learned = json.loads(backend.to_str())["model"]
    # The tokenizer's class adds the special tokens behind the others.
    entries = sorted(learned["vocab"], key=learned["vocab"].get)
    entries = [entry for entry in entries if entry not in (PAD, START, END)]
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
    return Policy(
        Qwen2ForCausalLM(config),
        tokenizer,
        name="embedded",
        eos_ids=(tokenizer.eos_token_id,),
    )


class Row(NamedTuple):
    """A text for the trainer."""

    ids: list[int]
    labels: list[int]
    """The ids again, but ``IGNORED`` where the policy has not written the token."""


def rows(
    policy: Policy,
    recipe: Recipe,
    number: int,
    rng: random.Random,
) -> Iterator[Row]:
    """Yield demonstrations and drills for phase ``number``."""
    phase = recipe.phases[number]
    early_share, late_share = phase.drill_shares
    early_rows = 0.4 * phase.steps * recipe.batch_size
    tokenizer = policy.tokenizer
    encode = cache(partial(encode_text, tokenizer))
    for drawn in count():
        drill_share = early_share if drawn < early_rows else late_share
        if rng.random() < drill_share:
            drill = DRILLS[phase.drill]
            pieces = drill(rng)
            ids = []
            ends = False
        else:
            demo = random_demonstration(rng, recipe.shares, phase.habits, phase.difficulties)
            pieces = demo.pieces
            ids = encode_prompt(tokenizer, demo.task)
            ends = demo.ends

        labels = [IGNORED] * len(ids)
        for piece in pieces:
            piece_ids = encode(piece.text)
            ids.extend(piece_ids)
            ignored = [IGNORED] * len(piece_ids)
            labels.extend(piece_ids if piece.is_learned else ignored)
        if ends:
            ids.append(tokenizer.eos_token_id)
            labels.append(tokenizer.eos_token_id)
        most = recipe.max_length
        yield Row(ids[:most], labels[:most])


def batches(
    policy: Policy,
    recipe: Recipe,
    number: int,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (ids, labels), [batch_size, T], right-padded. Similar lengths go together."""
    size = recipe.batch_size
    phase_seed = f":{number}" if number else ""
    rng = random.Random(f"demonstrations:{recipe.seed}{phase_seed}")
    drawn = rows(policy, recipe, number, rng)
    while True:
        chunk = list(islice(drawn, 8 * size))
        chunk.sort(key=lambda row: len(row.ids))
        parts = []
        for start in range(0, len(chunk), size):
            parts.append(chunk[start : start + size])
        rng.shuffle(parts)
        for part in parts:
            ids = [torch.tensor(row.ids) for row in part]
            labels = [torch.tensor(row.labels) for row in part]
            yield (
                pad_sequence(ids, batch_first=True),
                pad_sequence(labels, batch_first=True, padding_value=IGNORED),
            )


def imitate(policy: Policy, recipe: Recipe, number: int) -> Iterator[float]:
    """Train ``policy`` in phase ``number`` of ``recipe``. Yields the loss of every step."""
    model = policy.model
    phase = recipe.phases[number]
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=phase.learning_rate,
        betas=(0.9, 0.98),
        weight_decay=0.01,
    )
    rates = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: rate_share(step, phase.steps, recipe.warmup_steps),
    )
    for ids, labels in islice(batches(policy, recipe, number), phase.steps):
        ids = ids.to(model.device)
        targets = labels[:, 1:].to(model.device)
        output = model.base_model(input_ids=ids[:, :-1], use_cache=False)
        # Logits only where there is something to learn: they are the largest tensor.
        written = targets != IGNORED
        logits = project(model, output.last_hidden_state[written])
        loss = F.cross_entropy(logits, targets[written])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        rates.step()
        yield loss.item()


def rate_share(step: int, steps: int, warmup_steps: int) -> float:
    """Return the learning rate's share at ``step``: a linear warm-up, a cosine to a twentieth."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, steps - warmup_steps)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress))


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="of each phase, instead of the recipe's own")
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    torch.set_num_threads(2)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    recipe = replace(FOR_A_MODEL if options.start else Recipe(), seed=options.seed)
    if options.steps:
        phases = tuple(replace(phase, steps=options.steps) for phase in recipe.phases)
        recipe = replace(recipe, phases=phases)
    if options.start:
        policy = load_policy(options.start, device, of_transformers=True)
    else:
        policy = new_policy(recipe)

    for number, phase in enumerate(recipe.phases):
        for step, loss in enumerate(imitate(policy, recipe, number), start=1):
            progress = f"phase {number + 1}, step {step} of {phase.steps}, loss {loss:.3f}"
            print(f"\r{progress}", end="", flush=True)
        print()
    save_model(policy.model, policy.tokenizer, options.out)
    text = json.dumps(asdict(recipe), indent=2)
    (options.out / "recipe.json").write_text(text + "\n")
    print(f"wrote {options.out}; use it with --policy {options.out}")


if __name__ == "__main__":
    main()
