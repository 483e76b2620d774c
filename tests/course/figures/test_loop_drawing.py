"""The drawing of the loop lights the parts that a page is about, and says so to screen readers."""

from xml.etree import ElementTree

import pytest

from zorplex_rl.course.figures.loop_drawing import (
    ARROWS,
    BOX_HEIGHT,
    BOX_WIDTH,
    HEIGHT,
    PARTS,
    ROLES,
    WIDTH,
    loop_drawing,
)

SVG = "{http://www.w3.org/2000/svg}"


def lit_parts(drawing: str) -> set[str]:
    return {
        group.get("data-part")
        for group in ElementTree.fromstring(drawing).iter(f"{SVG}g")
        if group.get("data-lit") == "true"
    }


def test_the_named_parts_are_lit_and_without_names_all_of_them():
    assert lit_parts(loop_drawing("generator", "tools")) == {"generator", "tools"}
    assert lit_parts(loop_drawing()) == set(PARTS)


def test_a_part_has_its_roles_colour_only_where_it_is_lit():
    assert set(PARTS) == set(ROLES)
    for part, colour in ROLES.items():
        others = [name for name in PARTS if name != part]
        assert colour in loop_drawing(part)
        assert colour not in loop_drawing(*others)


def test_a_screen_reader_hears_which_parts_are_lit():
    said = ElementTree.fromstring(loop_drawing("reward")).get("aria-label")
    assert said.endswith("In colour: reward.")


def test_an_unknown_part_is_refused_with_the_names_that_there_are():
    with pytest.raises(ValueError, match="no part 'critic'.*trainer"):
        loop_drawing("critic")


def test_every_box_is_on_the_picture_and_every_arrow_begins_at_its_part_and_ends_before_the_next():
    def distance(part, point):
        left, top, _ = PARTS[part]
        beside = max(left - point[0], 0, point[0] - left - BOX_WIDTH)
        return max(beside, top - point[1], 0, point[1] - top - BOX_HEIGHT)

    for left, top, _ in PARTS.values():
        assert left >= 0 and top >= 0 and left + BOX_WIDTH < WIDTH and top + BOX_HEIGHT < HEIGHT
    for (start, end), corners in ARROWS.items():
        assert distance(start, corners[0]) == 0
        assert 0 < distance(end, corners[-1]) <= 3
