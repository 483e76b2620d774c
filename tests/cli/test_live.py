"""The live view: a redrawn view for a person at a terminal, plain lines for everyone else."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from zorplex_rl.cli.live import LEAST_BAR, MAX_ACTORS, LiveView

STEP = {
    "event": "step",
    "step": 12,
    "seconds": 14.2,
    "reward": 0.53,
    "accuracy": 0.41,
    "lag_mean": 0.4,
    "lag_max": 1,
    "episodes_per_second": 231.2,
    "entropy": 0.62,
    "loss": 0.0131,
    "busy": {"generator 0": 0.87, "trainer": 0.41},
}
EVAL = {"event": "eval", "step": 10, "seconds": 12.0, "greedy_accuracy": 0.62, "sampled_accuracy": 0.55}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    """What a person's shell sets must not decide what these tests see."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "NO_COLOR", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")


def rendered(view: LiveView, width: int = 80, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding=encoding), width=width)
    console.print(view.render())
    return raw.getvalue().decode(encoding)


def test_off_a_terminal_a_step_and_an_evaluation_are_one_plain_line_each(wording):
    stream = io.StringIO()
    with LiveView(100, stream) as view:
        view.update(STEP)
        view.update(EVAL)
    wording(stream.getvalue())


def test_every_line_is_flushed_when_it_is_written(tmp_path):
    with open(tmp_path / "log", "w") as stream, LiveView(100, stream) as view:
        view.update(STEP)
        assert (tmp_path / "log").read_text().startswith("step  12/100")


def test_a_dumb_terminal_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with LiveView(100, stream) as view:
        view.update(STEP)
    plain = io.StringIO()
    with LiveView(100, plain) as view:
        view.update(STEP)
    assert stream.getvalue() == plain.getvalue()


def test_a_line_is_never_wrapped_off_a_terminal():
    stream = io.StringIO()
    with LiveView(100, stream) as view:
        view.log("resume with zorplex-rl train --resume " + "folder/" * 40)
    assert stream.getvalue().count("\n") == 1


def test_a_line_is_logged_as_it_is_written():
    stream = io.StringIO()
    with LiveView(100, stream) as view:
        view.log("[ANSWER] 42 [bold]not bold[/bold] :smile:")
    assert stream.getvalue() == "[ANSWER] 42 [bold]not bold[/bold] :smile:\n"


@pytest.mark.parametrize("stream_type", [io.StringIO, Terminal])
def test_rows_may_lack_any_key(stream_type):
    for row in (STEP, EVAL):
        for key in row.keys() - {"event"}:
            with LiveView(100, stream_type()) as view:
                view.update({name: value for name, value in row.items() if name != key})
        with LiveView(100, stream_type()) as view:
            view.update({"event": row["event"]})


@pytest.mark.parametrize("stream_type", [io.StringIO, Terminal])
def test_values_that_are_not_finite_do_not_break_the_view(stream_type):
    row = {key: float("nan") if isinstance(value, float) and key != "seconds" else value for key, value in STEP.items()}
    with LiveView(100, stream_type()) as view:
        view.update(row | {"busy": {"trainer": float("nan")}})


def test_rows_of_other_events_are_not_shown():
    stream = io.StringIO()
    with LiveView(100, stream) as view:
        view.update({"event": "restart", "actor": "generator 0"})
        view.update({})
    assert stream.getvalue() == ""


def test_the_view_shows_the_step_the_numbers_and_how_busy_each_actor_is():
    view = LiveView(100, io.StringIO(), clock=lambda: 0.0)
    view.update(STEP)
    view.update(EVAL)
    shown = rendered(view)
    for text in ("step 12/100", "0:00:14", "reward 0.53", "accuracy 41%", "lag 0.4 (max 1)", "231 episodes/s"):
        assert text in shown
    assert re.search(r"held-out +greedy 62% +sampled 55% +at step 10", shown)
    assert re.search(r"generator 0 .* 87%", shown)
    assert re.search(r"trainer .* 41%", shown)


def test_the_busier_actor_has_the_longer_bar():
    view = LiveView(100, io.StringIO())
    view.update(STEP)
    lines = rendered(view).splitlines()
    generator, trainer = (next(line for line in lines if line.startswith(name)) for name in ("generator 0", "trainer"))
    assert generator.count("━") > trainer.count("━") > 0


