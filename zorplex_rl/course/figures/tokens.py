"""Show an episode token by token: sampled by the policy, or injected by a tool."""

from __future__ import annotations

import html
import math

from zorplex_rl.policy.load import Policy
from zorplex_rl.task.episode import Episode

LEGEND = (
    '<span class="token sampled"><b>sampled</b><i>log-prob</i></span> by the policy: trained on. '
    '<span class="token injected"><b>injected</b></span> by a tool: context only. The stronger its colour, the less likely a sampled token was.'
)


def token_strip(policy: Policy, episode: Episode) -> str:
    """Render a response as HTML: a box for each token, a line for each line of text."""
    pieces = [policy.tokenizer.decode([token]) for token in episode.token_ids]
    tokens = list(zip(pieces, episode.sampled, episode.logprobs, strict=True))
    own = sum(episode.sampled)
    said = f"{len(episode.prompt_ids)} prompt tokens, then {own} sampled and {len(tokens) - own} injected"
    # A token that contains a line break ends its line.
    ends = [0, *(index + 1 for index, piece in enumerate(pieces) if "\n" in piece)]
    lines = [tokens[start:end] for start, end in zip(ends, [*ends[1:], len(tokens)], strict=True)]
    rows = "".join(f'<div class="token-line">{"".join(map(_box, line))}</div>' for line in lines if line)
    return f'<div class="token-strip" role="group" aria-label="{said}"><p>{said}. {LEGEND}</p>{rows}</div>'


def _box(token: tuple[str, bool, float]) -> str:
    piece, sampled, logprob = token
    text = html.escape(piece.replace("\n", "⏎").replace(" ", "␣"))
    if not sampled:
        return f'<span class="token injected"><b>{text}</b></span>'
    surprise = round(min(1.0, 1 - math.exp(logprob)), 2)
    # Adding 0.0 turns −0.0 into 0.0, so that an almost certain token does not show "−0.00".
    value = f"{round(logprob, 2) + 0.0:.2f}".replace("-", "−")
    return f'<span class="token sampled" style="--surprise:{surprise}"><b>{text}</b><i>{value}</i></span>'
