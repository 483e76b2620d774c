"""Teach SmolLM2-135M, a real language model, with the functions of my_rl.py: less than two minutes on two cores.

    zorplex-rl policy get smollm2            once: 93 MB
    python examples/my_rl_smollm2.py

Three things differ from the small model, which was made for this task:

    questions    about one word, behind two worked examples: so SmolLM2 is right now and then, and
                 without a reward there is nothing to learn from
    steps        three, with a tenth of the learning rate
    reading      through a key-value cache: it is 160 times as large, so reading all of the text again
                 for each token would take too long. And answers are written side by side, each in a
                 thread of its own: each pass of the model fetches all weights from memory, and serves all answers
"""

import os
import random
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from my_rl import (
    HELD_OUT,
    PHRASINGS,
    SYSTEM,
    Sampling,
    Task,
    evaluate,
    load_policy,
    train,
)
from transformers import DynamicCache

USER_CACHE = os.getenv("XDG_CACHE_HOME") or "~/.cache"
CACHE = os.getenv("ZORPLEX_CACHE") or f"{USER_CACHE}/zorplex-rl"
FOLDER = Path(CACHE).expanduser() / "smollm2"
SAMPLED = Sampling(temperature=1.0, max_tokens=26)
EXAMPLES = [
    {"role": "user", "content": "What is wug?"},
    {"role": "assistant", "content": "LOOKUP[wug] -> 35\n[ANSWER] 35"},
    {"role": "user", "content": "Tell the value of gazz."},
    {"role": "assistant", "content": "LOOKUP[gazz] -> 30\n[ANSWER] 30"},
]


def draw_task(words: list[str], seed: int | str) -> Task:
    """Ask for the number of one word, behind the worked examples."""
    rng = random.Random(seed)
    numbers = rng.sample(range(10, 50), len(words))
    table = dict(zip(words, numbers, strict=True))
    word = rng.choice(words)
    question = rng.choice(PHRASINGS).format(word)
    messages = [
        {"role": "system", "content": SYSTEM},
        *EXAMPLES,
        {"role": "user", "content": question},
    ]
    return Task(messages, answer=table[word], table=table)


class Reader:
    """The model with a key-value cache: it reads only the tokens with which the text before did not begin."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.parameters = model.parameters
        self.thread = threading.local()
        self.has_gradients = False
        self.forget()

    def forget(self) -> None:
        """Begin with an empty text."""
        self.cache = DynamicCache()
        self.ids = torch.zeros(1, 0, dtype=torch.long)
        self.logits = torch.zeros(1, 0, self.model.config.vocab_size)

    def __call__(self, ids: torch.Tensor) -> SimpleNamespace:
        read = getattr(self.thread, "read", self.read_alone)
        return SimpleNamespace(logits=read(ids))

    def map(self, function: Callable, items: Iterable) -> list:
        """Call `function` with each item, in a thread of its own. What they read is read side by side."""
        self.forget()  # by the next gradient the weights have changed
        items = list(items)
        group = SideBySide(self.model, len(items))

        def run(row: int, item: object) -> object:
            self.thread.read = partial(group.read, row)
            try:
                return function(item)
            finally:
                group.leave()

        with ThreadPoolExecutor(len(items)) as pool:
            return list(pool.map(run, range(len(items)), items))

    def read_alone(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits [1, T, V] of a text [1, T]; without gradients those of the last token."""
        # Sampling runs without gradients, training with them. Between the two the cache is of no use: the
        # weights have changed, or what was read without gradients is needed with them.
        has_gradients = torch.is_grad_enabled()
        if has_gradients != self.has_gradients:
            self.forget()
            self.has_gradients = has_gradients

        same = self.count_same(ids)
        known = self.ids.shape[1]
        self.cache.crop(same - known)  # a negative number: so many tokens are removed
        # No mask, no positions. The cache has another name in older releases of transformers.
        logits = self.model(ids[:, same:], None, None, self.cache).logits
        # The loss needs the logits of all tokens, sampling only those of the last one.
        if has_gradients:
            logits = torch.cat([self.logits[:, :same], logits], dim=1)
        self.logits = logits
        self.ids = ids
        return logits

    def count_same(self, ids: torch.Tensor) -> int:
        """Return how many tokens need not be read: those with which both texts begin, but never all."""
        length = min(self.ids.shape[1], ids.shape[1] - 1)
        equal = ids[0, :length] == self.ids[0, :length]
        return int(equal.cumprod(0).sum())


class SideBySide:
    """Reads texts that grow in a thread each. When all threads wait for a next token, one pass serves them."""

    def __init__(self, model: torch.nn.Module, texts: int) -> None:
        self.model = model
        self.running = texts
        self.waiting = {}  # the texts of the threads that wait, by number
        self.turn = threading.Condition()
        # The cache has a row for each different text. All begin with the empty one.
        self.cache = DynamicCache()
        self.row_of = [0] * texts
        self.lengths = [0]
        self.mask = torch.zeros(1, 0, dtype=torch.long)  # 1 where a row has a token, else 0
        self.logits = torch.zeros(1, 0)

    def read(self, number: int, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits [1, 1, V] after a text [1, T]: the one that this thread gave before, and more."""
        text = tuple(ids[0].tolist())
        with self.turn:
            if len(text) > self.lengths[self.row_of[number]]:
                self.waiting[number] = text
                self.read_if_all_wait()
                self.turn.wait_for(lambda: number not in self.waiting)
            return self.logits[None, self.row_of[number], None]

    def leave(self) -> None:
        """A text is complete: no longer wait for its thread."""
        with self.turn:
            self.running -= 1
            self.read_if_all_wait()

    def read_if_all_wait(self) -> None:
        if self.waiting and len(self.waiting) == self.running:
            try:
                self.read_new()
            finally:
                self.waiting.clear()
                self.turn.notify_all()

    @torch.no_grad()
    def read_new(self) -> None:
        """Run the model on what is new in each text; equal texts are read once."""
        old_row = {text: self.row_of[number] for number, text in self.waiting.items()}
        texts = list(old_row)
        rows = torch.tensor(list(old_row.values()))
        self.cache.batch_select_indices(rows)
        fresh = [len(text) - self.lengths[old_row[text]] for text in texts]
        # The new tokens stand at the right, with zeros at their left that nobody sees.
        width = max(fresh)
        ids = []
        mask = []
        for text, count in zip(texts, fresh, strict=True):
            padding = [0] * (width - count)
            ids.append([*padding, *text[-count:]])
            mask.append([*padding, *[1] * count])
        old_mask = self.mask[rows]
        self.mask = torch.cat([old_mask, torch.tensor(mask)], dim=1)
        positions = self.mask.cumsum(1) - 1
        output = self.model.base_model(
            torch.tensor(ids),
            self.mask,
            positions.clamp(min=0)[:, -width:],
            self.cache,
        )
        last = output.last_hidden_state[:, -1]
        self.logits = self.model.lm_head(last)
        self.lengths = [len(text) for text in texts]
        for number, text in self.waiting.items():
            self.row_of[number] = texts.index(text)


def main() -> None:
    torch.set_num_threads(2)
    policy = load_policy(str(FOLDER))
    policy.model = Reader(policy.model)
    held_out = [draw_task(HELD_OUT, seed) for seed in range(16)]
    evaluate(policy, held_out, SAMPLED)
    train(
        policy,
        new_task=draw_task,
        sampling=SAMPLED,
        steps=3,
        prompts=2,
        learning_rate=5e-5,
    )
    evaluate(policy, held_out, SAMPLED)


if __name__ == "__main__":
    main()