def test_the_time_left_follows_from_the_pace_of_the_steps_seen():
    view = LiveView(100, io.StringIO(), clock=lambda: 0.0)
    view.update(STEP | {"step": 10, "seconds": 20.0})
    assert "left" not in rendered(view)
    view.update(STEP | {"step": 20, "seconds": 40.0})
    assert "0:00:40, 0:02:40 left" in rendered(view)
    view.update(STEP | {"step": 100, "seconds": 200.0})
    assert "0:03:20" in rendered(view)
    assert "left" not in rendered(view)


def test_the_clock_goes_on_between_steps():
    now = [0.0]
    view = LiveView(100, io.StringIO(), clock=lambda: now[0])
    view.update(STEP)
    now[0] = 60.0
    assert "0:01:14" in rendered(view)


@pytest.mark.parametrize("width", [40, 50, 60, 80, 100, 160])
def test_the_view_fits_its_width_and_breaks_no_field(width):
    view = LiveView(100_000, io.StringIO(), clock=lambda: 0.0)
    view.update(STEP | {"step": 88_888, "seconds": 3000.0, "busy": {"a generator with a very long name": 1.0}})
    view.update(STEP | {"step": 88_889, "seconds": 3001.0, "busy": {"a generator with a very long name": 1.0}})
    view.update(EVAL)
    lines = rendered(view, width).splitlines()
    assert max(map(len, lines)) <= width
    fields = ("step 88889/100000", "0:50:01, 3:05:11 left", "reward 0.53", "accuracy 41%", "entropy 0.62", "loss 0.013")
    fields += ("greedy 62%", "sampled 55%", "at step 10", "lag 0.4 (max 1)", "231 episodes/s", "100%")
    for field in fields:
        assert any(field in line for line in lines), field
    assert "a generator with a very long name" in " ".join(
        " ".join(re.sub("[━╸╺]+ *(100%)?", "", line) for line in lines).split()
    )
    assert any(re.search(f"[━╸╺]{{{LEAST_BAR}}}", line) for line in lines[:2]), "the bar of the steps"
    assert all(len(re.findall("[━╸╺]", line)) >= 6 for line in lines if re.search("[━╸╺]", line))
    assert len(lines) <= (10 if width < 60 else 7 if width < 80 else 6)


def test_at_40_columns_the_view_is_laid_out_line_by_line():
    view = LiveView(120, io.StringIO(), clock=lambda: 0.0)
    view.update(STEP)
    view.update(EVAL)
    shown = [line.rstrip() for line in rendered(view, 40).splitlines()]
    assert [re.sub("[━╸╺]+ +", "━ ", line) for line in shown] == [
        "step 12/120  ━ 0:00:14",
        "training  reward 0.53    accuracy 41%",
        "          entropy 0.62   loss 0.013",
        "held-out  greedy 62%   sampled 55%",
        "          at step 10",
        "pipeline  231 episodes/s",
        "          lag 0.4 (max 1)",
        "generator 0  ━ 87%",
        "trainer      ━ 41%",
    ]


def test_many_actors_share_a_line_so_that_the_view_stays_small():
    view = LiveView(100, io.StringIO())
    view.update(STEP | {"busy": {f"generator {i}": i / 20 for i in range(20)}})
    shown = rendered(view)
    assert f"{20 - MAX_ACTORS} more, 68% on average" in shown
    assert len(shown.splitlines()) < 24


def test_the_view_can_be_drawn_without_unicode():
    view = LiveView(100, io.StringIO())
    view.update(STEP)
    view.update(EVAL)
    assert "step 12/100" in rendered(view, encoding="ascii")


def test_in_a_terminal_the_view_is_redrawn_in_place_with_logged_lines_above_it():
    stream = Terminal()
    with LiveView(100, stream) as view:
        view.update(STEP)
        view.log("checkpoint written")
        view.update(STEP | {"step": 13})
    written = stream.getvalue()
    assert "\x1b[1A" in written  # the cursor goes up to draw over the last frame
    assert "\x1b[?25h" in written  # and is shown again at the end
    last = written.rindex("checkpoint written")
    assert "step 13/100" in re.sub(r"\x1b\[[\d;]*m", "", written[last:])


def test_an_error_inside_leaves_the_terminal_as_it_was():
    stream = Terminal()
    with pytest.raises(KeyboardInterrupt), LiveView(100, stream) as view:
        view.update(STEP)
        raise KeyboardInterrupt
    assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("\x1b[?25l")
