"""Timelines: what is recorded, how busy time is counted, and that a trace on disk is the timeline
again."""

from __future__ import annotations

import json
import pickle
import threading
from itertools import pairwise

import pytest

from zorplex_rl.run.timeline import Span, SpanRecorder, Timeline

RUN = [
    Span("trainer", "train", 1000.0, 1004.0, {"step": 1, "loss": 0.5}),
    Span("generator 0", "generate", 1000.5, 1006.0),
    Span("generator 0", "tool", 1002.0, 1007.0, {"word": "blip"}),
    Span("trainer", "idle", 1004.0, 1010.0),
]


def ticking_clock(*seconds: float):
    return iter(seconds).__next__


def test_a_span_is_recorded_with_its_actor_times_and_arguments():
    recorder = SpanRecorder("trainer", clock=ticking_clock(2.0, 5.0))
    with recorder.span("train", step=3):
        pass
    assert recorder.drain() == [Span("trainer", "train", 2.0, 5.0, {"step": 3})]


def test_the_body_may_add_arguments_that_it_learns_on_the_way():
    recorder = SpanRecorder("trainer")
    with recorder.span("train", step=3) as args:
        args["loss"] = 0.25
    assert recorder.drain()[0].args == {"step": 3, "loss": 0.25}


def test_a_span_is_recorded_also_when_its_body_raises():
    recorder = SpanRecorder("generator 0", clock=ticking_clock(1.0, 1.5))
    with pytest.raises(RuntimeError, match="out of memory"), recorder.span("generate"):
        raise RuntimeError("out of memory")
    assert recorder.drain() == [Span("generator 0", "generate", 1.0, 1.5)]


def test_draining_forgets_what_it_returns():
    recorder = SpanRecorder("trainer")
    with recorder.span("train"):
        pass
    assert len(recorder.drain()) == 1
    assert recorder.drain() == []


def test_memory_is_bounded_and_the_oldest_spans_are_dropped():
    recorder = SpanRecorder("trainer", capacity=3)
    for step in range(5):
        with recorder.span("train", step=step):
            pass
    assert [span.args["step"] for span in recorder.drain()] == [2, 3, 4]


