"""Show episodes token by token: sampled by the policy, or injected by a tool.

token_strip     one, with log-probs, as HTML
episode_card    several, each with its reward, as one drawing
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from zorplex_rl.policy.load import Policy
from zorplex_rl.run import figure as style
from zorplex_rl.run.figure import drawing
from zorplex_rl.task.episode import Episode, Score

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


PARTS_OF_A_REWARD = {"correct": "right", "format": "form", "extra_calls": "calls"}
_LEFT, _RIGHT, _PITCH = 14, 548, 25


def episode_card(policy: Policy, episodes: Sequence[Episode], title: str, lines: int = 3, reward: bool = True) -> str:
    """Draw scored ``episodes`` below one another: question, up to ``lines`` of tokens, and at the right the ``reward``."""
    shapes, said, top = "", [], 0
    for episode in episodes:
        boxes, used = _boxes(policy, episode, top + 32, lines)
        height = 34 + max(3, used) * _PITCH + 14
        shapes += f'<text x="{_LEFT}" y="{top + 20}" font-weight="600">{_text(episode.task.question)}</text>{boxes}'
        if reward:
            shapes += _reward(episode.scored, top, height)
        said.append(f"{episode.task.question} {_text(episode.text.strip())}")
        top += height
    return drawing(shapes, top, title, "; ".join(said))


def _reward(score: Score, top: int, height: int) -> str:
    """Return the mark at the left, and the texts at the right of an episode."""
    colour = style.GREEN if score.outcome == "success" else style.VERMILION
    parts = ", ".join(f"{PARTS_OF_A_REWARD[name]} {value:+.1f}" for name, value in score.parts.items() if value)
    texts = [(46, 18, f"{score.reward:.1f}"), (66, 12, parts or "nothing earned"), (84, 12, score.outcome)]
    return f'<rect x="0" y="{top + 4}" width="4" height="{height - 12}" fill="{colour}"/>' + "".join(
        f'<text x="{_RIGHT + 14}" y="{top + y}" font-size="{size}">{text.replace("-", "−").replace("_", " ")}</text>'
        for y, size, text in texts
    )


def _boxes(policy: Policy, episode: Episode, top: int, lines: int) -> tuple[str, int]:
    """Return a box for each token, solid if sampled, dashed if injected, and the lines used."""
    shapes, x, line = "", _LEFT, 0
    for token, own in zip(episode.token_ids, episode.sampled, strict=True):
        piece = policy.tokenizer.decode([token])
        shown = piece.replace("\n", "⏎").replace(" ", "␣")
        width = 7.9 * len(shown) + 7
        if x + width > _RIGHT:
            x, line = _LEFT, line + 1
        if line == lines:
            return f'{shapes}<text x="{_RIGHT - 16}" y="{top + lines * _PITCH + 8}">…</text>', lines
        look = f'fill="{style.BLUE}" fill-opacity="0.16" stroke="{style.BLUE}"'
        look = look if own else 'fill="none" stroke="currentColor" stroke-dasharray="3 2"'
        y = top + line * _PITCH
        shapes += (
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="20" rx="4" {look}/><text x="{x + width / 2:.1f}" y="{y + 15}" '
            f'text-anchor="middle" font-family="ui-monospace, monospace" font-size="13">{_text(shown)}</text>'
        )
        x, line = (_LEFT, line + 1) if "\n" in piece else (x + width + 3, line)
    return shapes, line + (x > _LEFT)


def _text(text: str) -> str:
    """Return ``text`` for an SVG: no elements, and only what can be printed."""
    return html.escape("".join(sign if sign.isprintable() else " " for sign in text))
