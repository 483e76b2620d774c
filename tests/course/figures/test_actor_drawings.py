"""The drawings of notebooks 01 and 02 say what they show, and follow the reader's choice without a
script."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from zorplex_rl.course.figures import drawing_of
from zorplex_rl.course.lesson import lesson

DELIVERY = drawing_of("delivery.html")
WAYS = re.findall(r"<label>.*?<code>(.*?)</code></label>", DELIVERY)


def test_each_kind_of_call_has_a_button_a_sentence_and_a_rule_that_shows_it():
    assert WAYS == ["call", "slice(rows=1).call", "call_one", "choose", "broadcast"]
    assert re.findall(r'id="([^"]+)" checked', DELIVERY) == ["delivery-0"]
    assert re.search(r'role="img" aria-label="[^"]{40,}"', DELIVERY)
    assert "<script" not in DELIVERY
    for index, way in enumerate(WAYS):
        name = f"delivery-{index}"
        assert f'<input type="radio" name="delivery" id="{name}"' in DELIVERY
        assert f'<p class="said on-{name}"><strong><code>{way}</code>' in DELIVERY
        assert f".delivery:has(#{name}:checked) .on-{name}" in DELIVERY


def test_a_broadcast_has_no_answers_and_a_call_has_four():
    groups = re.findall(r'<g class="way ([^"]*)">(.*?)</g>', DELIVERY, re.DOTALL)
    answers = [kinds.split() for kinds, inside in groups if "stroke-dasharray" in inside]
    assert sum(f"on-delivery-{WAYS.index('call')}" in kinds for kinds in answers) == 4
    assert sum(f"on-delivery-{WAYS.index('call_one')}" in kinds for kinds in answers) == 1
    assert not any(f"on-delivery-{WAYS.index('broadcast')}" in kinds for kinds in answers)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mailbox.svg", "delivery.html"])
def test_a_drawing_that_moves_rests_while_nobody_sees_it(chromium, name):
    style = (files("zorplex_rl.course.lesson") / "lesson.css").read_text()
    far, figure = '<div style="height: 5000px"></div>', lesson.figure(drawing_of(name)).text
    page = chromium.new_page()
    page.set_content(f"<style>{style}</style>{far}{figure}{far}")
    page.evaluate(
        """document.querySelector("figure").addEventListener("contentvisibilityautostatechange", (event) => {
          window.rests = event.skipped;
        })"""
    )
    assert page.evaluate("document.getAnimations().length") == 0, "it has not begun"
    page.locator("figure").scroll_into_view_if_needed()
    page.wait_for_function("document.getAnimations().some((one) => one.playState === 'running')")
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_function("window.rests")
    page.close()
