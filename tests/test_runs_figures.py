"""Figures that lay runs beside each other say the numbers that they are given."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from zorplex_rl.analysis.timeline import Span, Timeline
from zorplex_rl.learning.staleness import Outcome, Trial
from zorplex_rl.viz.runs import lag_chart, lags_of, paired_timelines, staleness_chart

SYNC = Timeline([Span("trainer", "train", 5.0, 6.0), Span("generator", "generate", 6.0, 7.0)])
ASYNC = Timeline([Span("trainer", "train", 90.0, 92.0), Span("generator", "generate", 90.5, 99.0)])
OUTCOMES = [
    Outcome(Trial(loss, lag, seed), accuracy, 1.0, 0.0)
    for loss, lag, seed, accuracy in (("tis", 0, 0, 0.9), ("tis", 0, 1, 0.7), ("tis", 4, 0, 0.5), ("grpo", 0, 0, 0.6))
]
NAMES = {"tis": "truncated IS", "grpo": "clipped"}
FIGURES = {
    "timelines": (
        lambda: paired_timelines({"sync": SYNC, "async": ASYNC}, 2.0, ["generator", "trainer"]),
        "sync: generator 50%, trainer 50%; async: generator 75%, trainer 100%",
    ),
    "lags": (lambda: lag_chart({"sync": {0: 8}, "async": {0: 2, 1: 6}}), "sync: lag 0 100%; async: lag 0 25%, lag 1 75%"),
    "staleness": (lambda: staleness_chart(OUTCOMES, NAMES, 0.3), "truncated IS: lag 0 80%, lag 4 50%; clipped: lag 0 60%"),
}  # fmt: skip


@pytest.mark.parametrize(("figure", "said"), FIGURES.values(), ids=FIGURES)
def test_a_figure_is_one_labelled_svg_that_says_its_numbers(figure, said):
    root = ElementTree.fromstring(figure())
    assert root.get("role") == "img"
    assert said in root.get("aria-label")
    assert figure() == figure()


def test_a_group_is_as_old_as_the_versions_between_its_sampling_and_its_step():
    groups = [[[0, 0, 1.0, 0.0], [1, 0, 1.0, 0.0]], [[2, 0, 1.0, 0.0], [3, 1, 1.0, 0.0]]]
    spans = [Span("trainer", "train", step, step + 1, {"step": step, "groups": g}) for step, g in enumerate(groups)]
    assert lags_of(Timeline([*spans, Span("trainer", "publish", 3, 4, {"version": 1})])) == {0: 3, 1: 1}
