"""From text to token ids and back: a task as a prompt, a tool's result, what a policy has written."""

import re
from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from zorplex_rl.errors import ConfigError
from zorplex_rl.task.episode import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from zorplex_rl.policy.load import Policy

HIDING = "\ufdd0"
"""No character: behind the first of a control token it hides that from template and tokenizer."""


def encode_prompt(tokenizer: "PreTrainedTokenizerBase", task: Task) -> list[int]:
    """Return the ids of ``task``'s system prompt, examples and question in the chat template. What
    looks like a control token in the question is text."""
    special = {token.content: i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    control = "|".join(map(re.escape, sorted(special, key=len, reverse=True))) or "(?!)"
    question = re.sub(f"(?={control})(.)", rf"\1{HIDING}", task.question, flags=re.DOTALL)
    turns = [*(text for example in task.examples for text in example), question]
    messages = [{"role": "system", "content": task.system}]
    messages += [{"role": role, "content": text} for role, text in zip(cycle(("user", "assistant")), turns)]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    if question == task.question:
        return tokenizer(prompt, add_special_tokens=False)["input_ids"]
    ids: list[int] = []
    for piece in re.split(f"({control})", prompt):
        ids += [special[piece]] if piece in special else _encode(tokenizer, piece.replace(HIDING, ""))
    return ids


def check_length(policy: str, most: int, prompt: int, max_tokens: int, shots: int) -> None:
    """Raise ConfigError if ``policy``, which reads at most ``most`` tokens (0: not known), cannot read a
    prompt of ``prompt`` tokens, with ``shots`` worked examples, and its answer."""
    if not most or prompt + max_tokens <= most:
        return
    lower = ["--max-tokens"] * (prompt < most) + ["--shots"] * (shots > 0)
    advice = f"lower {' or '.join(lower)}" if lower else "shorten the questions"
    raise ConfigError(
        f"a prompt has {prompt} tokens and its answer may have {max_tokens}, but policy {policy!r} reads "
        f"at most {most} together; {advice}, or take another policy"
    )


def encode_text(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    """Return the token ids of ``text`` behind other text: what looks like a control token is text, and a
    tokenizer that begins with a space puts it before a line break here, which is left out."""
    start = _encode(tokenizer, "\n")
    ids = _encode(tokenizer, f"\n{text}")
    # A line break that becomes one token with what follows begins otherwise.
    return ids[len(start) :] if ids[: len(start)] == start else _encode(tokenizer, text)


def _encode(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


def decode_text(policy: "Policy", ids: Sequence[int]) -> str:
    """Return the text of ``ids`` but those that end it, behind other text: a tokenizer may drop a space
    at the beginning of all. Control tokens are text that was written: an answer's tag may be one."""
    decode = policy.tokenizer.decode
    first = [*policy.eos_ids[:1]]
    written = [i for i in ids if i not in policy.eos_ids]
    return decode(first + written).removeprefix(decode(first))
