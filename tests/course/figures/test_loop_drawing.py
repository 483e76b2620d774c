"""The drawing of the loop lights the parts that a page is about, and says so to screen readers."""

from xml.etree import ElementTree

import pytest

from zorplex_rl.course.figures.loop_drawing import ROLES, loop_drawing

SVG = "{http://www.w3.org/2000/svg}"


def lit(drawing: str, what: str = "data-part") -> set[str]:
    """The parts, or the arrows, that are lit."""
    groups = ElementTree.fromstring(drawing).iter(f"{SVG}g")
    return {group.get(what) for group in groups if group.get("data-lit") == "true"} - {None}


def test_the_named_parts_are_lit_and_without_names_all_of_them():
    assert lit(loop_drawing("generator", "tools")) == {"generator", "tools"}
    assert lit(loop_drawing()) == set(ROLES)


def test_an_arrow_is_lit_between_two_parts_that_are():
    some = loop_drawing("generator", "tools", "trainer")
    assert lit(some, "data-arrow") == {"generator, tools", "tools, generator"}
    assert len(lit(loop_drawing(), "data-arrow")) == 8


def test_a_part_has_its_roles_colour_and_loses_it_where_it_is_not_lit():
    root = ElementTree.fromstring(loop_drawing())
    for part, colour in ROLES.items():
        box = root.find(f"{SVG}g[@data-part='{part}']/{SVG}rect")
        assert box.get("fill") == box.get("stroke") == colour
    unlit = "[data-part][data-lit=false] rect{fill:none;stroke:currentColor;"
    assert unlit in root.find(f"{SVG}style").text


def test_a_screen_reader_hears_which_parts_are_lit():
    for parts, said in ((("reward",), "reward"), ((), "all parts")):
        label = ElementTree.fromstring(loop_drawing(*parts)).get("aria-label")
        assert label.endswith(f"In colour: {said}.")


def test_an_unknown_part_is_refused_with_the_names_that_there_are():
    with pytest.raises(ValueError, match="no part 'critic'.*trainer"):
        loop_drawing("critic")
