"""Legends of the figures of what a policy does, and the token strip."""

from __future__ import annotations

import re

from zorplex_rl.course.figures.bars import outcome_chart
from zorplex_rl.course.figures.tokens import token_strip
from zorplex_rl.policy.evaluate import Report, exact_interval
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.task.episode import Task
from zorplex_rl.task.specs import get_spec

TASK = Task("simple", "What is blip?", 17, 1, "", ("blip",))


def report(name: str, right: int, of: int) -> Report:
    outcomes = {
        "success": right / of,
        "wrong_answer": 0.0,
        "wrong_format": 1 - right / of,
        "tool_spam": 0.0,
        "truncated": 0.0,
    }
    return Report(name, of, right / of, exact_interval(right, of), 0.5, outcomes, 2.0, 1.0, 30.0, 0.1, 0.2)


REPORTS = [report("simple", 30, 40), report("recursive", 10, 40)]


def test_an_outcome_that_did_not_occur_is_not_in_the_legend():
    assert "truncated" not in outcome_chart(REPORTS)


def test_the_token_strip_shows_every_token_once_as_sampled_or_injected(embedded):
    spec = get_spec("compositional")
    (episode,) = rollout(embedded, [RolloutRequest(spec.task(0))], spec.execute, Sampling(temperature=0.0))
    strip = token_strip(embedded, episode)
    lines = strip[strip.index("</p>") :]
    assert lines.count('class="token sampled"') == sum(episode.sampled)
    assert lines.count('class="token injected"') == len(episode.sampled) - sum(episode.sampled) > 0
    shown = "".join(re.findall(r"<b>(.*?)</b>", lines)).replace("␣", " ").replace("⏎", "\n").replace("&gt;", ">")
    assert shown == embedded.tokenizer.decode(episode.token_ids).replace("<|", "&lt;|")
