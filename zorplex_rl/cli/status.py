"""``zorplex-rl status RUN``: look into a run that goes on, from two sources.

    RUN/telemetry.json, written once a second by the run's controller      replicas: state, requests, replacements, latencies
    Monarch's tables, asked in SQL at the address that stands there        messages, failed calls, slowest endpoints, a trace

A run has both with ``train --telemetry`` (``training/telemetry.py``); else a sentence says why.
"""

import json
import time
import urllib.request
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from zorplex_rl.cli.flags import Command
from zorplex_rl.cli.output import one_line
from zorplex_rl.errors import ConfigError
from zorplex_rl.run_folder import RunFolder, expect_run, step_of

DONE, NOTHING_TO_SEE = 0, 1
QUERY_SECONDS = 60.0
SILENT_SECONDS = 10.0
"""A controller that has not reported for so long is busy with something else, or hangs."""
SLOWEST, LATEST = 12, 5
Rows = list[dict[str, Any]]

# Monarch's histograms are sums since the last row, so they add up. Without its own actors.
ENDPOINTS = """
    select attributes_json as endpoint, sum(count) as calls, sum(sum_f64) / sum(count) / 1000 as mean_ms, max(max_f64) / 1000 as max_ms
    from metric_histograms where name in ('endpoint_call_one_latency_us_histogram', 'endpoint_call_latency_us_histogram')
    group by attributes_json
"""
FAILURES = """
    select attributes_json as endpoint, sum(sum_u64) as calls from metric_sums
    where name in ('endpoint_call_one_error', 'endpoint_call_error') group by attributes_json
"""
MESSAGES = "select count(*) as messages, min(timestamp_us) as first, max(timestamp_us) as last from messages"
ALONE = """
    select display_name, new_status from (
        select actors.display_name, events.new_status,
               row_number() over (partition by events.actor_id order by events.timestamp_us desc) as age
        from actor_status_events as events join actors on actors.id = events.actor_id
        where actors.display_name like '%zorplex_rl.training.actors.%'
    ) where age = 1
"""
MONARCHS_OWN = ("telemetry", "TelemetryActor", "setup", "logger")


@dataclass(frozen=True)
class Status(Command):
    """Look into a run with --telemetry that goes on: replicas, messages, failures, endpoints."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    trace: Path | None = None
    """Also record the next --seconds of Monarch's trace to this file, for ui.perfetto.dev."""
    seconds: float = 5.0
    """How long to record."""


def status(command: Status) -> int:
    """Print what the run is doing. Returns the exit code: 1 if there is nothing to look into."""
    path = command.run
    expect_run(path, "the run")
    if command.trace and command.trace.exists():
        raise ConfigError(f"--trace {str(command.trace)!r} exists already; choose another file")
    if not 0 < command.seconds <= 600:
        raise ConfigError(f"--seconds is {command.seconds:g}; it must be above 0 and at most 600")
    folder = RunFolder(path)
    report, is_under_way = _report_of(folder), folder.is_under_way
    if report is None or not is_under_way:
        print(_why_nothing(folder, report, is_under_way))
        _print_warnings(folder)
        return NOTHING_TO_SEE

    print(_headline(path, report))
    _print_warnings(folder)
    # What the controller knows comes first, and also where Monarch does not answer.
    _print_table("replicas", _replicas(report["services"]))
    ask = partial(_query, report["url"])
    try:
        _print_table("one of each", _alone(ask(ALONE), {service["name"] for service in report["services"]}))
        _print_table("slowest endpoints", _endpoints(ask(ENDPOINTS), ask(FAILURES)))
        print(_messages(ask(MESSAGES)[0]))
        if command.trace:
            print(_record(report["url"], command.trace, command.seconds))
    except (OSError, ValueError, RuntimeError) as error:
        print(f"Monarch's tables cannot be read at {report['url']}: {error}")
        return NOTHING_TO_SEE
    for row in [row for row in folder.metrics() if row["event"] == "restart"][-LATEST:]:
        seconds = f"{row['recovery_seconds']:.1f} s"
        print(f"step {row['step']}: {row['died']} died ({row['reason']}); {row['took_over']} took over after {seconds}")
    return DONE


def _report_of(folder: RunFolder) -> dict[str, Any] | None:
    """Return what the controller wrote last, or None: the run has no telemetry, or is over."""
    try:
        return json.loads(folder.telemetry.read_text())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        # It is written whole, so no run of ours has written this.
        return {}


