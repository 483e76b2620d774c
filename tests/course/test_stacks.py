"""The map of other stacks: complete, with a source for each line, and right about this package."""

from __future__ import annotations

import re
import shlex
from html import unescape
from pathlib import Path
from typing import get_args

import pytest
from pages import guarded_page
from prose import too_long

from zorplex_rl import __version__
from zorplex_rl.config import Config, LossName, TransportName
from zorplex_rl.course import stacks
from zorplex_rl.course.site import reference
from zorplex_rl.course.site.frame import stacks_page
from zorplex_rl.course.stacks import AXES, KNOBS, LAUNCHES, STACKS
from zorplex_rl.hosts.hosts import parse_hosts

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "10_scaling_out.py"
OURS = STACKS[0]
STALENESS, CORRECTION, TRANSFER, FAULTS = (
    list(AXES).index(axis)
    for axis in ("age of the data", "correction", "weight transfer", "when a process dies")
)
every_stack = pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.name)


def test_the_map_has_sixteen_stacks_on_eight_axes_ours_first():
    assert len(STACKS) == len({stack.name for stack in STACKS}) == 16
    assert len(AXES) == len(set(AXES.values())) == 8
    assert OURS.name == "Zorplex RL (ours)"
    assert [stack.name for stack in STACKS[1:]] == sorted(
        (s.name for s in STACKS[1:]), key=str.lower
    )


@every_stack
def test_every_line_has_a_source_and_every_source_a_version(stack):
    assert len(stack.cells) == len(AXES)
    for cell in stack.cells:
        assert cell.kind and cell.said
        assert cell.read_in, cell
        assert all(1 <= number <= len(stack.sources) for number in cell.read_in), cell
    used = {number for cell in stack.cells for number in cell.read_in}
    assert stack.sources
    for source in stack.sources:
        assert source.version
        assert stack is OURS or re.fullmatch(r"https://[^\s/]+/\S+", source.address)
    if stack is OURS:
        assert used == {1, 2}
    assert not re.search(
        r"\b(probably|likely|presumably|seems?)\b", " ".join(cell.said for cell in stack.cells)
    )


def test_the_map_says_when_it_was_read():
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", stacks.READ_ON)
    assert f"on {stacks.READ_ON}" in reference.content()
    assert f"]({reference.PAGE})" in NOTEBOOK.read_text()


@every_stack
def test_every_source_of_a_stack_is_cited(stack):
    cited = {number for cell in stack.cells for number in cell.read_in}
    assert cited == set(range(1, len(stack.sources) + 1))


def test_what_the_map_says_of_ours_is_what_the_package_does():
    transports = set(re.findall(r"`(\w+)`", OURS.cells[TRANSFER].said))
    assert transports == set(get_args(TransportName)) - {"auto"}
    settings = Config().settings()
    flags = {flag for cell in OURS.cells for flag in re.findall(r"`--([\w-]+)`", cell.said)}
    assert {"max-lag", "slots", "trainer-processes"} <= flags
    assert all(flag.replace("-", "_") in settings for flag in flags)
    assert OURS.cells[STALENESS].kind == "holds back"
    assert "GRPO's clip by default" in OURS.cells[CORRECTION].said
    assert settings["loss"] == "grpo"
    assert "spares" in settings
    assert all(source.version == __version__ for source in OURS.sources)


def test_what_the_knob_table_says_of_ours_is_a_setting():
    ours = " ".join(names[0] for names in KNOBS.values())
    settings = Config().settings()
    flags = re.findall(r"--([\w-]+)(?: (\w+))?", ours)
    assert {flag for flag, _ in flags} == {"max-lag", "generators", "slots", "transport", "loss"}
    assert all(flag.replace("-", "_") in settings for flag, _ in flags)
    assert {value for flag, value in flags if flag == "loss"} <= set(get_args(LossName))


