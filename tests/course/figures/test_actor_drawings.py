"""The drawings of notebooks 01 and 02 say what they show, and follow the reader's choice without a
script."""

from __future__ import annotations

import re

import pytest

from zorplex_rl.course.figures import actor_drawings
from zorplex_rl.course.figures.actor_drawings import LAYERS, SURVIVES, WAYS

DRAWINGS = {
    "mailbox": actor_drawings.mailbox_drawing(),
    "delivery": actor_drawings.delivery_drawing(),
    "layers": actor_drawings.layers_drawing(),
    "processes": actor_drawings.processes_drawing(1, {20: {300: "gpus=0"}, 21: {301: "gpus=0", 302: "gpus=1"}}),
}


@pytest.mark.parametrize("drawing", DRAWINGS.values(), ids=DRAWINGS)
def test_a_drawing_has_a_label_and_takes_the_colour_of_the_text(drawing):
    assert drawing.count('role="img"') == 1
    assert re.search(r'aria-label="[^"]{40,}"', drawing)
    assert "currentColor" in drawing
    assert not re.search(r"#000|#fff|black|white", drawing)
    assert "<script" not in drawing


@pytest.mark.parametrize(("kind", "ways"), [("delivery", WAYS), ("layers", SURVIVES)])
def test_each_choice_has_a_button_a_sentence_and_a_rule_that_shows_it(kind, ways):
    drawing = DRAWINGS[kind]
    assert re.findall(r'id="([^"]+)" checked', drawing) == [f"{kind}-0"]
    for index in range(len(ways)):
        name = f"{kind}-{index}"
        assert f'<input type="radio" name="{kind}" id="{name}"' in drawing
        assert f'<p class="said on-{name}">' in drawing
        assert f".{kind}:has(#{name}:checked) .on-{name}" in drawing


def test_a_broadcast_has_no_answers_and_a_call_has_four():
    groups = re.findall(r'<g class="way ([^"]*)">(.*?)</g>', DRAWINGS["delivery"])
    answers = [kinds.split() for kinds, inside in groups if "stroke-dasharray" in inside]
    ways = list(WAYS)
    assert sum(f"on-delivery-{ways.index('call')}" in kinds for kinds in answers) == 4
    assert sum(f"on-delivery-{ways.index('call_one')}" in kinds for kinds in answers) == 1
    assert not any(f"on-delivery-{ways.index('broadcast')}" in kinds for kinds in answers)


def test_for_each_change_every_layer_either_stays_or_is_new():
    groups = re.findall(r'<g class="way ([^"]*)">(.*?)</g>', DRAWINGS["layers"])
    for index, stay in enumerate(SURVIVES.values()):
        marked = [("stays" in inside) for kinds, inside in groups if f"on-layers-{index}" in kinds.split()]
        assert len(marked) == len(LAYERS)
        assert sum(marked) == stay


def test_the_drawing_of_a_job_names_every_process():
    for number in (1, 20, 21, 300, 301, 302):
        assert f"process {number}" in DRAWINGS["processes"]
