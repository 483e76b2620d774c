"""Every widget has a drawn state, made from nothing but the state that a page holds: for readers
without scripts, and on paper."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest
from pages import state_of
from test_widgets import MAKERS, SHARDS

from zorplex_rl.course import widgets
from zorplex_rl.course.widgets import (
    LiveCurve,
    ReshardMap,
    TimelineSimulator,
    WeightRingRace,
    drawn,
)


def as_a_page_holds_it(widget) -> dict:
    """The state after its way through JSON; bytes do not take part."""
    return json.loads(
        json.dumps(
            {
                name: value
                for name, value in state_of(widget).items()
                if not isinstance(value, bytes)
            }
        )
    )


def tags(markup: str) -> list[str]:
    found: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: found.append(tag)
    parser.feed(markup)
    return found


@pytest.mark.parametrize("name", list(MAKERS))
def test_a_widget_is_drawn_from_its_state_alone(name):
    shown = drawn(as_a_page_holds_it(MAKERS[name]()))
    assert {"svg", "table"} & set(tags(shown))
    assert "script" not in tags(shown)
    assert 'aria-label="' in shown


def test_every_widget_of_the_package_can_be_drawn():
    own = [getattr(widgets, name) for name in widgets.__all__]
    assert [kind.__name__ for kind in own if kind.drawn is widgets.widget.Widget.drawn] == []


def test_a_curve_names_its_last_points():
    curve = LiveCurve(10)
    curve.add("greedy", 3, 0.5)
    curve.add("greedy", 7, 0.75)
    assert "greedy 0.75 at step 7" in drawn(as_a_page_holds_it(curve))


def test_a_simulator_draws_the_times_that_it_computed():
    simulator = TimelineSimulator()
    shown = drawn(as_a_page_holds_it(simulator))
    assert f"in turns {simulator.result['sync']['seconds']:g} s" in shown
    assert f"side by side {simulator.result['async']['seconds']:g} s" in shown


def test_a_race_shows_its_first_torn_copy():
    ring = WeightRingRace()
    assert "torn, used" in drawn(as_a_page_holds_it(ring))
    ring.params = ring.params | {"seqlock": True}
    assert "of all copies 0 torn ones were used" in drawn(as_a_page_holds_it(ring))


def test_a_map_lists_its_bytes():
    shown = drawn(as_a_page_holds_it(ReshardMap(SHARDS, axes=("trainer holds", "generators want"))))
    assert "Bytes for trainer holds: rows, generators want: columns (one of 2 choices)" in shown
    assert "1,000,000" in shown


def test_what_is_no_widget_of_ours_is_not_drawn():
    assert drawn({}) == drawn({"kind": "Mapping"}) == drawn({"kind": "drawn"}) == ""


def test_a_service_player_draws_the_states_of_every_place_around_the_fault():
    shown = drawn(as_a_page_holds_it(MAKERS["service player"]()))
    assert all(
        word in shown
        for word in ("tools_0", "tools_2", "starting", "kill -9", "1.0 s before", "3.0 s after")
    )
    assert "kill -9: 4 requests answered, 1 cut off with their replica" in shown
