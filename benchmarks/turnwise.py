"""Sample episodes turn by turn through ``model.generate``: rollouts with tools in transformers alone.

    contexts ──generate──► each row stops at its own call, answer or end ──► results appended ──► again, rows still open

With one task it is the one-at-a-time loop of notebooks and tutorials; with many it is what a
careful user of TRL writes in ``rollout_func``. It is written with care: a key-value cache within
each call of ``generate``, sampling without any logits processor, texts decoded only after a token
that can end something. Two costs belong to the approach: every turn runs the whole context again,
and in a batch every row waits for the slowest row of its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from zorplex_rl.policy.load import Policy
from zorplex_rl.policy.tokenizer import encode_prompt, encode_text
from zorplex_rl.task.episode import Episode, Task, Turn
from zorplex_rl.task.parser import ToolCall, answer_is_complete, find_call, format_result

NOT_YET: Any = None


class StopAtTurnEnd(StoppingCriteria):
    """Stop each row where its turn ends: a complete call, a complete answer line, the end of the
    text, or its limit.

    ``ends[row]`` is then the number of tokens that the row has sampled in this turn.
    """

    def __init__(self, policy: Policy, width: int, limits: Sequence[int]) -> None:
        self._tokenizer, self._width = policy.tokenizer, width
        self._marks, self._eos = marks_of(policy.tokenizer), set(policy.eos_ids)
        self._limits = limits
        self.ends: list[int | None] = [None] * len(limits)

    def __call__(
        self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: object
    ) -> torch.Tensor:
        length = input_ids.shape[1] - self._width
        for row, token in enumerate(input_ids[:, -1].tolist()):
            if self.ends[row] is None and self._is_over(
                input_ids[row, self._width :], token, self._limits[row]
            ):
                self.ends[row] = length
        return torch.tensor([end is not None for end in self.ends], device=input_ids.device)

    def _is_over(self, turn: torch.Tensor, token: int, limit: int) -> bool:
        if token in self._eos or len(turn) >= limit:
            return True
        if token not in self._marks:
            return False
        line = last_line(self._tokenizer.decode(turn, skip_special_tokens=True))
        return find_call(line) is not None or answer_is_complete(line)


def generate_turnwise(
    policy: Policy,
    tasks: Sequence[Task],
    execute: Callable[[Task, ToolCall], str],
    temperature: float = 1.0,
    max_tokens: int = 96,
    max_turns: int = 6,
) -> list[Episode]:
    """Sample one episode for each of ``tasks``, all together. Limits are those of ``Sampling``;
    ``Episode.logprobs`` stay empty."""
    sampling = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    eos, pad = list(policy.eos_ids), policy.tokenizer.pad_token_id
    config = GenerationConfig(
        do_sample=temperature > 0, eos_token_id=eos, pad_token_id=pad, **sampling
    )
    rows = [
        Episode(task, encode_prompt(policy.tokenizer, task), [], [], [], [], NOT_YET)
        for task in tasks
    ]
    while still_open := [row for row in rows if row.finish is NOT_YET]:
        turns = _generate_turn(policy, still_open, config, max_tokens)
        for row, turn in zip(still_open, turns, strict=True):
            _end_turn(policy, row, turn, execute, (max_tokens, max_turns))
    return rows


def last_line(text: str) -> str:
    """Return the last line of ``text``, with the line break that may end it."""
    return text[text[:-1].rfind("\n") + 1 :]


@cache
def marks_of(tokenizer: Any) -> set[int]:
    """Return the tokens that can end a call or a line."""
    signs = ("]", "\n", "Ċ", "<0x0A>")
    return {i for entry, i in tokenizer.get_vocab().items() if any(sign in entry for sign in signs)}


@torch.inference_mode()
def _generate_turn(
    policy: Policy, rows: Sequence[Episode], config: GenerationConfig, max_tokens: int
) -> list[list[int]]:
    """Sample the next turn of each of ``rows``. Returns their token ids."""
    contexts = [row.prompt_ids + row.token_ids for row in rows]
    width = max(map(len, contexts))
    ids = torch.full((len(rows), width), config.pad_token_id)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for row, context in enumerate(contexts):
        ids[row, width - len(context) :] = torch.tensor(context)
        mask[row, width - len(context) :] = 1
    limits = [max_tokens - len(row.token_ids) for row in rows]
    stop = StopAtTurnEnd(policy, width, limits)
    config.max_new_tokens = max(limits)
    output = policy.model.generate(
        input_ids=ids.to(policy.model.device),
        attention_mask=mask.to(policy.model.device),
        generation_config=config,
        stopping_criteria=StoppingCriteriaList([stop]),
    )
    return [turn[:end] for turn, end in zip(output[:, width:].tolist(), stop.ends, strict=True)]


def _end_turn(
    policy: Policy,
    row: Episode,
    turn: list[int],
    execute: Callable[[Task, ToolCall], str],
    limits: tuple[int, int],
) -> None:
    """Add a sampled turn to its row. Run the call that ended it, if there is one. Set ``finish`` if
    the episode is over."""
    max_tokens, max_turns = limits
    start = len(row.token_ids)
    row.token_ids += turn
    row.sampled += [True] * len(turn)
    text = policy.tokenizer.decode(turn, skip_special_tokens=True)
    line = last_line(text)
    ended = turn[-1] in policy.eos_ids
    call = None if ended else find_call(line)
    result = None
    if ended:
        row.finish = "eos"
    elif call is None:
        row.finish = "answer" if answer_is_complete(line) else "tokens"
    elif len(row.turns) + 1 >= max_turns:
        row.finish = "turns"
    else:
        result = format_result(execute(row.task, call))
        injected = encode_text(policy.tokenizer, result)[: max_tokens - len(row.token_ids)]
        row.token_ids += injected
        row.sampled += [False] * len(injected)
        if len(row.token_ids) >= max_tokens:
            row.finish = "tokens"
    row.turns.append(Turn(text, start, start + len(turn), str(call) if call else None, result))
