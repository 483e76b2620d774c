# /// script
# [tool.marimo.display]
# theme = "system"
# ///

import marimo

__generated_with = "0.25.2"
app = marimo.App(
    width="medium",
    app_title="Part of notebook 10: hosts",
    css_file="../zorplex_rl/viz/lesson.css",
)

with app.setup(hide_code=True):
    import asyncio
    import contextlib
    import inspect
    import os
    import re
    import shutil
    import signal
    import socket
    import subprocess
    import sys
    import tempfile
    import threading
    import time
    from pathlib import Path
    from types import SimpleNamespace

    import marimo as mo

    import zorplex_rl
    from zorplex_rl.analysis.timeline import Timeline
    from zorplex_rl.config import Config
    from zorplex_rl.run_folder import RunFolder
    from zorplex_rl.services.host import MARGIN_SECONDS
    from zorplex_rl.services.runtime import SECRET, Actor
    from zorplex_rl.training.hosts import THIS, PlanRow, open_hosts
    from zorplex_rl.training.namespaces import namespaced_hosts, why_not
    from zorplex_rl.viz import exercise, host_charts, lesson, scene
    from zorplex_rl.viz.plug_in import plug_in
    from zorplex_rl.viz.widgets import LiveCurve

    SCRATCH = tempfile.TemporaryDirectory(prefix="zorplex_rl_10_hosts_")
    PORT = 4444
    # Programs that run on another host do not see this folder as their own.
    ENVIRONMENT = os.environ | {
        SECRET: os.urandom(8).hex(),
        "PYTHONPATH": os.pathsep.join(
            filter(
                None,
                (str(Path(zorplex_rl.__file__).parents[1]), os.environ.get("PYTHONPATH")),
            )
        ),
    }


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Hosts

    One machine is not enough any more. The trainer goes on one host, generators on others, and only messages pass between them. Two new things
    can happen then. A host dies as a whole, with everything on it. Or a cable is cut: everything on the host goes on, and nobody hears of it.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        host_charts.two_hosts(),
        "Who lives where, and who watches whom. Small roles stay beside the controller, which alone writes the run's folder.",
    )
    return


