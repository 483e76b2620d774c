"""Show episodes token by token, with their rewards: sampled by the policy, or injected by a tool."""

from __future__ import annotations

import html
from collections.abc import Sequence

from zorplex_rl.course.figures.bars import OUTCOME_COLOURS
from zorplex_rl.policy.load import Policy
from zorplex_rl.run import figure as style
from zorplex_rl.task.episode import Episode

PARTS_OF_A_REWARD = {"correct": "right", "format": "form", "extra_calls": "calls"}
_STYLE = (
    "<style>.zx-episode{display:flex;flex-wrap:wrap;gap:2px 14px;border-left:4px solid;padding:2px 0 2px 10px;margin:0 0 12px}"
    ".zx-episode>div{flex:1 1 15rem;min-width:0}.zx-episode p{margin:0 0 3px}.zx-episode>p{flex:0 0 8rem;font-size:.875em}"
    ".zx-tokens{display:flex;flex-wrap:wrap;gap:3px;margin-bottom:4px}.zx-tokens span{border:1px dashed;border-radius:4px;padding:0 4px;"
    "font:13px/1.45 ui-monospace,monospace}.zx-tokens .own{border:1px solid #2484ce;background:#2484ce29}</style>"
)


def episode_card(
    policy: Policy, episodes: Sequence[Episode], reward: bool = True, lines: int = 0
) -> str:
    """Return scored ``episodes`` as HTML that brings its style: question, a box for each token, solid if sampled, dashed
    if injected, and beside them the ``reward``. Each is at least ``lines`` high."""
    return _STYLE + "".join(_episode(policy, episode, reward, lines) for episode in episodes)


def _episode(policy: Policy, episode: Episode, reward: bool, lines: int) -> str:
    rows = [""]
    for token, own in zip(episode.token_ids, episode.sampled, strict=True):
        piece = policy.tokenizer.decode([token])
        shown = html.escape(piece.replace("\n", "⏎").replace(" ", "␣"))
        rows[-1] += f'<span class="{"own" if own else "tool"}">{shown}</span>'
        rows += [""] * ("\n" in piece)
    tokens = "".join(f'<div class="zx-tokens">{row}</div>' for row in rows if row)
    said, colour = "", style.GREY
    if reward:
        score = episode.scored
        colour = OUTCOME_COLOURS[score.outcome]
        parts = [
            f"{PARTS_OF_A_REWARD[name]} {value + 0:+.1f}" for name, value in score.parts.items()
        ]
        told = [f"<b>{score.reward:.1f}</b>", score.outcome.replace("_", " "), *parts]
        said = f"<p>{'<br>'.join(told).replace('-', '−')}</p>"
    question = f"<p><b>{html.escape(episode.task.question)}</b></p>"
    look = f"border-color:{colour};min-height:{1.55 * (lines + 1) if lines else 0:g}rem"
    return f'<div class="zx-episode" style="{look}"><div>{question}{tokens}</div>{said}</div>'
