# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["marimo", "zorplex-rl"]
# tool.uv.sources.zorplex-rl = { path = "..", editable = true }
# tool.marimo.display.theme = "system"
# ///

import marimo

__generated_with = "0.25.2"
app = marimo.App(
    width="medium",
    app_title="A host dies: leases",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import time
    from types import SimpleNamespace

    import marimo as mo

    from zorplex_rl.course import nb10_hosts
    from zorplex_rl.course.figures import drawing_of, spans
    from zorplex_rl.course.lesson import exercise, keep_open, lesson
    from zorplex_rl.hosts.hosts import MARGIN_SECONDS
    from zorplex_rl.hosts.lease import LEASE_SECONDS


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=40,
        hardware="two CPU cores, 2 GB of free memory, no network",
        goals=[
            "say why a silent host is not yet a dead one, and what two trainers would do",
            "say when the successor of a lost trainer may start, however slow the clocks are within a known drift",
            "choose the length of a lease",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Silence

    Your trainer runs on another machine, and for three seconds nothing has come from it. Is it dead? On your own machine the
    operating system would tell you (notebook 03). From another machine there is only silence, and silence has two causes.
    The machine may have lost its power. Or somebody has pulled a cable: then everything on it runs on, and the trainer trains.

    You want to go on, so you start a successor elsewhere. If the first trainer was dead, that is right. If it was only cut
    off, there are now *two* trainers. When the cable is back, both publish a version 41, with different weights, and
    generators take the one or the other. No error is raised. The run is spoiled, and its curve only looks a bit strange.

    This page shows that, and then the cure, an old one: a promise about time.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A promise about time

    If the controller cannot kill the trainer, because no message gets through, then the host has to do it by itself. So on each host runs a small program, the *keeper*, that can end everything on its host.
    With a **lease** the keeper promises the controller: *if I hear nothing from you for `lease` seconds, I end my trainer.*

    How does a keeper know that it is still heard? Once in a while it sends the controller a *heartbeat*: the time on its own clock. The controller sends
    the same heartbeat back. So the newest one that has come back is a moment at which the link worked in both directions, and the keeper counts from there.

    An example, with a lease of 10 s. The keeper sends 100.0, it comes back, and then the cable is pulled. The keeper ends its trainer when its clock shows 110.0. The controller counts
    10 s from the *arrival* of that heartbeat, which was later. So when the controller's 10 s are over, the keeper's are over, too, if both clocks run equally fast.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        drawing_of("two_clocks.svg"),
        "Nobody compares two clocks. The controller counts as many seconds from a later moment, so its lease is over later. (The way of a heartbeat is drawn much too long.)",
    )
    return


@app.function
def keeper(trainer, clock, send, receive, lease):
    """End the trainer when no heartbeat has come back for `lease` seconds."""
    newest = clock()
    while clock() < newest + lease:
        send(clock())
        newest = max(newest, receive())  # 0 if nothing has come
        time.sleep(0.05)
    trainer.kill()


@app.cell(hide_code=True)
def settings():
    _full = SimpleNamespace(
        lease=1.0,  # seconds, of the page's hosts
        hasty=0.3,  # seconds of silence after which an impatient controller starts a successor
        drift=3.0,  # the third host's clock runs at a quarter of its speed
        steps=48,  # of the run over two hosts: a successor must have time to work
        kill_after=4,  # steps
    )
    config = lesson.brief(_full, steps=28)
    return (config,)


@app.cell(hide_code=True)
def _(config):
    ask_hasty = lesson.predict(
        f"The lease is {config.lease:g} s. An impatient controller starts a successor after {config.hasty:g} s of silence; the host was only cut off. For how long do both trainers write?",
        "never: the first one stops when nobody hears it",
        "for less than the lease",
        "for the whole lease, or longer",
    )
    start_hasty = lesson.start_button("Cut a host off, and do not wait", seconds=3)
    _text = mo.md("""
    Around it the page has a trainer that only writes the time into a file, so that we can see when it lived. And it has a controller, which sends heartbeats back, kills
    the host or cuts it off, and starts a successor as soon as a rule allows it.

    First the mistake: a controller that does not wait for the lease. The result follows exercise 1.
    """)
    mo.vstack([_text, ask_hasty, start_hasty])
    return ask_hasty, start_hasty


@app.cell(hide_code=True)
def _(config, start_hasty):
    lesson.wait_for(start_hasty)

    def in_a_hurry(now, heard, lease, drift, margin):
        return now >= heard + config.hasty

    with lesson.counting(None, "one host is cut off"):
        hurried = nb10_hosts.two_lives(keeper, "cut off", config.lease, in_a_hurry)
    return (hurried,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: the seconds with two trainers

    For how many seconds, at worst, are there two trainers? The impatient controller starts a successor after `silence` seconds without a heartbeat. The first
    host is only cut off. It ends its trainer when its lease is over, by its *own* clock. That clock may be slow: while it counts one second, up
    to `1 + drift` seconds pass for the controller.
    """)
    return


@app.function
def two_trainers(silence, lease, drift):
    """Return seconds.

    two_trainers(3.0, 10.0, 0.0) is 7.0; after a silence of 12.0 it is 0.0.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: two_trainers,
        Solutions,
        level="warm-up",
        minutes=4,
        hints=(
            "Both count from the last heartbeat. At which moment does the successor start, and at which, by the controller's clock, does the first trainer end?",
            "It ends after at most `lease * (1 + drift)` seconds. Subtract the silence; there are never fewer than 0 seconds.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(ask_hasty, config, hurried):
    lesson.needs(lambda: hurried)
    _worst, _whose = exercise.running(lambda: two_trainers, Solutions)
    _limit = float(_worst(config.hasty, config.lease, 0.0))
    lesson.reveal(
        ask_hasty,
        right=0 if hurried.together <= 0 else 1 if hurried.together < config.lease else 2,
        why=f"""
        For {max(0.0, hurried.together):.2f} s. By the lease alone it would be {_limit:.2f} s at worst, says {_whose}. Here a new process needs a moment until it writes, and the old host looks at its clock only every 50 ms. For such delays the next section adds a margin. In the grey stretch
        both trainers were alive, and neither knew of the other. A training step takes seconds: that is enough for two versions of one number.
        """,
        shows=[
            lesson.figure(
                spans.lives_chart({"impatient": hurried}), "When each trainer wrote."
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## When may the successor start?

    The cure is to wait, and the lease says how long. The host has promised to end its trainer. So the controller has only to wait until
    that must have happened, even if the host's clock is slow. A host also looks at its clock only now and then, and a kill takes
    a moment: for that there is a `margin`.

    ### Exercise 2: when is the lease over?

    Has the trainer surely ended by `now`? `heard` is when the newest heartbeat came; both are times of the
    controller's clock. The host counts `lease` seconds on its own, which may be slow by `drift`, as above. Add `margin` seconds: 1 s on this page.
    """)
    return


@app.function
def lease_is_over(now, heard, lease, drift, margin):
    """lease_is_over(111.5, 100.0, 10.0, 0.0, 1.5) is True, a moment before not."""
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: lease_is_over,
        Solutions,
        level="core",
        minutes=4,
        hints=(
            "How long can the host take, by the controller's clock, to count `lease` seconds?",
            "`lease * (1 + drift)` seconds at most, from `heard` on. The margin comes on top.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(config):
    ask_silence = lesson.predict(
        f"Now the controller waits. One host gets `kill -9`, another is cut off. The lease is {config.lease:g} s. Whose successor can start sooner?",
        "after `kill -9`: nothing is left that could do harm",
        "after the cut: nobody has to be killed",
        "in neither: both have to wait for the lease",
    )
    start_lives = lesson.start_button("Kill one host, cut off two", seconds=14)
    mo.vstack([ask_silence, start_lives])
    return ask_silence, start_lives


@app.cell(hide_code=True)
def _(config, start_lives):
    lesson.wait_for(start_lives)
    my_rule, whose_rule = exercise.running(lambda: lease_is_over, Solutions)
    _cases = {
        "kill -9": ("kill -9", config.lease, my_rule),
        "cut off": ("cut off", config.lease, my_rule),
        "slow clock": ("cut off", config.lease, my_rule, config.drift),
    }

    lives = {}
    with lesson.counting(len(_cases), "hosts") as _one_more:
        for _name, _case in _cases.items():
            lives[_name] = nb10_hosts.two_lives(keeper, *_case)
            _one_more()
    return lives, whose_rule


@app.cell(hide_code=True)
def _(ask_silence, config, lives, whose_rule):
    _killed, _cut = (lives[fault].second[0] for fault in ("kill -9", "cut off"))
    _together = max(found.together for found in lives.values())
    lesson.reveal(
        ask_silence,
        right=2 if abs(_killed - _cut) <= config.lease else 0 if _killed < _cut else 1,
        why=f"""
        The successors wrote first {_killed:.1f} s after `kill -9` and {_cut:.1f} s after the cut: after the lease, the margin of {MARGIN_SECONDS:g} s, and the start of a process. From outside the two look alike, so both wait. The trainer that was cut off went on for
        {lives["cut off"].first[-1]:.1f} s. A third host, cut off too, had a clock at a quarter of its speed: absurdly slow, so that you can see it. Its trainer went on for {lives["slow clock"].first[-1]:.1f} s.
        The controller had been told a drift of {config.drift:g} for this host. With a drift of 0 it would have allowed a successor after {config.lease + MARGIN_SECONDS:g} s, beside a living trainer. When to start was decided by {whose_rule}.
        {"At no moment did two trainers live." if _together < 0 else f"Two trainers lived for {_together:.2f} s: a host on this busy machine was later than the margin."}
        """,
        shows=[
            lesson.figure(
                spans.lives_chart(lives),
                f"When each trainer wrote. `lease_is_over` is true {MARGIN_SECONDS:g} s after the dashed line: the margin.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## How long should a lease be?

    A long lease keeps you waiting after every real death. A short one kills healthy trainers: a link stutters, a host stands still because
    its memory is full, and the lease runs out although nothing was wrong. So look at the silences of a *healthy* host. The lease must be at least as long as the longest of them.

    ### Exercise 3: the shortest lease

    `silences` are the seconds between two heartbeats of a healthy host, by the controller's clock. Return a pair:

    - `lease`: the longest silence, as a *fast* clock counts it. While one second passes, it counts `1 + drift`. With a shorter lease this host would end its trainer.
    - `wait`: the seconds from the last heartbeat to the successor. A *slow* clock counts that lease, and the margin comes on top, as in exercise 2.
    """)
    return


@app.function
def shortest_lease(silences, drift, margin):
    """Return (lease, wait). shortest_lease([2.0], 1.0, 0.0) is (4.0, 8.0)."""
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: shortest_lease,
        Solutions,
        level="stretch",
        minutes=5,
        hints=(
            "How many seconds does a fast clock count during the longest silence? That is the lease.",
            "The lease is `max(silences) * (1 + drift)`. A slow clock takes `1 + drift` times as long to count it; the margin comes on top.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(lives):
    lesson.needs(lambda: lives)
    _shortest, _whose = exercise.running(lambda: shortest_lease, Solutions)
    _silences = [silence for found in lives.values() for silence in found.silences]
    _lease, _wait = (
        float(seconds) for seconds in _shortest(_silences, 0.01, MARGIN_SECONDS)
    )
    lesson.md(f"""
    The page's three hosts were healthy for {sum(_silences):.1f} s before their faults, and their longest silence was {1000 * max(_silences):.1f} ms. With clocks that are wrong by at most
    1%, a lease of {1000 * _lease:.1f} ms would have done, says {_whose}. A successor would start after {lesson.in_words(_wait)}, of which {MARGIN_SECONDS:g} s is the margin.

    A real host loads a checkpoint, swaps, or waits for a disk, so one looks at days and not at seconds. `zorplex-rl` takes {LEASE_SECONDS:g} s, and a
    margin of {MARGIN_SECONDS:g} s. Two clocks can be hours apart, but each runs too fast or too slow by some tens of millionths only. So each machine reads its own clock, and only the drift counts: twice, once in each direction.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A run over two hosts

    `zorplex-rl train --hosts` does this with real roles. In this run the second host dies, which has `generator_0` and a spare. The trainer lives on the first.
    Of many hosts most have generators, so this is the loss that you will see most often.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        drawing_of("two_hosts.svg"),
        "This run. On each host the keeper speaks with the controller. You have one machine, so two sets of processes stand in for two hosts.",
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.folded(
        "What is tested, what a lease does not cover, and who may speak to a host",
        "To kill a host is here to kill all processes of its set. The loss of a trainer's host is tested in `tests/hosts/test_hosts.py`, "
        "and hosts with networks of their own, also with a link that is cut, in `tests/namespaced_hosts.py`.\n\n"
        "A lease is a kind of *fencing* (notebook 03): it makes sure that the lost trainer has ended. It fails if a keeper is held up for longer than the margin. "
        "So some systems also number their trainers, and refuse weights of an older number. zorplex-rl has no such numbers.\n\n"
        "Between real hosts Monarch 0.7 speaks mutual TLS (`tls://`): both sides show a certificate. Plain `tcp://` lets in "
        "whoever reaches the port, and `--insecure` says that you know. (torchmonarch 0.7.0, read 2026-11-24; how to make certificates: `docs/HOSTS.md`.)",
    )
    return


@app.cell(hide_code=True)
def _(config):
    train_flags = [
        *("--hosts", "processes:2"),
        *("--generators", "2"),
        *("--steps", f"{config.steps}", "--eval-every", "16", "--eval-tasks", "20"),
    ]
    lesson.md(f"The run: `zorplex-rl train {' '.join(train_flags)}`")
    return (train_flags,)


@app.cell(hide_code=True)
def _():
    ask_notice = lesson.predict(
        f"In mid-run the second host dies, with one of two generators; the lease is {LEASE_SECONDS:g} s. The trainer is on the first host, where nothing has happened. Does it go on?",
        "yes: it gets the groups of the other generator",
        "it stops, for much less than the lease",
        "it stops until the lease is over",
    )
    start_run = lesson.start_button("Train on two hosts, and kill one", seconds=35)
    mo.vstack([ask_notice, start_run])
    return ask_notice, start_run


@app.cell(hide_code=True)
async def _(config, start_run, train_flags):
    lesson.wait_for(start_run)
    await keep_open.leave("10b")  # what an earlier run of this cell has left open
    with lesson.counting(config.steps, "steps") as _one_more:
        run = nb10_hosts.running_on_two_hosts(train_flags, _one_more)
        stage = await keep_open.enter("10b", run)
        await stage.lose_a_host(after=config.kill_after)
        await keep_open.leave("10b")
    lost = nb10_hosts.lost_host(stage)
    return (lost,)


@app.cell(hide_code=True)
def _(ask_notice, lost):
    mo.stop(
        not lost.noticed,
        lesson.md("The run was over before a replacement was ready. Give it more steps."),
    )
    _notice = lost.noticed[0] - lost.killed
    _late = lost.longest_step >= 0.8 * LEASE_SECONDS
    lesson.reveal(
        ask_notice,
        right=2 if _late else 1 if lost.longest_step > 1 else 0,
        why=f"""
        The longest step took {lost.longest_step:.1f} s; `generator_0` counted as lost after {_notice:.1f} s. A step needs its whole batch, and the lost host had some groups of it. Only when it counts as lost does
        another generator get them.{" Meanwhile the other one cannot run far ahead, because the age of data is bounded (notebook 08)." if _late else ""}

        A trainer must not exist twice, so its successor would have started no sooner than {LEASE_SECONDS + MARGIN_SECONDS:g} s after its host was last heard. A generator *may* live twice, because a late answer of a lost one is ignored.
        {"So its groups could be given away at the first suspicion. zorplex-rl waits for the lease all the same." if _late else "So nobody has to wait for its lease."}

        The replacement was ready {lost.replaced[0] - lost.killed:.1f} s after the kill. {f"The spare had died on the same host, so {lost.replaced[0] - lost.noticed[0]:.1f} s of these went into a new process." if lost.replaced[0] > lost.noticed[0] + 0.5 else "The spare had died on the same host, too, but a new one was ready by then."}
        """,
        shows=[
            lesson.figure(spans.lost_host_chart(lost), "The steps of the run."),
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        3,
        "A dead host and one that is cut off look alike: silence. Only one of them is harmless.",
        "With a lease the host promises to end by itself. It counts on its own clock, from the newest heartbeat that came back.",
        "A successor starts when the lease must be over, even by a slow clock: `lease * (1 + drift) + margin` after the last heartbeat.",
        "A lease is as long as the longest silence of a healthy host, or longer.",
        "A trainer must not live twice. A generator may, because late answers of a lost one are ignored.",
    )
    return


@app.cell(hide_code=True)
def _(hurried, lives):
    lesson.needs(lambda: (hurried, lives))
    lesson.headline(
        f"with an impatient controller two trainers lived side by side for {max(0.0, hurried.together):.2f} s; with the lease the successor came {-max(found.together for found in lives.values()):.1f} s or more after the end of the first."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.class_definition(hide_code=True)
class Solutions:
    """Check the exercises of this page, and solve them."""

    def check_two_trainers(two_trainers):
        nb10_hosts.check_two_trainers(two_trainers, Solutions.two_trainers)

    def two_trainers(silence, lease, drift):
        return max(0.0, lease * (1 + drift) - silence)

    def check_lease_is_over(lease_is_over):
        nb10_hosts.check_lease_is_over(lease_is_over, Solutions.lease_is_over)

    def lease_is_over(now, heard, lease, drift, margin):
        return now >= heard + lease * (1 + drift) + margin

    def check_shortest_lease(shortest_lease):
        nb10_hosts.check_shortest_lease(shortest_lease, Solutions.shortest_lease)

    def shortest_lease(silences, drift, margin):
        lease = max(silences) * (1 + drift)
        return lease, lease * (1 + drift) + margin


if __name__ == "__main__":
    app.run()