@app.cell
def settings_hosts():
    hosts_config = SimpleNamespace(
        lease=1.0,  # seconds, of the page's hosts
        package_lease=4.0,  # seconds, the least that the package takes
        drift=1.0,  # in the exercise: the host's clock runs at half speed
        steps=20,  # of the run over two hosts
        kill_after=7,  # steps
        eval_every=5,
        eval_tasks=50,
        run_lease=10.0,  # seconds, of the run's hosts
    )
    return (hosts_config,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### A lease, in its simplest form

    From outside, a dead host and one that is cut off look alike: silence. If the controller starts a new trainer at once, there may be two. Both
    write checkpoints, both publish weights. Notebook 03 sent `kill -9` before it started a successor. That was **fencing**, and it needs a way to the
    host, which is what is missing now.

    A **lease** needs none. The host promises to end by itself. It sends the controller a *token*, the time on its own clock, and the
    controller sends it back. Once the newest token that came back is `lease` seconds old, the host kills its trainer. The controller
    starts a successor only when that time is over.
    """)
    return


@app.function
def trainer():
    while True:
        print(time.monotonic(), flush=True)
        time.sleep(0.01)


@app.function
def host(port, lease, drift, program, ledger):
    def clock():
        return time.monotonic() / (1 + drift)  # slow, if there is a drift

    with open(ledger, "w") as file:
        child = subprocess.Popen([sys.executable, "-c", program], stdout=file)
    while not os.path.getsize(ledger):
        time.sleep(0.01)  # its trainer is not up yet
    link = socket.socket(type=socket.SOCK_DGRAM)
    link.settimeout(0.05)
    newest = clock()
    while clock() < newest + lease:
        link.sendto(str(clock()).encode(), ("127.0.0.1", port))
        with contextlib.suppress(TimeoutError):
            newest = max(newest, float(link.recv(64)))
        time.sleep(0.05)
    child.kill()


@app.function
def renew(link, tokens):
    for _ in range(tokens):
        token, there = link.recvfrom(64)
        heard = time.monotonic()
        link.sendto(token, there)
    return heard


@app.function
def two_lives(fault, lease, may_start, drift=0.0):
    with HostProcess(lease, drift) as first, HostProcess(lease) as second:
        first.start()
        heard = renew(first.link, tokens=20)
        struck = time.monotonic()
        if fault == "kill -9":
            first.kill()  # the host and its trainer at once
        # Cut off: from here on nobody hears it, and nobody answers.
        while not may_start(time.monotonic() - MARGIN_SECONDS, heard, lease, drift):
            time.sleep(0.01)
        second.start()
        renew(second.link, tokens=10)
        while first.is_running():
            renew(second.link, tokens=1)
    return lives_of(first, second, struck, heard, heard + lease * (1 + drift))


@app.class_definition(hide_code=True)
class HostProcess:
    """``host`` as a process of its own, with the controller's end of its link. Ends with the block, its trainer too."""

    def __init__(self, lease, drift=0.0):
        self.lease, self.drift = lease, drift
        self.process = None
        self.folder = tempfile.TemporaryDirectory(dir=SCRATCH.name)
        self.ledger = Path(self.folder.name) / "ledger"

    def __enter__(self):
        self.link = socket.socket(type=socket.SOCK_DGRAM)
        self.link.bind(("127.0.0.1", 0))
        self.link.settimeout(60)
        return self

    def start(self):
        port = self.link.getsockname()[1]
        arguments = (port, self.lease, self.drift, as_program(trainer), str(self.ledger))
        self.process = subprocess.Popen(
            [sys.executable, "-c", as_program(host, *arguments)], start_new_session=True
        )

    def is_running(self):
        return self.process.poll() is None

    def kill(self):
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def __exit__(self, *_):
        self.kill()
        self.link.close()
        self.wrote = moments_in(self.ledger)
        self.folder.cleanup()


@app.function(hide_code=True)
def as_program(function, *arguments):
    """The text of a program that calls a function of this page."""
    imports = "import contextlib, os, socket, subprocess, sys, time"
    return f"{imports}\n{source_of(function)}\n{function.__name__}(*{arguments!r})"


@app.function(hide_code=True)
def source_of(defined):
    """The source of a function or class of this page, as it stands here."""
    source = inspect.getsource(defined)
    return source[re.search(r"^(async def|def|class) ", source, re.MULTILINE).start() :]


@app.function(hide_code=True)
def moments_in(ledger):
    """What a trainer wrote. A line that was cut off by a kill is no moment."""
    text = ledger.read_text() if ledger.exists() else ""
    return [float(line) for line in text.rpartition("\n")[0].split()]


@app.function(hide_code=True)
def lives_of(first, second, struck, heard, over):
    return host_charts.Lives(
        [moment - struck for moment in first.wrote],
        [moment - struck for moment in second.wrote],
        heard - struck,
        over - struck,
    )


@app.cell(hide_code=True)
def _():
    mo.md("""
    `host` runs as a process of its own, its trainer as another. They speak UDP, which tells nobody that the other end is gone. The trainer stands for a real
    one: a hundred times a second it writes the time into a file. `MARGIN_SECONDS` is the package's: a keeper looks at its clock only now and
    then.
    """)
    return


@app.cell(hide_code=True)
def _(hosts_config):
    ask_silence = lesson.predict(
        f"The lease is {hosts_config.lease:g} s. One host gets `kill -9`, the other one is cut off. Under which fault can the successor start sooner?",
        "after `kill -9`: nothing is left that could do harm",
        "after the cut: nobody has to be killed",
        "under neither: both wait for the lease",
    )
    ask_silence
    return (ask_silence,)


@app.cell(hide_code=True)
def _():
    start_lives = lesson.start_button("Kill one host, cut the other off", seconds=8)
    start_lives
    return (start_lives,)


@app.cell
def _(hosts_config, start_lives):
    lesson.wait_for(start_lives)

    def at_the_end_of_the_lease(now, last_renewed, lease, drift):
        return now >= last_renewed + lease

    with mo.status.spinner("Two hosts, two faults", remove_on_exit=True):
        lives = {
            fault: two_lives(fault, hosts_config.lease, at_the_end_of_the_lease)
            for fault in ("kill -9", "cut off")
        }
    return (lives,)


@app.cell(hide_code=True)
def _(ask_silence, hosts_config, lives):
    _waits = {fault: found.second[0] for fault, found in lives.items()}
    _sooner = abs(_waits["kill -9"] - _waits["cut off"]) > hosts_config.lease
    _together = max(found.together for found in lives.values())
    lesson.reveal(
        ask_silence,
        right=(0 if _waits["kill -9"] < _waits["cut off"] else 1) if _sooner else 2,
        why=f"""
        The successors wrote first {_waits["kill -9"]:.2f} s after `kill -9` and {_waits["cut off"]:.2f} s after the cut. The killed trainer was silent at once, the one that was cut off went on
        for {lives["cut off"].first[-1]:.2f} s. The controller saw the same of both. {"At no moment did two trainers live." if _together < 0 else f"Two trainers lived for {_together:.2f} s: a keeper on this busy machine was later than the margin."}
        """,
        shows=[
            lesson.figure(
                host_charts.lives_chart(lives),
                "From the first to the last line that each trainer wrote.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### The package's lease

    `HostKeeper` in `services/host.py` is `host` above as an actor: a thread watches its lease, and ends the worker with all its processes. `Host` is the
    controller's side. Its `lost` is set when the host is not heard any more, and `until_ended` waits for the end of the lease. The input is the same: a trainer
    that writes the time, on a host whose link is cut, here for real.
    """)
    return


@app.class_definition
class Clock(Actor):
    """Stand for a trainer: write the time into a ledger, a hundred times a second."""

    def __init__(self, ledger):
        threading.Thread(target=self.write, args=(ledger,), daemon=True).start()

    def write(self, ledger):
        with open(ledger, "w") as file:
            while True:
                print(time.monotonic(), file=file, flush=True)
                time.sleep(0.01)


@app.function
async def two_lives_of_the_package(addresses, lease):
    async with open_hosts(Config().changed(hosts=addresses, lease=lease)) as found:
        first, second = found.hosts
        await found.spawn(first.name, "trainer", Clock, "/tmp/ledger")
        await asyncio.sleep(2)
        print("cut it off", flush=True)
        await first.lost.wait()
        print(time.monotonic(), flush=True)  # noticed
        await first.until_ended()
        print(time.monotonic(), flush=True)  # ended, as the controller counts
        await found.spawn(second.name, "trainer", Clock, "/tmp/ledger")
        await asyncio.sleep(2)


@app.cell(hide_code=True)
def _():
    start_package = lesson.start_button("Cut off a host of the package", seconds=20)
    start_package
    return (start_package,)


@app.cell(hide_code=True)
def _(hosts_config, lives, start_package):
    lives  # one after the other
    lesson.wait_for(start_package)
    with mo.status.spinner("Two hosts of the package", remove_on_exit=True):
        cut_for_real = None if why_not() else cut_a_host(hosts_config.package_lease)
    return (cut_for_real,)


@app.function(hide_code=True)
def cut_a_host(lease):
    """Run ``two_lives_of_the_package`` on a host, with workers on two others, and cut the first worker's off. Returns the lives, and the seconds to the notice."""
    program = "\n".join(
        [
            "import asyncio, threading, time",
            "from zorplex_rl.config import Config",
            "from zorplex_rl.services.runtime import Actor",
            "from zorplex_rl.training.hosts import open_hosts",
            *map(source_of, (Clock, two_lives_of_the_package)),
        ]
    )
    with two_workers() as (network, addresses), contextlib.ExitStack() as around:
        program += f"\nasyncio.run(two_lives_of_the_package({addresses!r}, {lease}))"
        controller = network["controller"].popen(
            sys.executable, "-c", program, cwd="/", env=ENVIRONMENT,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        around.callback(controller.communicate)
        around.callback(controller.kill)
        # Monarch says first where its log is.
        lines = iter(controller.stdout.readline, "")
        if not any("cut it off" in line for line in lines):
            raise RuntimeError(controller.stderr.read())
        struck = time.monotonic()
        network["first"].cut()
        noticed, ended = (float(next(lines)) for _ in range(2))
        controller.wait()
        wrote = [
            moments_in(found.path("/tmp/ledger")) for found in workers_of(network).values()
        ]
    over = ended - MARGIN_SECONDS
    first, second = (SimpleNamespace(wrote=moments) for moments in wrote)
    return lives_of(first, second, struck, over - lease, over), noticed - struck


@app.cell(hide_code=True)
def _(cut_for_real, hosts_config):
    if cut_for_real is None:
        _shown = lesson.md(
            f"Not run here: {why_not()}. `tests/test_hosts.py` cuts a host off."
        )
    else:
        _lives, _noticed = cut_for_real
        _shown = mo.vstack(
            [
                lesson.figure(
                    host_charts.lives_chart({"package": _lives}),
                    f"The same claim for the package: a host is cut off, with a lease of {hosts_config.package_lease:g} s.",
                ),
                lesson.md(f"""
                The loss was noticed after {_noticed:.1f} s. The trainer went on until its keeper ended it, {_lives.first[-1]:.1f} s after the cut. Its successor wrote from
                {_lives.second[0]:.1f} s on. {"At no moment did two trainers live." if _lives.together < 0 else f"Two trainers lived for {_lives.together:.2f} s."}
                """),
            ]
        )
    _shown
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise: a clock that runs slow

    The host counts `lease` seconds on its *own* clock. While it counts one second, up to `1 + drift` seconds pass for the controller. Complete
    `successor_may_start`: `now` and `last_renewed`, when the newest token came, are times of the controller's clock. Return whether the host's trainer has surely ended by `now`.

    Yours is *plugged in* below, right or wrong, as soon as it returns truth values.
    """)
    return


@app.function
def successor_may_start(now, last_renewed, lease, drift):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: successor_may_start,
        check_successor_may_start,
        successor_may_start_solution,
        level="core",
        minutes=4,
        hints=(
            "How long can the host take, by the controller's clock, to count `lease` seconds?",
            "`lease * (1 + drift)` seconds at most, and it begins no later than at `last_renewed`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    start_slow = lesson.start_button("Cut off a host whose clock is slow", seconds=5)
    start_slow
    return (start_slow,)


@app.cell
def _(hosts_config, lives, start_slow):
    lives  # one after the other
    lesson.wait_for(start_slow)
    _rule, whose_rule = plug_in(
        successor_may_start, successor_may_start_solution, ends_some_day
    )
    with mo.status.spinner("A slow clock", remove_on_exit=True):
        slow = two_lives("cut off", hosts_config.lease, _rule, hosts_config.drift)
    return slow, whose_rule


@app.cell(hide_code=True)
def _(hosts_config, slow, whose_rule):
    mo.vstack(
        [
            lesson.figure(
                host_charts.lives_chart({"slow clock": slow}),
                "The host is cut off at 0. Where two trainers live, the time is marked.",
            ),
            lesson.md(f"""
            The host counted {hosts_config.lease:g} s, and {slow.first[-1] - slow.heard:.1f} s passed. When to start the successor was decided by {whose_rule}.
            {f"Two trainers lived for {slow.together:.1f} s." if slow.together > 0 else "At no moment did two trainers live."} Real clocks differ by far less, a few millionths, so the package
            has only its margin of {MARGIN_SECONDS:g} s.
            """),
        ]
    )
    return


@app.function(hide_code=True)
def ends_some_day(rule):
    """Whether the page can run with this rule: it answers yes or no, and one day yes."""
    answers = [rule(now, 0.0, 1.0, 1.0) for now in (-1.0, 0.5, 60.0)]
    return all(isinstance(answer, bool) for answer in answers) and answers[-1]


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### A run over two hosts

    `zorplex-rl train --hosts` does this with real roles. A keeper on each host has the lease (`services/host.py`), and a placement says who lives where (`training/hosts.py`). Where this
    page may make namespaces, its hosts are as real as one machine allows. Each has its own network, process ids, host name, `/dev/shm` and `/tmp`. Elsewhere two
    plain processes stand in for them.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_plan = lesson.predict(
        "Two hosts, a trainer and two generators. Roles are placed one by one, each on the host with the fewest. Which host gets the trainer, and which the generators?",
        "the first has the trainer, the second both generators",
        "the first has the trainer and one generator, the second the other one",
        "the second has the trainer, the first both generators",
    )
    ask_plan
    return (ask_plan,)


@app.cell
def _(hosts_config):
    hosts_flag = (
        "processes:2" if why_not() else "attach:tcp://10.77.0.2:4444,tcp://10.77.0.3:4444"
    )
    placed = PlanRow.rows(Config().changed(hosts=hosts_flag, generators=2))
    train_flags = [
        *("--hosts", hosts_flag, "--lease", f"{hosts_config.run_lease:g}"),
        *("--generators", "2", "--steps", f"{hosts_config.steps}"),
        *("--eval-every", f"{hosts_config.eval_every}"),
        *("--eval-tasks", f"{hosts_config.eval_tasks}"),
    ]
    return hosts_flag, placed, train_flags


@app.cell(hide_code=True)
def _(ask_plan, placed, train_flags):
    _where = {replica: row.host for row in placed for replica in row.replicas}
    _, _first, _second = (row.host for row in placed)
    _generators = [_where["generator_0"], _where["generator_1"]]
    lesson.reveal(
        ask_plan,
        right={
            (_first, (_second, _second)): 0,
            (_first, (_first, _second)): 1,
            (_second, (_first, _first)): 2,
        }.get(
            (_where["trainer"], tuple(sorted(_generators, key=[_first, _second].index))), []
        ),
        why=f"""
        This is what `zorplex-rl train {" ".join(train_flags[:2])} … --plan` prints. It starts nothing. The trainer is on {_where["trainer"]}, the generators are on {" and ".join(_generators)}.
        """,
        shows=[
            lesson.table(
                "The plan",
                [
                    {"host": row.host, "what lives there": ", ".join(row.replicas)}
                    for row in placed
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    ask_bytes = lesson.predict(
        "Checkpoints come from the trainer, on the first host. Who writes the run's folder, and how many of its bytes does a host write?",
        "the trainer's host writes the checkpoints, some megabytes",
        "every host writes its share",
        "none: the controller writes all of it",
    )
    ask_bytes
    return (ask_bytes,)


@app.cell(hide_code=True)
def _(hosts_config):
    ask_notice = lesson.predict(
        f"Then the host of `generator_0` dies, with a lease of {hosts_config.run_lease:g} s. When does the controller notice, and count the generator as lost?",
        "at once, within a quarter of a second",
        "within seconds, long before the lease is over",
        "when the lease is over",
    )
    ask_notice
    return (ask_notice,)


@app.cell(hide_code=True)
def _():
    ask_suffers = lesson.predict(
        "The killed generator had groups half sampled. Compare the last greedy accuracy before the kill with that after the last step. What happens to it?",
        "it drops by more than five points",
        "it stays or rises: only time is lost",
    )
    ask_suffers
    return (ask_suffers,)


@app.cell(hide_code=True)
def _():
    start_run = lesson.start_button("Start two hosts and train on them", seconds=60)
    start_run
    return (start_run,)


@app.cell(hide_code=True)
def _(hosts_config, start_run):
    lesson.wait_for(start_run)
    run_curve = LiveCurve(hosts_config.steps, title="Accuracy over two hosts")
    run_curve
    return (run_curve,)


@app.cell(hide_code=True)
async def _(run_curve, start_run, train_flags):
    await scene.leave("10 hosts")  # what an earlier run of this cell has left open
    lesson.wait_for(start_run)
    run_curve.clear()
    with mo.status.spinner("Starting two hosts", remove_on_exit=True):
        stage = await scene.enter("10 hosts", running_on_two_hosts(train_flags, run_curve))
    lesson.md(
        f"Training has begun on {stage.kind}. Kill a host when you have seen some steps."
    )
    return (stage,)


@app.cell(hide_code=True)
def _(stage):
    stage
    kill_host = lesson.start_button("Kill the host of generator_0", seconds=40)
    kill_host
    return (kill_host,)


@app.cell(hide_code=True)
async def _(hosts_config, kill_host, stage):
    lesson.wait_for(kill_host)
    try:
        with mo.status.progress_bar(
            total=hosts_config.steps, title="Steps", remove_on_exit=True
        ) as _bar:
            _shown = 0
            while not stage.over.is_set():
                _done = stage.steps()
                if stage.killed is None and _done >= hosts_config.kill_after:
                    stage.kill()
                if _done > _shown:
                    _bar.update(_done - _shown)
                    _shown = _done
                await asyncio.sleep(0.1)
    finally:
        await scene.leave("10 hosts")
    mo.stop(
        stage.killed is None,
        lesson.md(
            "The run was over before its host was killed. Start it again, two buttons up."
        ),
    )
    assert stage.code == 0, stage.said[-1] if stage.said else "the run said nothing"
    lost = SimpleNamespace(stage=stage, folder=RunFolder(stage.copy), killed=stage.killed)
    return (lost,)


@app.class_definition(hide_code=True)
class TwoHosts:
    """A run over two hosts: where its files are, how far it is, and how to kill the second host."""

    def __init__(self, command, kind, folder, kill, look_at_hosts):
        self.kind, self.folder, self._kill, self.look = kind, folder, kill, look_at_hosts
        self.killed = None  # the moment
        self.seen, self.said = {}, []
        self.over, self.code = asyncio.Event(), None
        self.copy = Path(tempfile.mkdtemp(dir=SCRATCH.name)) / "run"
        # A closed pipe ends the run: it does not outlive this process.
        self.process = subprocess.Popen(
            command,
            cwd="/",
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.process.stdout:
            self.said.append(line.strip())

    def rows(self):
        return RunFolder(self.folder).metrics()

    def steps(self):
        return sum(row["event"] == "step" for row in self.rows())

    def kill(self):
        self.seen |= self.look()
        self.killed = time.monotonic()
        self._kill(self.process.pid)

    async def follow(self, curve):
        """Show rows as they come, until the run is over; then keep its files."""
        shown = 0
        try:
            while self.process.poll() is None:
                await asyncio.sleep(0.3)
                rows = self.rows()
                for row in rows[shown:]:
                    curve.add_row(row)
                shown = len(rows)
            self.code = self.process.returncode
            self.seen = self.look() | self.seen
            shutil.copytree(self.folder, self.copy)
        finally:
            self.over.set()


@app.function(hide_code=True)
@contextlib.contextmanager
def two_workers():
    """A worker on each of two hosts, and a third host for their controller. Yields the hosts, and what to give to ``--hosts``."""
    with namespaced_hosts("controller", "first", "second") as network:
        workers = workers_of(network).values()
        for found in workers:
            found.popen(
                sys.executable, "-m", "zorplex_rl", "worker", "--listen", f"tcp://{found.address}:{PORT}",
                cwd="/", env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        while not all(found.listens(PORT) for found in workers):
            time.sleep(0.1)
        yield network, "attach:" + ",".join(f"tcp://{w.address}:{PORT}" for w in workers)


@app.function(hide_code=True)
def workers_of(network):
    return {name: network[name] for name in ("first", "second")}


@app.function(hide_code=True)
@contextlib.asynccontextmanager
async def running_on_two_hosts(flags, curve):
    """Start hosts and a run over them; all of it ends with the block."""
    train = [sys.executable, "-m", "zorplex_rl", "train", *flags]
    with contextlib.ExitStack() as around:
        if why_not():
            folder = Path(tempfile.mkdtemp(dir=SCRATCH.name)) / "run"
            stage = TwoHosts(
                [*train, "--out", str(folder)],
                "two processes",
                folder,
                kill_second_worker,
                dict,
            )
        else:
            network, _ = around.enter_context(two_workers())
            workers = workers_of(network)
            controller = network["controller"]

            def look_at_hosts():
                return {
                    name: bytes_on(found)
                    for name, found in workers.items()
                    if found.inside.is_up
                }

            stage = TwoHosts(
                controller.entered(*train, "--out", "/tmp/run", cwd="/"),
                "two hosts, each a set of namespaces",
                controller.path("/tmp/run"),
                lambda _: network["second"].kill(),
                look_at_hosts,
            )
        following = asyncio.create_task(stage.follow(curve))
        try:
            yield stage
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            if stage.process.poll() is None:
                stage.process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    await asyncio.to_thread(stage.process.wait, 20)
            around.close()
            stage.process.kill()
            stage.process.wait()


@app.function(hide_code=True)
def bytes_on(host):
    """Whether a host sees the run's folder, and how many bytes lie in its own /tmp and /dev/shm."""
    files = [
        path
        for folder in ("/tmp", "/dev/shm")
        for path in host.path(folder).rglob("*")
        if path.is_file()
    ]
    return host.path("/tmp/run").exists(), sum(path.stat().st_size for path in files)


@app.function(hide_code=True)
def kill_second_worker(controller):
    """Kill the second of the processes that stand for hosts. Those that it has started end with it."""
    listed = subprocess.run(
        ["ps", "-Awwo", "pid=,ppid=,command="], capture_output=True, text=True, check=True
    )
    for line in listed.stdout.splitlines():
        pid, parent, command = line.split(None, 2)
        if int(parent) == controller and "/host_1" in command:
            os.kill(int(pid), signal.SIGKILL)


@app.cell(hide_code=True)
def _(lost):
    _timeline = Timeline.load(lost.folder.timeline)
    _trained = [span for span in _timeline.spans if span.kind == "train"]
    _began = min(span.start for span in _trained)
    _restarts = [span for span in _timeline.spans if span.kind == "restart"]
    lost_run = host_charts.LostHost(
        steps=sorted(span.end - _began for span in _trained),
        greedy=[(row["step"], row["greedy_accuracy"]) for row in lost.folder.evaluations()],
        killed=lost.killed - _began,
        noticed=sorted(span.start - _began for span in _restarts),
        replaced=sorted(span.end - _began for span in _restarts),
    )
    pulled = {}
    for _span in _timeline.spans:
        if _span.kind == "pull":
            pulled.setdefault(_span.actor, []).append(_span.args["transport"])
    replaced = [row for row in lost.folder.metrics() if row["event"] == "restart"]
    return lost_run, pulled, replaced


@app.cell(hide_code=True)
def _(ask_notice, hosts_config, lost_run, replaced):
    _notice = lost_run.noticed[0] - lost_run.killed
    lesson.reveal(
        ask_notice,
        right=0 if _notice <= 0.25 else 1 if _notice < hosts_config.run_lease else 2,
        why=f"""
        After {_notice:.1f} s, and the replacement was ready {lost_run.replaced[0] - lost_run.killed:.1f} s after the kill. A generator need not wait for the lease. One that was given up answers nobody,
        because the router drops what comes late. Only what must not exist twice waits: a trainer would have started no sooner than {hosts_config.run_lease + MARGIN_SECONDS:g} s after the
        controller last heard of its host.
        """,
        shows=[
            lesson.figure(
                host_charts.lost_host_chart(lost_run),
                "The run's steps and its held-out accuracy, from its timeline and its metrics.",
            ),
            lesson.table(
                "What was replaced, and why",
                [
                    {
                        "died": row["died"],
                        "took over": row["took_over"],
                        "s": f"{row['recovery_seconds']:.1f}",
                        "why": lesson.quote(row["reason"].partition("\n")[0][:140]),
                    }
                    for row in replaced
                ],
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _(ask_suffers, lost_run):
    _before = [
        value
        for step, value in lost_run.greedy
        if step == 0 or lost_run.steps[step - 1] < lost_run.killed
    ][-1]
    _after = lost_run.greedy[-1][1]
    lesson.reveal(
        ask_suffers,
        right=0 if _after < _before - 0.05 else 1,
        why=f"""
        {_before:.0%} at the last evaluation before the kill, {_after:.0%} after {len(lost_run.steps)} steps. Groups that died with their generator were sampled again: same numbers, same tasks, same seeds. No batch was
        smaller for it.
        """,
    )
    return


@app.cell(hide_code=True)
def _(ask_bytes, lost):
    _size = sum(
        path.stat().st_size for path in lost.folder.path.rglob("*") if path.is_file()
    )
    _seen = lost.stage.seen
    lesson.reveal(
        ask_bytes,
        right=[] if not _seen else 0 if any(sees for sees, _ in _seen.values()) else 2,
        why=f"""
        The folder has {_size / 1e6:.1f} MB. {"No host even sees it: checkpoints and the policy came to the controller as messages." if _seen and not any(sees for sees, _ in _seen.values()) else "These stand-ins share a disk with the controller, so this run cannot show who wrote."} So a
        run needs no file system that its hosts share.
        """,
        shows=[
            lesson.table(
                "Files on the hosts: the second as it was killed, the first at the end",
                [
                    {
                        "host": name,
                        "sees the run's folder": "yes" if sees else "no",
                        "bytes in its own /tmp and /dev/shm": f"{size:,}",
                    }
                    for name, (sees, size) in sorted(_seen.items())
                ],
            )
        ]
        if _seen
        else [],
    )
    return


@app.cell(hide_code=True)
def _(placed, pulled, replaced):
    _where = {replica: row.host for row in placed for replica in row.replicas}
    # One host was left, the trainer's, when the others were replaced.
    _where |= {row["took_over"]: _where["trainer"] for row in replaced}
    lesson.table(
        "How weights came to each generator: what `--transport auto` has chosen",
        [
            {
                "generator": actor,
                "host": _where.get(actor, THIS),
                "as the trainer's": "same"
                if _where.get(actor) == _where["trainer"]
                else "another",
                "transport": ", ".join(f"`{name}`" for name in sorted(set(transports))),
                "pulls": len(transports),
            }
            for actor, transports in sorted(pulled.items())
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Where processes share memory, and prove it, `auto` takes shared memory. Across hosts it takes a plain socket (`tcp`), where there is no RDMA hardware. A host
    that has ended does not come back by itself: start its worker again, for the next run.
    """)
    return


@app.function(hide_code=True)
def check_successor_may_start(successor_may_start):
    exercise.expect(successor_may_start, 109.0, 100.0, 10.0, 0.0, result=False)
    exercise.expect(successor_may_start, 110.0, 100.0, 10.0, 0.0, result=True)
    exercise.expect(successor_may_start, 110.5, 100.0, 10.0, 0.25, result=False)
    exercise.expect(successor_may_start, 112.0, 100.0, 10.0, 0.25, result=False)
    exercise.expect(successor_may_start, 112.5, 100.0, 10.0, 0.25, result=True)
    exercise.expect(successor_may_start, 52.5, 50.0, 2.0, 0.5, result=False)
    exercise.expect(successor_may_start, 53.0, 50.0, 2.0, 0.5, result=True)


@app.function(hide_code=True)
def successor_may_start_solution(now, last_renewed, lease, drift):
    return now >= last_renewed + lease * (1 + drift)


if __name__ == "__main__":
    app.run()
