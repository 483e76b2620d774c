"""What single figures show: legends, the timeline of a run, the token strip."""

from __future__ import annotations

import html
import re
from xml.etree import ElementTree

from zorplex_rl.course.figures.bars import outcome_chart
from zorplex_rl.course.figures.spans import KIND_COLOURS, paired_timelines
from zorplex_rl.course.figures.tokens import episode_card
from zorplex_rl.policy.evaluate import Report, exact_interval
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.run.timeline import KINDS, Span, Timeline
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
    return Report(
        name, of, right / of, exact_interval(right, of), 0.5, outcomes, 2.0, 1.0, 30.0, 0.1, 0.2
    )


TIMELINE = Timeline(
    [
        Span("generator 0", "generate", 100.0, 107.0),
        Span("generator 0", "pull", 106.0, 108.0),
        Span("trainer", "idle", 100.0, 105.0),
        Span("trainer", "train", 105.0, 110.0),
    ]
)
REPORTS = [report("simple", 30, 40), report("recursive", 10, 40)]


def test_an_outcome_that_did_not_occur_is_not_in_the_legend():
    assert "truncated" not in outcome_chart(REPORTS)


def test_an_episode_shows_every_token_once_as_sampled_or_injected(embedded):
    spec = get_spec("compositional")
    (episode,) = rollout(
        embedded, [RolloutRequest(spec.task(0))], spec.execute, Sampling(temperature=0.0)
    )
    card = episode_card(embedded, [episode], reward=False)
    boxes = re.findall(r'<span class="(own|tool)">(.*?)</span>', card)
    assert [kind == "own" for kind, _ in boxes] == episode.sampled
    shown = html.unescape("".join(text for _, text in boxes)).replace("␣", " ").replace("⏎", "\n")
    assert shown == embedded.tokenizer.decode(episode.token_ids)


def texts(svg: str) -> set[str]:
    return {
        text.text for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    }


def test_a_timeline_has_a_row_for_every_actor_and_a_colour_for_every_kind():
    svg = paired_timelines({"a run": TIMELINE}, 10.0, TIMELINE.actors)
    assert {
        "generator 0",
        "trainer",
        "generate",
        "pull",
        "idle",
        "train",
        "seconds",
        "80%",
        "50%",
    } <= texts(svg)
    for kind in ("generate", "pull", "train"):
        assert KIND_COLOURS[kind].lower() in svg.lower()
    assert KIND_COLOURS["evaluate"].lower() not in svg.lower()


def test_no_two_kinds_look_alike():
    assert set(KIND_COLOURS) == set(KINDS)
    assert len(set(KIND_COLOURS.values())) == len(KINDS)


def test_only_the_given_seconds_are_shown():
    first, all_of_it = (
        paired_timelines({"a run": TIMELINE}, seconds, TIMELINE.actors).lower()
        for seconds in (4.0, 10.0)
    )
    assert {"generator 0", "trainer", "100%", "0%"} <= texts(first)
    train = KIND_COLOURS["train"].lower()
    in_the_legend = 1
    assert (first.count(train), all_of_it.count(train)) == (in_the_legend, in_the_legend + 1)


def test_a_span_far_shorter_than_a_pixel_is_still_drawn():
    timeline = Timeline([Span("a", "train", 0.0, 3600.0), Span("a", "publish", 10.0, 10.001)])
    svg = paired_timelines({"a run": timeline}, 3600.0, ["a"])
    bars = [
        p
        for p in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}path")
        if "#e69f00" in p.get("style", "")
    ]
    xs = [float(x) for x in re.findall(r"[ML] ([\d.]+) ", bars[0].get("d"))]
    assert 0.6 < max(xs) - min(xs) < 1.5
