"""Build the embedded policy from scratch: tokenizer, small Qwen2 model, supervised training. Or
show a model that can write already what an answer looks like, so that it finds rewards.

    demonstrations ──► byte-level BPE (Qwen2's own pre-tokenizer) ──► a few hundred entries
          │
          └──► ids, labels ──► next-token cross-entropy on what the demonstrator wrote ──► embedded/

What it deliberately does not do: choose the best checkpoint, reduce the carelessness over time, or
see a table that a run will use. The same seed on the same machine gives the same bytes.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from zorplex_rl.policy.decoder import project
from zorplex_rl.policy.demonstrations import DRILLS, Habits, random_demonstration
from zorplex_rl.policy.load import Policy, save_model
from zorplex_rl.policy.tool_loop import encode_prompt, encode_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Qwen2Config

IGNORED = -100
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIAL_TOKENS = PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the training with its own optimizer, schedule and demonstrations."""

    steps: int
    learning_rate: float
    drill: str
    """Which of ``DRILLS`` are mixed with the demonstrations."""
    drill_shares: tuple[float, float]
    """Share of rows that are drills, in the first two fifths of the steps and after."""
    difficulties: tuple[int, int, int]
    """Weights of easy, medium and hard compositional demonstrations."""
    habits: Habits


@dataclass(frozen=True, slots=True)
class WarmStart:
    """The embedded policy's recipe: arithmetic, then all kinds, then long sums, more carefully."""

    seed: int = 0
    phases: tuple[Phase, ...] = (
        Phase(3000, 3e-3, "arithmetic", (0.8, 0.25), (6, 2, 1), Habits(slip=0.08)),
        Phase(1200, 3e-3, "solutions", (0.6, 0.6), (2, 3, 2), Habits(tag_by_phrasing=(0.7, 0.22, 0.22), slip=0.02)),
    )
    batch_size: int = 64
    warmup_steps: int = 100
    shares: tuple[tuple[str, float], ...] = (
        ("simple", 0.14),
        ("compositional", 0.54),
        ("multi_step", 0.14),
        ("recursive", 0.18),
    )
    """Share of each kind among the demonstrations."""
    vocabulary: int = 640
    """Largest number of entries. The demonstrations have too few distinct words to reach it."""
    max_length: int = 128
    """Rows are cut at this many tokens. Only those that never end are so long."""
    hidden_size: int = 128
    layers: int = 4
    threads: int = 2

    @property
    def steps(self) -> int:
        """Number of steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    def shortened(self, steps: int) -> WarmStart:
        """Return the recipe with about ``steps`` steps in total, one or more in each phase."""
        scale = steps / self.steps
        phases = tuple(replace(phase, steps=max(1, round(phase.steps * scale))) for phase in self.phases)
        return replace(self, phases=phases)


def lesson_for_a_model(steps: int = 200, seed: int = 0) -> WarmStart:
    """Return the recipe for a model that has learned to write elsewhere: few steps, small ones."""
    phase = replace(WarmStart().phases[0], steps=steps, learning_rate=1e-4)
    return WarmStart(seed, (phase,), batch_size=16, warmup_steps=min(10, steps), max_length=256)


def build_tokenizer(recipe: WarmStart = WarmStart()) -> PreTrainedTokenizerBase:
    """Train a byte-level BPE tokenizer on demonstrations, with Qwen2's pre-tokenizer and class."""
    from tokenizers import pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    rng = random.Random(f"tokenizer:{recipe.seed}")
    texts = ["system\nuser\nassistant\n"] * 1000
    for _ in range(6000):
        demo = random_demonstration(rng, [(kind, 1.0) for kind, _ in recipe.shares], recipe.phases[0].habits)
        texts += [demo.task.system, demo.task.question, *(text for text, _ in demo.pieces)]
    core = Qwen2Tokenizer().backend_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    core.train_from_iterator(texts, trainer)
    learned = json.loads(core.to_str())["model"]
    entries = [entry for entry in sorted(learned["vocab"], key=learned["vocab"].get) if entry not in SPECIAL_TOKENS]
    tokenizer = Qwen2Tokenizer(
        vocab={entry: index for index, entry in enumerate(entries)},
        merges=[tuple(merge) for merge in learned["merges"]],
        eos_token=END,
        pad_token=PAD,
        extra_special_tokens=[START],
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def model_config(recipe: WarmStart, tokenizer: PreTrainedTokenizerBase) -> Qwen2Config:
    """Return the architecture: Qwen2 with grouped-query attention and tied embeddings."""
    from transformers import Qwen2Config

    return Qwen2Config(
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


class DemonstrationStream:
    """Draws rows (ids, labels) for phase ``number``; label ``IGNORED``: not the policy's token."""

    def __init__(self, policy: Policy, recipe: WarmStart, number: int = 0) -> None:
        self._policy, self._recipe, self._phase = policy, recipe, recipe.phases[number]
        self._rows = 0
        self._rng = random.Random(f"demonstrations:{recipe.seed}" + (f":{number}" if number else ""))
        self._encode = cache(partial(encode_text, policy.tokenizer))
        self._end = [policy.tokenizer.eos_token_id]

    def row(self) -> tuple[list[int], list[int]]:
        """Draw a demonstration or a drill. Returns its ids and labels."""
        phase = self._phase
        first = self._rows < 0.4 * phase.steps * self._recipe.batch_size
        self._rows += 1
        if self._rng.random() < phase.drill_shares[0 if first else 1]:
            return self._join([], DRILLS[phase.drill](self._rng), [])
        demo = random_demonstration(self._rng, self._recipe.shares, phase.habits, phase.difficulties)
        return self._join(encode_prompt(self._policy.tokenizer, demo.task), demo.pieces, self._end if demo.ends else [])

    def batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield (ids, labels), [batch_size, T], right-padded. Similar lengths go together."""
        size = self._recipe.batch_size
        while True:
            rows = sorted((self.row() for _ in range(8 * size)), key=lambda row: len(row[0]))
            batches = [rows[start : start + size] for start in range(0, len(rows), size)]
            self._rng.shuffle(batches)
            for batch in batches:
                ids, labels = zip(*batch, strict=True)
                yield (
                    pad_sequence([torch.tensor(row) for row in ids], batch_first=True),
                    pad_sequence([torch.tensor(row) for row in labels], batch_first=True, padding_value=IGNORED),
                )

    def _join(
        self, prompt: list[int], pieces: Iterable[tuple[str, bool]], end: list[int]
    ) -> tuple[list[int], list[int]]:
        ids, labels = list(prompt), [IGNORED] * len(prompt)
        for text, written in pieces:
            piece = self._encode(text)
            ids += piece
            labels += piece if written else [IGNORED] * len(piece)
        ids, labels = ids + end, labels + end
        return ids[: self._recipe.max_length], labels[: self._recipe.max_length]


def new_policy(recipe: WarmStart) -> Policy:
    """Return ``recipe``'s policy before its training."""
    from transformers import Qwen2ForCausalLM

    torch.manual_seed(recipe.seed)
    tokenizer = build_tokenizer(recipe)
    return Policy(Qwen2ForCausalLM(model_config(recipe, tokenizer)), tokenizer, "embedded", (tokenizer.eos_token_id,))


def warm_start(
    recipe: WarmStart = WarmStart(),
    progress: Callable[[int, float], None] = lambda step, loss: None,
    policy: Policy | None = None,
) -> Policy:
    """Train ``policy``, by default a new one, by ``recipe``. Calls ``progress(step, loss)`` after
    each step."""
    threads = torch.get_num_threads()
    torch.set_num_threads(recipe.threads)
    policy = policy or new_policy(recipe)
    done = 0
    for number, phase in enumerate(recipe.phases):
        for step, loss in imitate(policy, recipe, number):
            progress(done + step, loss)
        done += phase.steps
    policy.model.eval()
    torch.set_num_threads(threads)
    return policy


def imitate(policy: Policy, recipe: WarmStart, number: int) -> Iterator[tuple[int, float]]:
    """Train ``policy`` in phase ``number`` of ``recipe``. Yields (step, loss) after every step."""
    model, phase = policy.model, recipe.phases[number]
    optimizer = torch.optim.AdamW(model.parameters(), phase.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, phase.steps, recipe.warmup_steps))
    batches = DemonstrationStream(policy, recipe, number).batches()
    for step, (ids, labels) in zip(range(1, phase.steps + 1), batches, strict=False):
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
        yield step, loss.item()


def save_policy(policy: Policy, folder: Path, recipe: WarmStart | None = None) -> None:
    """Write ``policy``, for ``load_policy``, to ``folder``; and ``recipe`` to ``recipe.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    save_model(policy.model, policy.tokenizer, folder)
    if recipe is not None:
        (folder / "recipe.json").write_text(json.dumps(asdict(recipe), indent=2) + "\n")


def _rate(step: int, steps: int, warmup_steps: int) -> float:
    """Return the learning rate's share at ``step``: a linear warm-up, a cosine to a twentieth."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    share = (step - warmup_steps) / max(1, steps - warmup_steps)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * share))
