"""Teach SmolLM2-135M, a real language model, with the functions of my_rl.py: two and a half minutes on two cores.

    zorplex-rl policy get smollm2            once: 93 MB
    python examples/my_rl_smollm2.py

Three things differ from the small model, which was made for this task:

    questions    about one word, behind two worked examples: so SmolLM2 is right now and then, and
                 without a reward there is nothing to learn from
    steps        three, with a tenth of the learning rate
    reading      through a key-value cache: it is 160 times as large, so reading all of the text again
                 for each token would take too long
"""

import os
import random
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
    """The model with a key-value cache: it reads only the tokens with which the text before did not begin.

    Answers to one question often begin alike. So while it samples it also keeps what came out for each text:
    an answer costs nothing until it goes another way than all before.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.parameters = model.parameters
        self.has_gradients = False
        self.forget()

    def forget(self) -> None:
        """Begin with an empty text."""
        self.cache = DynamicCache()
        self.ids = torch.zeros(1, 0, dtype=torch.long)
        self.logits = torch.zeros(1, 0, self.model.config.vocab_size)
        self.seen = {}

    def __call__(self, ids: torch.Tensor) -> SimpleNamespace:
        # Sampling runs without gradients, training with them. Between the two the cache is of no use: the
        # weights have changed, or what was read without gradients is needed with them.
        has_gradients = torch.is_grad_enabled()
        if has_gradients != self.has_gradients:
            self.forget()
            self.has_gradients = has_gradients

        if has_gradients:
            # The loss needs the logits of all tokens.
            same, logits = self.read(ids)
            self.logits = torch.cat([self.logits[:, :same], logits], dim=1)
            return SimpleNamespace(logits=self.logits)

        # Sampling needs only those of the last one.
        text = tuple(ids[0].tolist())
        if text not in self.seen:
            _, logits = self.read(ids)
            self.seen[text] = logits[:, -1:]
        return SimpleNamespace(logits=self.seen[text])

    def read(self, ids: torch.Tensor) -> tuple[int, torch.Tensor]:
        """Read what is new in ``ids``. Returns how many tokens were known, and the logits of the others."""
        same = self.count_same(ids)
        known = self.ids.shape[1]
        self.cache.crop(same - known)  # a negative number: so many tokens are removed
        self.ids = ids
        # No mask, no positions. The cache has another name in older releases of transformers.
        logits = self.model(ids[:, same:], None, None, self.cache).logits
        return same, logits

    def count_same(self, ids: torch.Tensor) -> int:
        """Return how many tokens need not be read: those with which both texts begin, but never all."""
        length = min(self.ids.shape[1], ids.shape[1] - 1)
        equal = ids[0, :length] == self.ids[0, :length]
        return int(equal.cumprod(0).sum())


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