def _why_nothing(folder: RunFolder, report: dict[str, Any] | None, is_under_way: bool) -> str:
    """Return the sentence that says why there is nothing to look into."""
    where, steps = str(folder.path), [row["step"] for row in folder.metrics() if row["event"] == "step"]
    done = f"{steps[-1] if steps else 0} steps"
    if is_under_way:
        config = json.loads((folder.path / "config.json").read_text())
        if config.get("telemetry"):
            return f"the run in {where} is starting or ending; ask again in a few seconds"
        return f"the run in {where} goes on ({done} so far) without telemetry; only a run begun with --telemetry can be looked into"
    newest = folder.newest_checkpoint()
    again = "; it left no checkpoint to go on from"
    if newest:
        again = f"; to go on from step {step_of(newest)}: {folder.resume_command}"
    if report is not None:
        return f"the run in {where} was killed after {done}{again}"
    if folder.policy.is_dir() and any(row.get("final") for row in folder.evaluations()):
        return f"the run in {where} is over: it has finished, after {done}"
    return f"the run in {where} is over: it was stopped after {done}{again}"


def _headline(path: Path, report: dict[str, Any]) -> str:
    silent = time.time() - report["at"]
    late = f"; its controller has not reported for {silent:.0f} s" if silent > SILENT_SECONDS else ""
    return f"the run in {path} is at step {report['step']} of {report['steps']}{late}"


def _print_warnings(folder: RunFolder) -> None:
    """Print the latest of what the run's user should know."""
    for row in [row for row in folder.metrics() if row["event"] == "warning"][-LATEST:]:
        print(f"step {row['step']}: {one_line(row.get('text', ''))}")


def _replicas(services: Rows) -> Rows:
    """Return a row for each replica of a service; the first one has what counts for all."""
    rows: Rows = []
    for service in services:
        for index, replica in enumerate(service["replicas"]):
            # One that is being started has no name yet.
            name = f"{service['name']} {replica['place']}" if replica["replica"] == "—" else replica["replica"]
            row = (
                {"replica": name}
                | {key: replica[key] for key in ("state", "pid", "requests")}
                | {"in flight": replica["in_flight"]}
            )
            row["up"] = f"{replica['up']:.0f} s"
            if index == 0:
                row |= {"waiting": service["queue_depth"], "replaced": service["restarts"], "failed": service["errors"]}
                row |= {"p50 ms": f"{service['p50']:.1f}", "p95 ms": f"{service['p95']:.1f}"}
            rows.append(row)
    return rows


def _alone(rows: Rows, services: set[str]) -> Rows:
    """Return a row for every single role. No service probes it: the state is Monarch's note."""
    # "<root>.<zorplex_rl.training.actors.DatasetActor dataset{'procs': 0/1}>"
    states = {row["display_name"].partition("{")[0].rpartition(" ")[2]: row["new_status"] for row in rows}
    return [
        {"role": name, "state": state.lower()}
        for name, state in sorted(states.items())
        if name.rpartition("_")[0] not in services
    ]


def _endpoints(times: Rows, failures: Rows) -> Rows:
    """Return the endpoints with the longest mean time to answer; some wait by intention."""
    failed = {row["endpoint"]: row["calls"] for row in failures}
    rows: Rows = []
    for row in sorted(times, key=lambda row: -row["mean_ms"]):
        names = json.loads(row["endpoint"])
        is_monarchs = names["actor"] in MONARCHS_OWN or names["method"].startswith("__")
        if is_monarchs or names["actor"].endswith("_probe"):
            continue
        shown = {
            "endpoint": f"{names['actor']}.{names['method']}",
            "calls": row["calls"],
            "raised or died": failed.get(row["endpoint"], 0),
        }
        rows.append(shown | {"mean ms": f"{row['mean_ms']:.1f}", "longest ms": f"{row['max_ms']:.1f}"})
    return rows[:SLOWEST]


def _messages(row: dict[str, Any]) -> str:
    if not row["messages"]:
        return "no message has been recorded yet"
    seconds = max((row["last"] - row["first"]) / 1e6, 1e-3)
    return f"{row['messages']:,} messages received within {seconds:.0f} s, {row['messages'] / seconds:.0f} a second"


def _record(url: str, file: Path, seconds: float) -> str:
    """Record Monarch's trace for ``seconds`` into ``file``. Returns what to say about it."""
    from zorplex_rl.training.telemetry import record_trace

    record_trace(url, file, seconds)
    return f"{seconds:g} s of Monarch's trace are in {file}; open it in https://ui.perfetto.dev"


def _print_table(title: str, rows: Rows) -> None:
    """Print ``rows`` under the names of their values. A value that a row lacks is left blank."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, *([str(row.get(name, "")) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print(f"\n{title}")
    for line in lines:
        cells = (
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        print(f"  {'  '.join(cells)}".rstrip())


def _query(url: str, sql: str) -> Rows:
    """Return Monarch's rows for ``sql``. Raises OSError for silence, ValueError for no rows."""
    asked, kind = json.dumps({"sql": sql}).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/api/query", asked, kind)
    # A proxy that is set for the web cannot reach this machine's loopback interface.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=QUERY_SECONDS) as answer:
        return json.load(answer)["rows"]
