"""Show episodes token by token, with their rewards: sampled by the policy, or injected by a tool.

Episode ──► written ──► plain data, which a file can hold ──► written_card ──► HTML
"""

import html
import re
from collections.abc import Sequence
from typing import Any

from zorplex_rl.course.figures import figure as style
from zorplex_rl.course.figures.bars import OUTCOME_COLOURS
from zorplex_rl.policy.load import Policy
from zorplex_rl.task.episode import Episode

Written = dict[str, Any]
"""What a policy wrote for one task: ``question``, ``tokens`` ([text, sampled] of each), ``outcome``, ``reward``, ``parts``."""
PARTS_OF_A_REWARD = {"correct": "right", "format": "[ANSWER]", "extra_calls": "calls"}
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
    return written_card([written(policy, episode) for episode in episodes], reward, lines)


def written(policy: Policy, episode: Episode) -> Written:
    """Return an episode as plain data, which needs no tokenizer to be shown."""
    pairs = zip(episode.token_ids, episode.sampled, strict=True)
    found: Written = {
        "question": episode.task.question,
        "tokens": [[policy.tokenizer.decode([token]), own] for token, own in pairs],
    }
    if episode.score is not None:
        score = episode.score
        found |= {"outcome": score.outcome, "reward": score.reward, "parts": dict(score.parts)}
    return found


def written_card(episodes: Sequence[Written], reward: bool = True, lines: int = 0) -> str:
    """Return the same as ``episode_card``, of plain data."""
    return _STYLE + "".join(_episode(episode, reward, lines) for episode in episodes)


def invents(shown: Written) -> bool:
    """Return whether the policy wrote an arrow and a number itself, which only the tool should.

    >>> invents({"tokens": [["YIM", True], [" -> 23", True]]}), invents({"tokens": [["]", True], [" -> 8", False]]})
    (True, False)
    """
    own = "".join(text for text, sampled in shown["tokens"] if sampled)
    return re.search(r"-> *\d", own) is not None


def _episode(episode: Written, reward: bool, lines: int) -> str:
    rows = [""]
    for piece, own in episode["tokens"]:
        shown = html.escape(piece.replace("\n", "⏎").replace(" ", "␣"))
        rows[-1] += f'<span class="{"own" if own else "tool"}">{shown}</span>'
        rows += [""] * ("\n" in piece)
    tokens = "".join(f'<div class="zx-tokens">{row}</div>' for row in rows if row)
    said, colour = "", style.GREY
    if reward:
        outcome = episode["outcome"]
        colour = OUTCOME_COLOURS[outcome]
        parts = [
            f"{PARTS_OF_A_REWARD[name]} {value + 0:+.1f}"
            for name, value in episode["parts"].items()
        ]
        told = [f"<b>{episode['reward']:.1f}</b>", outcome.replace("_", " "), *parts]
        said = f"<p>{'<br>'.join(told).replace('-', '−')}</p>"
    question = f"<p><b>{html.escape(episode['question'])}</b></p>"
    look = f"border-color:{colour};min-height:{1.55 * (lines + 1) if lines else 0:g}rem"
    return f'<div class="zx-episode" style="{look}"><div>{question}{tokens}</div>{said}</div>'