def test_no_span_is_lost_or_doubled_when_threads_record_while_another_drains():
    recorder, drained, recording = SpanRecorder("generator 0"), [], threading.Event()

    def record(thread: int) -> None:
        for index in range(500):
            with recorder.span("tool", name=(thread, index)):
                pass

    def drain() -> None:
        while not recording.is_set():
            drained.extend(recorder.drain())

    drainer, writers = threading.Thread(target=drain), [threading.Thread(target=record, args=(t,)) for t in range(4)]
    for thread in (drainer, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    recording.set()
    drainer.join()
    names = [span.args["name"] for span in drained + recorder.drain()]
    assert sorted(names) == [(thread, index) for thread in range(4) for index in range(500)]


def test_a_span_can_travel_between_processes():
    assert pickle.loads(pickle.dumps(RUN)) == RUN


def test_actors_stand_in_the_order_in_which_they_were_added():
    assert Timeline(RUN).actors == ["trainer", "generator 0"]
    assert Timeline(RUN[::-1]).actors == ["trainer", "generator 0"]
    assert Timeline(RUN[1:]).actors == ["generator 0", "trainer"]


def test_a_timeline_reaches_from_its_first_start_to_its_last_end():
    timeline = Timeline()
    assert (timeline.start, timeline.end) == (0.0, 0.0)
    timeline.add(RUN)
    assert (timeline.start, timeline.end) == (1000.0, 1010.0)


def test_overlapping_spans_of_an_actor_are_counted_once():
    assert Timeline(RUN).busy_share("generator 0") == pytest.approx(0.65)
    inside = Timeline([Span("a", "generate", 0.0, 8.0), Span("a", "pull", 2.0, 3.0), Span("b", "train", 0.0, 10.0)])
    assert inside.busy_share("a") == pytest.approx(0.8)


def test_idle_spans_are_not_busy_time():
    assert Timeline(RUN).busy_share("trainer") == pytest.approx(0.4)


def test_busy_time_is_counted_within_the_window_only():
    assert Timeline(RUN).busy_share("trainer", window=(1003.0, 1005.0)) == pytest.approx(0.5)
    assert Timeline(RUN).busy_share("trainer", window=(1005.0, 1010.0)) == 0.0


def test_nothing_is_busy_in_a_window_without_length_or_an_empty_timeline():
    assert Timeline(RUN).busy_share("trainer", window=(1003.0, 1003.0)) == 0.0
    assert Timeline().busy_share("trainer") == 0.0
    assert Timeline().shares() == {}


def test_shares_give_every_kind_its_time_and_idle_the_rest():
    shares = Timeline(RUN).shares()
    assert shares["trainer"] == pytest.approx({"train": 0.4, "idle": 0.6})
    assert shares["generator 0"] == pytest.approx({"generate": 0.55, "tool": 0.5, "idle": 0.35})


def test_an_actor_that_did_nothing_in_the_window_is_all_idle_there():
    assert Timeline(RUN).shares(window=(1008.0, 1010.0))["generator 0"] == {"idle": 1.0}


def test_between_cuts_spans_at_the_window_and_leaves_out_what_lies_outside():
    cut = Timeline(RUN).between(1003.0, 1006.5)
    assert [(span.kind, span.start, span.end) for span in cut.spans] == [
        ("train", 1003.0, 1004.0),
        ("generate", 1003.0, 1006.0),
        ("tool", 1003.0, 1006.5),
        ("idle", 1004.0, 1006.5),
    ]
    assert cut.spans[0].args == {"step": 1, "loss": 0.5}
    assert Timeline(RUN).spans == RUN


def test_a_chrome_trace_counts_microseconds_from_the_timelines_start_and_names_the_actors():
    events = Timeline(RUN).to_chrome_trace()["traceEvents"]
    generate = next(event for event in events if event["name"] == "generate")
    assert (generate["ph"], generate["ts"], generate["dur"]) == ("X", 500_000, 5_500_000)
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names[generate["pid"]] == "generator 0"
    assert set(names.values()) == {"trainer", "generator 0"}
    train = next(event for event in events if event["name"] == "train")
    assert train["args"] == {"step": 1, "loss": 0.5}


def test_spans_that_overlap_never_share_a_lane_of_the_trace():
    spans = [Span("a", "tool", float(start), start + 2.5) for start in range(6)]
    events = [event for event in Timeline(spans).to_chrome_trace()["traceEvents"] if event["ph"] == "X"]
    for lane in {event["tid"] for event in events}:
        in_lane = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event["tid"] == lane)
        assert all(end <= start for (_, end), (start, _) in pairwise(in_lane))
    assert len({event["tid"] for event in events}) == 3


def test_a_saved_timeline_loads_as_an_equal_one(tmp_path):
    Timeline(RUN).save(tmp_path / "timeline.json")
    assert Timeline.load(tmp_path / "timeline.json") == Timeline(RUN)


def test_times_survive_a_save_to_the_microsecond(tmp_path):
    Timeline([Span("a", "train", 12345.6789012345, 12346.0000004321)]).save(tmp_path / "timeline.json")
    span = Timeline.load(tmp_path / "timeline.json").spans[0]
    assert (span.start, span.end) == pytest.approx((12345.6789012345, 12346.0000004321), abs=1e-6, rel=0)


def test_an_empty_timeline_can_be_saved_and_loaded(tmp_path):
    Timeline().save(tmp_path / "timeline.json")
    assert Timeline.load(tmp_path / "timeline.json") == Timeline()


def test_a_loss_that_is_not_a_number_leaves_the_trace_valid_json(tmp_path):
    Timeline([Span("trainer", "train", 0.0, 1.0, {"loss": float("nan")})]).save(tmp_path / "timeline.json")

    def refuse(constant: str):
        raise AssertionError(f"{constant} is not JSON")

    trace = json.loads((tmp_path / "timeline.json").read_text(), parse_constant=refuse)
    assert trace["traceEvents"][-1]["args"] == {"loss": "nan"}


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "timeline.json"
    Timeline(RUN).save(path)

    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    with pytest.raises(RuntimeError, match="no text"):
        Timeline([Span("a", "train", 0.0, 1.0, {"odd": Unprintable()})]).save(path)
    assert Timeline.load(path) == Timeline(RUN)
    assert [file.name for file in tmp_path.iterdir()] == ["timeline.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"traceEvents": [{"name": "train", "ph": "X", "pid": 1}]}'])
def test_a_file_that_is_no_trace_is_refused_by_name(tmp_path, text):
    path = tmp_path / "metrics.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="metrics.json is not a trace"):
        Timeline.load(path)