def test_our_command_is_one_that_the_command_line_takes():
    words = shlex.split(LAUNCHES[0].command.replace("\\\n", " "))
    assert words[:2] == ["zorplex-rl", "train"]
    given = dict(zip(words[2::2], words[3::2], strict=True))
    values = {name.removeprefix("--").replace("-", "_"): value for name, value in given.items()}
    defaults = Config().settings()
    typed = {
        name: value if name == "hosts" else type(defaults[name])(value)
        for name, value in values.items()
    }
    config = Config().changed(**typed)
    config.check()
    assert (config.max_lag, config.services.generators) == (4, 2)
    assert parse_hosts(values["hosts"]) == ("attach", ["tls://node1:4444", "tls://node2:4444"])
    with pytest.raises(ValueError, match=r"prompts|generators"):
        Config().changed(**(typed | {"generators": 99})).check()


def test_five_commands_stand_beside_five_names_of_every_knob():
    names = [launch.stack for launch in LAUNCHES]
    assert names == ["Zorplex RL", "OpenRLHF", "TRL (AsyncGRPO)", "verl", "torchforge"]
    assert all(len(called) == len(names) for called in KNOBS.values())
    assert all(
        launch.sources and all(source.version for source in launch.sources) for launch in LAUNCHES
    )
    on_map = {stack.name.removesuffix(" (ours)") for stack in STACKS}
    assert set(names) <= on_map


@every_stack
def test_the_reference_page_shows_every_line_and_every_source_of_a_stack_without_scripts(stack):
    shown = re.sub(r"<script>.*?</script>", "", stacks_page(), flags=re.DOTALL)
    table = shown.partition('<table class="sortable">')[2].partition("</table>")[0]
    assert table.count("<tr>") == 1 + len(STACKS)
    row = table.partition(f'href="#{reference.anchor(stack.name)}"')[2].partition("</tr>")[0]
    assert re.findall(r"<td>(.*?)</td>", row) == [cell.kind for cell in stack.cells]
    details = shown.partition(f'id="{reference.anchor(stack.name)}"')[2].partition("</dl>")[0]
    assert details.count("<dd>") == len(AXES)
    assert all(
        source.address in details or not source.address.startswith("http")
        for source in stack.sources
    )


def test_the_reference_page_shows_all_commands():
    text = unescape(re.sub(r"<[^>]+>", "", reference.content()))
    assert all(launch.command.strip() in text for launch in LAUNCHES)


@pytest.mark.slow
@pytest.mark.parametrize("scripts", [True, False])
def test_in_a_browser_all_columns_of_the_table_are_seen_and_sort(tmp_path, chromium, scripts):
    address = tmp_path / "stacks.html"
    address.write_text(stacks_page(), encoding="utf-8")
    shown = {"viewport": {"width": 1280, "height": 900}, "java_script_enabled": scripts}
    with guarded_page(chromium, address.as_uri(), **shown) as page:
        page.goto(address.as_uri())
        table = page.locator("table.sortable")
        assert table.bounding_box()["x"] + table.bounding_box()["width"] <= 1280
        assert table.locator("tbody th").all_inner_texts() == [stack.name for stack in STACKS]
        assert table.get_by_role("button").count() == (len(AXES) + 1 if scripts else 0)
        if scripts:
            check_that_it_sorts(table)


def check_that_it_sorts(table):
    kinds, column = table.locator(f"tbody td:nth-child({FAULTS + 2})"), list(AXES)[FAULTS]
    table.get_by_role("button", name=column).click()
    assert kinds.all_inner_texts() == sorted(stack.cells[FAULTS].kind for stack in STACKS)
    table.get_by_role("button", name=column).click()
    assert kinds.all_inner_texts() == sorted(
        (stack.cells[FAULTS].kind for stack in STACKS), reverse=True
    )
    assert table.locator('[aria-sort="descending"]').count() == 1


def test_no_sentence_is_too_long():
    texts = [cell.said for stack in STACKS for cell in stack.cells]
    texts += [launch.note for launch in LAUNCHES]
    texts += [name for names in KNOBS.values() for name in names]
    texts += [*AXES.values(), *stacks.KINDS.values()]
    assert len(texts) > 120
    assert not [sentence for text in texts for sentence in too_long(text)]
    assert too_long("word " * 31)
