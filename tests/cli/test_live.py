"""The live view: a redrawn view for a person at a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from zorplex_rl.cli.live import LiveView

STEP = {
    "event": "step", "step": 12, "seconds": 14.2, "reward": 0.53, "accuracy": 0.41, "lag_mean": 0.4, "episodes_per_second": 231.2,
    "loss": 0.0131, "busy": {"generator 0": 0.87, "trainer": 0.41},
}  # fmt: skip
EVAL = {
    "event": "eval",
    "step": 10,
    "seconds": 12.0,
    "greedy_accuracy": 0.62,
    "sampled_accuracy": 0.55,
}
WAIT = {"event": "wait", "text": "sampling groups, 3 of 8: 5 s"}


def plain(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=False, highlight=False)


def terminal() -> Console:
    return Console(
        file=io.StringIO(),
        width=80,
        force_terminal=True,
        highlight=False,
        _environ={"TERM": "xterm"},
    )


def written(console: Console) -> str:
    return console.file.getvalue()


def rendered(view: LiveView, width: int = 80) -> str:
    console = plain(width)
    console.print(view.render())
    return written(console)


def test_off_a_terminal_a_step_an_evaluation_and_a_wait_are_one_plain_line_each_and_other_rows_none():
    console = plain()
    with LiveView(100, console) as view:
        view.update(STEP)
        view.update({"event": "restart", "step": 12})
        view.update(WAIT)
        view.update(EVAL)
    assert written(console).splitlines() == [
        "step  12/100  reward 0.53  accuracy 41%  lag 0.4  231 episodes/s",
        "sampling groups, 3 of 8: 5 s",
        "eval  10/100  greedy 62%  sampled 55%",
    ]


def test_a_line_is_logged_as_it_is_written_and_never_wrapped():
    console, line = plain(), "[ANSWER] 42 [bold]not bold[/bold] :smile: " + "folder/" * 40
    with LiveView(100, console) as view:
        view.log(line)
    assert written(console) == f"{line}\n"


def test_the_view_shows_the_step_the_numbers_the_time_left_how_busy_each_actor_is_and_what_is_waited_for():
    now = 0.0
    view = LiveView(100, Console(file=io.StringIO(), width=80, get_time=lambda: now))
    assert "step 0/100" in rendered(view) and "-:--:--" in rendered(view)
    now = 20.0
    view.update(STEP | {"step": 10})
    now = 40.0
    view.update(STEP | {"step": 20})
    view.update(EVAL)
    view.update(WAIT)
    shown = rendered(view)
    expected = (
        "step 20/100",
        "0:00:40 0:02:40",
        "231 episodes/s",
        "greedy 62%",
        "generator 0 87%",
        "trainer 41%",
        WAIT["text"],
    )
    assert [text for text in expected if text not in shown] == []
    assert re.search("━+", shown)
    # The clock goes on between steps, and nothing is waited for once it is there.
    now = 100.0
    assert "0:01:40" in rendered(view)
    view.update(STEP | {"step": 100})
    assert "0:01:40 0:00:00" in rendered(view) and WAIT["text"] not in rendered(view)


def test_in_a_terminal_the_view_is_redrawn_in_place_with_logged_lines_above_it_and_left_as_it_was():
    console = terminal()
    with pytest.raises(KeyboardInterrupt), LiveView(100, console) as view:
        view.update(STEP)
        view.log("checkpoint written")
        view.update(STEP | {"step": 13})
        raise KeyboardInterrupt
    shown = written(console)
    # The cursor goes up to draw over the last frame, and is shown again at the end.
    assert "\x1b[1A" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    last = shown.rindex("checkpoint written")
    assert "step 13/100" in re.sub(r"\x1b\[[\d;]*m", "", shown[last:])
