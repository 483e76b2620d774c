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
    app_title="Interactive work: change a mesh while it runs",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)


with app.setup(hide_code=True):
    import asyncio
    import re
    import sys
    import tempfile
    import time
    import traceback
    from collections import Counter, deque
    from types import SimpleNamespace

    import marimo as mo
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    from zorplex_rl.course import nb02
    from zorplex_rl.course.figures import drawing_of
    from zorplex_rl.course.figures.lines import loss_chart
    from zorplex_rl.course.lesson import exercise, keep_open, lesson
    from zorplex_rl.course.nb01 import seconds_each
    from zorplex_rl.services.runtime import (
        Actor,
        current_rank,
        endpoint,
        start_monarch,
        this_host,
    )


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=50,
        hardware="two CPU cores, no network",
        goals=[
            "write a step of data-parallel training, and run it on two processes from a notebook cell",
            "look into a running process, and say what it is doing",
            "change code in running processes, and say what survives each way to do it",
            "read the logs of many processes as one",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The two-minute loop

    You know this loop: change a line, start the program, wait until all processes have imported,
    connected and loaded. Every time this costs seconds with one process, and minutes with a hundred.
    An RL run has more to load than most: a trainer, generators, tools, and the model in several of them.

    The way out is to leave the processes running and to change what they *do*. Your notebook is the
    **controller**, which tells all processes what to do next. Between two cells, they wait with
    everything that they have loaded.

    This page uses the words of notebook 01: actor, endpoint, `call`, `call_one`, slice, process mesh.
    One is new. A **host mesh** is a group of machines, on which process meshes are started. Here it is
    `this_host()`, your machine alone.
    """)
    return


@app.cell(hide_code=True)
def settings():
    config = SimpleNamespace(
        patience=1.0,  # seconds until we look at what hangs
        talkers=4,  # processes that print
    )
    return (config,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## One program, many ranks

    Data-parallel training gives every process a copy of the model and a part of the batch. Every
    process runs the same code on other data. This is called **SPMD**: single program, multiple data.
    Usually `torchrun` starts such a program once in every process, and from then on you cannot reach
    it. Here the processes hold actors, which wait for your calls.
    If all processes do the same from beginning to end, `torchrun` is enough. Where roles differ, or you want to step in, use actors.
    """)
    return


@app.function
def new_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
    )


@app.class_definition
class Worker(Actor):
    """Hold a model, and run any function that is sent."""

    def __init__(self):
        self.model = new_model()

    @endpoint
    def join(self, meeting):
        torch.set_num_threads(1)
        rank = current_rank().rank  # Monarch's number, which becomes PyTorch's
        dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=2)
        return dist.get_rank(), dist.get_world_size()

    @endpoint
    def run(self, function, *arguments):
        return function(self, *arguments)


@app.cell(hide_code=True)
def _():
    mo.md("""
    The endpoint `run` is the whole trick of this notebook: a function is a message, too. It is
    copied to the process and runs there, beside the model.

    `join` tells PyTorch what `torchrun` would. `init_process_group` gets this process's rank, the number
    of all ranks (`world_size`), and a file in which they find each other. It returns when all have
    come. `gloo` is PyTorch's transport for CPUs; on GPUs it is `nccl`.

    Two numbers are told apart here. A **rank** on this page is PyTorch's number of a process: `join`
    sets it once, and it never changes. Monarch's number, `current_rank()`, was explained in notebook 01: it counts the actors
    that are called, so it begins at 0 in every slice. The mesh below has one dimension, `procs`. `slice(procs=1)` calls the second
    actor alone. Monarch then counts it as 0, but for PyTorch its process is still rank 1.
    """)
    return


@app.cell
async def _():
    start_monarch()
    _start = time.monotonic()
    procs = this_host().spawn_procs(per_host={"procs": 2})
    workers = procs.spawn("workers", Worker)
    joined = await workers.join.call(f"{tempfile.mkdtemp()}/meeting")
    restart_seconds = time.monotonic() - _start
    return joined, procs, restart_seconds, workers


@app.cell(hide_code=True)
async def _(procs):
    # First stops the processes of an earlier run of these cells, so that they do not pile up.
    opened = await keep_open.enter("02", keep_open.stopping(procs))
    return (opened,)


@app.cell(hide_code=True)
def _(joined, restart_seconds):
    lesson.md(f"""
    The {len(joined)} ranks found each other within {lesson.in_words(restart_seconds)}. Each new process had to
    import PyTorch first. Every restart would cost as much, even of this small program.

    Ranks work together through **collectives**: operations that all of them call, and that end when all
    have called. One is enough for this page. `all_reduce` adds up a tensor over all ranks, and leaves the
    sum on every rank.
    """)
    return


@app.function
def add_up(tensor):
    """Return the sum of ``tensor`` over all ranks, on every rank."""
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: a step of many ranks

    All ranks begin with the same weights, and each has its part of the batch. Write `ddp_step`, so
    that after it every rank has the weights that *one* process with the whole batch would have. In
    between, ranks may exchange sums, and nothing else.

    Parts differ in size, and one may be empty. In reinforcement learning this is normal, because answers
    differ in length and some are dropped. `F` is `torch.nn.functional`. The check plays one to three
    ranks, two steps each.
    """)
    return


@app.function
def ddp_step(model, optimizer, mine, total_examples, add_up):
    """Take one step on the mean squared error over all ranks' examples.
    Returns this error as it was before the weights change.

    ``mine`` is (inputs, targets): this rank's part.
    ``total_examples`` is the number of all examples.
    ``add_up(tensor)`` returns the sum over all ranks. Each rank must
    call it equally often, with equal shapes.

    error = ddp_step(model, optimizer, (inputs, targets), 64, add_up)
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: ddp_step,
        Solutions,
        level="stretch",
        minutes=12,
        lines=9,
        hints=(
            "Which sum over this rank's examples, added up over all ranks, is the mean over all examples?",
            '`F.mse_loss(…, reduction="sum") / total_examples`, and `parameter.grad = add_up(parameter.grad)` for every parameter.',
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The curve with and without it

    Now train with your step. The task is to fit one period of a sine. Its 64 points are in order:
    rank 0 has the first 48, rank 1 the other 16. So each rank sees only its part of the curve.

    Two ways to train on two ranks:

    - with `ddp_step`;
    - with PyTorch's own class for this, **DDP**: you wrap the model, `DistributedDataParallel(model)`,
      and go on with the ordinary step of one process. Each time that you call `backward()`, DDP replaces your gradients by their average
      over all ranks.

    Both ranks take 300 steps of SGD, first with one way, then with the other. That code is folded.
    """)
    return


@app.function(hide_code=True)
def plain_step(model, optimizer, mine, total_examples, add_up):
    inputs, targets = mine
    optimizer.zero_grad()
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item()


@app.function(hide_code=True)
def train(model, step, mine, batch, steps, learning_rate):
    """Train on ``mine``. Returns the losses on the ``batch`` before each step, and the weights."""
    optimizer = torch.optim.SGD(model.parameters(), learning_rate)
    losses = []
    for _ in range(steps):
        with torch.no_grad():
            losses.append(F.mse_loss(model(batch[0]), batch[1]).item())
        step(model, optimizer, mine, len(batch[0]), add_up)
    return losses, [parameter.detach() for parameter in model.parameters()]


@app.function(hide_code=True)
def train_as_rank(worker, step, wrap, of_rank_0, batch, steps, learning_rate):
    """Train a new model on this rank's part: rank 0 has the first ``of_rank_0`` examples."""
    mine = slice(0, of_rank_0) if dist.get_rank() == 0 else slice(of_rank_0, None)
    worker.model = new_model()
    part = [tensor[mine] for tensor in batch]
    return train(wrap(worker.model), step, part, batch, steps, learning_rate)


@app.cell(hide_code=True)
def _():
    with_ddp = lesson.predict(
        "DDP on parts of 48 and 16 examples. At the end, are the weights those of one process with the whole batch?",
        "yes: an average is an average",
        "no, and neither rank will say so",
        "no: PyTorch raises an error",
    )
    with_ddp
    return (with_ddp,)


@app.cell(hide_code=True)
async def _(workers):
    step_in_use, whose_step = exercise.running(lambda: ddp_step, Solutions)
    inputs = torch.linspace(-1, 1, 64)[:, None]
    batch = inputs, torch.sin(torch.pi * inputs)
    _settings = batch, 300, 0.1  # steps, learning rate
    _ways = {
        "ddp_step": (step_in_use, lambda model: model),
        "DDP": (plain_step, torch.nn.parallel.DistributedDataParallel),
    }
    one_process = train(new_model(), plain_step, batch, *_settings)
    trained = {}
    for _name, (_step, _wrap) in _ways.items():
        for _of_rank_0 in (32, 48):
            _runs = await workers.run.call(
                train_as_rank, _step, _wrap, _of_rank_0, *_settings
            )
            trained[_name, _of_rank_0] = list(_runs.values())
    return one_process, trained, whose_step


@app.cell(hide_code=True)
def _(one_process, trained, whose_step, with_ddp):
    _far = {
        run: nb02.furthest([weights for _, weights in ranks], one_process[1])
        for run, ranks in trained.items()
    }
    _equal, _unequal = _far["DDP", 32], _far["DDP", 48]
    _curves = {"one process": one_process[0]}
    for _way in ("ddp_step", "DDP"):
        _curves[f"rank 0 of two, {_way}"] = trained[_way, 48][0][0]
    lesson.reveal(
        with_ddp,
        right=0 if _unequal < 1e-3 else 1,
        why=f"""
        {"Yes" if _unequal < 1e-3 else "No"}: DDP's weights are up to {_unequal:.2g} off those of one process,
        whose largest weight is {max(float(tensor.abs().max()) for tensor in one_process[1]):.2g}. With two parts of 32 they are {lesson.tiny(_equal)} off, which is
        rounding. DDP averages two means, so an example of the smaller part counts three times as much. No error
        is raised, and both ranks agree. Such a run trains, but not on the loss that you wrote down.

        With {whose_step} the weights are {lesson.tiny(_far["ddp_step", 48])} off.
        """,
        shows=[
            lesson.figure(
                loss_chart(_curves, "loss on all 64 examples (log)"),
                "Parts of 48 and 16 examples; each loss is that before the step. Blue lies on grey: two ranks, and the curve of one process.",
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## One rank alone

    You want to look at one number, so you call *one* rank. The function that you send has an
    `all_reduce` in it. With `as_asyncio` you can wait for a call in `asyncio.wait`, which stops waiting
    after `patience` seconds at the latest.
    """)
    return


@app.function
def sum_over_ranks(worker, number):
    return add_up(torch.tensor([number])).item()


@app.cell(hide_code=True)
def _():
    one_rank = lesson.predict(
        "`workers.slice(procs=0).run.call_one(sum_over_ranks, 10.0)`: what happens?",
        "it returns 10: the sum over the ranks that were called",
        "it returns nothing, for as long as you wait",
        "an error says that rank 1 is missing",
    )
    one_rank
    return (one_rank,)


@app.cell
async def _(config, workers):
    stuck = workers.slice(procs=0).run.call_one(sum_over_ranks, 10.0).as_asyncio()
    came, _ = await asyncio.wait([stuck], timeout=config.patience)
    return came, stuck


@app.cell(hide_code=True)
def _(came, config, one_rank):
    lesson.reveal(
        one_rank,
        right=0 if came else 1,
        why=f"""
        {"It answered" if came else f"After {config.patience:g} s there was no answer"}. An `all_reduce` begins when all ranks
        have called it. Rank 0 has, and waits. No rank has failed, so nothing can report an error. By default,
        PyTorch would wait for half an hour.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    You wait for rank 0, and want to know what it is doing. Its *worker* works on one message at a time,
    so it takes no question now. The actor below reads the *stack* of every thread in its process: which
    function has called which. It is spawned into the process of rank 0.
    """)
    return


@app.class_definition
class Inspector(Actor):
    @endpoint
    def stacks(self):
        """Return the calls of each thread as (function, line)."""
        return [
            [(call.name, call.line) for call in traceback.extract_stack(frame)]
            for frame in sys._current_frames().values()
        ]


@app.cell(hide_code=True)
def _():
    can_it_look = lesson.predict(
        "The worker in this process is inside an `all_reduce` that does not return. Does the `Inspector` beside it answer?",
        "no: the process hangs, and its actors with it",
        "yes: it names the line where the worker waits",
        "yes, but all it can see is itself",
    )
    can_it_look
    return (can_it_look,)


@app.cell
async def _(procs, stuck, workers):
    inspector = procs.slice(procs=0).spawn("inspector", Inspector)
    stacks = await inspector.stacks.call_one()

    # The rescue: the other rank calls it, too.
    answer_1 = await workers.slice(procs=1).run.call_one(sum_over_ranks, 32.0)
    async with asyncio.timeout(10):
        answer_0 = await stuck
    return answer_0, answer_1, stacks


@app.cell(hide_code=True)
def _(answer_0, answer_1, can_it_look, stacks):
    _waiting = next((s for s in stacks if "sum_over_ranks" in [name for name, _ in s]), [])
    _names = [name for name, _ in _waiting]
    _from = _names[_names.index("sum_over_ranks") :] if _names else []
    _inwards = " → ".join(
        name for name in _from if name != "wrapper"
    )  # torch's, which logs
    lesson.reveal(
        can_it_look,
        right=1 if _waiting else 2,
        why=f"""
        It answered, with the stacks of {len(stacks)} threads.
        {"One of them is the worker's: " + lesson.quote(_inwards) if _waiting else "None of them is the worker's"}.
        An actor is not a process: one may be busy while another one in the same process answers. The wait itself is
        native code that lets other threads run. When something puzzles you, write an actor that can tell, and spawn it into the running process.

        Then the same function went to rank 1, with 32. Rank 1 answered {answer_1:g} and rank 0
        {answer_0:g}, because now all ranks had called. Nothing was restarted. In a program
        started by `torchrun` there is nobody who could send rank 1 there.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## New code, old processes

    You have changed a line. Which of what is running can stay? What runs is built in layers, and there
    are four ways to bring in the new line. Each throws some layers away. Choose a way.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        drawing_of("layers.html"),
        "From the bottom up: each layer stands on those below. What is marked as new has to be made again.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Actors of the class below have already been spawned into both processes, as `greeters`.
    Predict, and then *edit its text* and run its cell. The `greeters` stay as they are. `new_greeters`
    are spawned from your edited class, `edited`. On a page that nobody can edit, the course has made the edit: its
    line is `return "hello from the new code"`.
    """)
    return


@app.cell(hide_code=True)
def _():
    old_or_new = lesson.predict(
        "After your edit, `greet` is called on the running actors. Which text do you get?",
        "the new one: it is the same class",
        "the old one",
        "an error: the class has changed",
    )
    old_or_new
    return (old_or_new,)


@app.class_definition
class Greeter(Actor):
    @endpoint
    def greet(self):
        return "hello from the old code"


@app.class_definition(hide_code=True)
class EditedGreeter(Actor):
    """Stand in for your edit on a page that nobody can edit."""

    @endpoint
    def greet(self):
        return "hello from the new code"


@app.cell(hide_code=True)
def _(procs):
    # Spawned when the page was opened, and never again.
    greeters = nb02.spawned_once(procs, Greeter)
    edited = EditedGreeter if lesson.unattended() else Greeter
    return edited, greeters


@app.cell
async def _(edited, greeters, procs):
    new_greeters = procs.spawn("new_greeters", edited)
    greeting = await greeters.slice(procs=0).greet.call_one()
    new_greeting = await new_greeters.slice(procs=0).greet.call_one()
    return greeting, new_greeting


@app.cell(hide_code=True)
def _(greeting, new_greeting, old_or_new):
    _edited = greeting != new_greeting
    _trap = f"""
    The actors that were running said {lesson.quote(greeting)}, and newly spawned ones
    {lesson.quote(new_greeting)}. A message is a copy, and `spawn` is a message: it carried the class
    as it was then.
    """
    lesson.reveal(
        old_or_new,
        right=1 if _edited else [],
        why=_trap
        if _edited
        else "Both said the same, since `Greeter` is still as it was. Edit its text, run its cell, and look here again.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    So new code has to be sent. A function of the notebook is copied with every call, so it is always the new one. But a function
    of an imported *module* travels as its name, and the old process runs its old module.

    What do the first three ways cost? `seconds_each` repeats each of the first two for a moment, and returns the median seconds.
    New processes were started once, at the top of this page.
    """)
    return


@app.function
def weight_norm(worker):
    return float(worker.model[0].weight.detach().norm())


@app.cell
async def _(procs, restart_seconds, workers):
    async def send_a_function():
        await workers.run.call(weight_norm)

    async def spawn_an_actor():
        await procs.spawn("new_workers", Worker).run.call(lambda worker: None)

    changes = {
        "send a function": await seconds_each(send_a_function),
        "spawn a new actor": await seconds_each(spawn_an_actor),
        "new processes": restart_seconds,
    }
    return (changes,)


@app.cell(hide_code=True)
def _(changes):
    _send, _spawn, _restart = changes.values()
    lesson.md(f"""
    Sending a function took {lesson.in_words(_send)}, a new actor {lesson.in_words(_spawn)}, new processes
    {lesson.in_words(_restart)}: {float(f"{_restart / _spawn:.2g}"):,.0f} times as long as the actor. New processes
    import PyTorch again, and would load a large model again. The other two ways do neither.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: hand over the state

    A new actor, or a changed model, begins with new weights. What can it keep of the old ones? Here one layer
    is inserted before the output layer. Write `hand_over`, which keeps the weights that fit. `old` and `new` are state
    dicts: names with tensors. Your function is then sent to both ranks, by `run`.
    """)
    return


@app.function
def hand_over(old, new):
    """Return a dict with the names of ``new``. A tensor comes from
    ``old`` where name and shape fit, otherwise from ``new``.

    Change neither of the two, and return clones.

    state = hand_over(old_model.state_dict(), model.state_dict())
    model.load_state_dict(state)
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: hand_over,
        Solutions,
        level="core",
        minutes=5,
        lines=4,
        hints=(
            "For each name of `new`: which of the two tensors does it get?",
            "`name in old and old[name].shape == tensor.shape`; then `.clone()`.",
        ),
    )
    return


@app.function
def grow(worker, hand_over):
    """Give this rank a deeper model. Returns the names of the weights
    that it has kept."""
    old = worker.model.state_dict()
    worker.deeper = torch.nn.Sequential(
        *new_model()[:2], torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
    )
    worker.deeper.load_state_dict(hand_over(old, worker.deeper.state_dict()))
    new = worker.deeper.state_dict()
    return [name for name in old if name in new and torch.equal(old[name], new[name])]


@app.cell(hide_code=True)
async def _(workers):
    hand_over_in_use, whose_hand_over = exercise.running(lambda: hand_over, Solutions)
    kept = (await workers.run.call(grow, hand_over_in_use)).item(procs=0)
    return kept, whose_hand_over


@app.cell(hide_code=True)
def _(kept, whose_hand_over):
    lesson.md(f"""
    The ranks have a deeper model, and kept {lesson.quote(", ".join(kept))} of the old one. The names `2.weight` and `2.bias` are in
    both, but they mean different layers: the output layer in the old model, the inserted one in the new. They stay new only
    because their shapes differ. With equal shapes the old weights would have come into the wrong layer, without an error.

    No process was started. Running here: {whose_hand_over}.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Logs

    After `monarch.configure(enable_log_forwarding=True)`, whatever an actor prints goes to the terminal of the
    controller. In a large mesh those are too many. So Monarch can collect the lines of some seconds, and show fewer. Here it
    collects for two seconds: `procs.logging_option(stream_to_client=True, aggregate_window_sec=2)`.

    Four processes, 0 to 3, print a line of a training log. They do not `join`, so only Monarch numbers them. The loss is 0.71
    in three of them. In process 2 it is `nan`: not a number, the first sign of a run that goes wrong.
    (Monarch's own messages go to a file, on Linux `/tmp/USER/monarch_log.log`.)
    """)
    return


@app.class_definition
class Talker(Actor):
    def __init__(self):
        self.kept = deque(maxlen=1000)  # the last lines, each with its time

    @endpoint
    def report(self, step):
        loss = "nan" if current_rank().rank == 2 else "0.71"
        line = f"step {step}: loss {loss}, learning rate 0.001, 4096 tokens"
        print(line, flush=True)
        self.kept.append((time.time(), line))

    @endpoint
    def records(self):
        return list(self.kept)


@app.cell(hide_code=True)
def _():
    which_line = lesson.predict(
        "What does the collected log show for step 7?",
        "two lines: loss 0.71 for three processes, and loss nan for one",
        "four lines, one of each process",
        "one line for all four",
    )
    which_line
    return (which_line,)


@app.cell(hide_code=True)
async def _(config):
    import monarch

    start_monarch()
    monarch.configure(enable_log_forwarding=True)
    with nb02.captured(1, 2) as terminal:
        async with keep_open.stopping(
            this_host().spawn_procs(per_host={"procs": config.talkers})
        ) as _procs:
            await _procs.logging_option(stream_to_client=True, aggregate_window_sec=2)
            _talkers = _procs.spawn("talkers", Talker)
            await _talkers.report.call(7)
            # A line may come just after a window has begun: two windows of 2 s, and a little.
            await asyncio.sleep(4.2)
            recorded = await _talkers.records.call()
    monarch.configure(enable_log_forwarding=False)
    return recorded, terminal


@app.cell(hide_code=True)
def _(terminal, which_line):
    _lines = [re.sub(r"\x1b\[\d+m", "", line) for line in terminal]
    _collected = [line for line in _lines if "similar log lines" in line]
    _raw = sum(line.count("step 7") for line in _lines) - len(_collected)
    _nan_shown = any("nan" in line for line in _collected)
    lesson.reveal(
        which_line,
        right={1: 2, 2: 0, 4: 1}.get(len(_collected), []),
        why=f"""
        You read {lesson.quote(" / ".join(_collected) or "nothing")}. Its brackets say how many lines it stands for,
        and the process whose line you see. "Similar" is judged by the share of characters that differ. In a line of this
        length, those of `nan` and `0.71` are a small part.
        {"The line of process 2 stands for the others, too, in which all is well." if _nan_shown else "The process that went wrong is not on your screen."}
        Whose line stands for all is chance.

        Without collecting, the terminal shows {_raw} lines, and none says who wrote it.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    The cure is to treat a log as data. `Talker` also keeps every line with its time, in its process. The
    controller asks for the lines when it wants them, knows which process sent them, and counts only
    lines that are equal.

    ### Exercise 3: one log from many

    Write `merge_logs`. The lines below are then merged by *your* function.
    """)
    return


@app.function
def merge_logs(by_process):
    """Return one list of (time, process, text), by time, and by process
    where times are equal.

    ``by_process`` has a list of (time, text), in order, for the number
    of each process.

    merge_logs({0: [(2.0, "b")], 1: [(1.0, "a")]})
    is [(1.0, 1, "a"), (2.0, 0, "b")]
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: merge_logs,
        Solutions,
        level="warm-up",
        minutes=3,
        hints=(
            "What do you get from one list of all tuples, in any order?",
            "Tuples are compared element by element: `sorted` of (time, process, text).",
        ),
    )
    return


@app.cell(hide_code=True)
def _(recorded):
    merge_in_use, whose_merge = exercise.running(lambda: merge_logs, Solutions)
    merged = merge_in_use({place["procs"]: lines for place, lines in recorded.items()})
    counted = Counter(said for _, _, said in merged)
    first_nan = next(process for _, process, said in merged if "nan" in said)
    return counted, first_nan, merged, whose_merge


@app.cell(hide_code=True)
def _(counted, first_nan, merged, whose_merge):
    lesson.table(
        f"The {len(merged)} lines, merged by {whose_merge}. The first `nan` came from process {first_nan}.",
        [
            {"line": lesson.quote(line), "how often": count}
            for line, count in counted.items()
        ],
    )
    return


@app.cell(hide_code=True)
async def _(answer_0, changes, kept, new_greeting, opened):
    # It uses all results above, so it runs last.
    _results = answer_0, changes, kept, new_greeting, opened
    await keep_open.done("02")
    return


@app.cell(hide_code=True)
def _(changes):
    lesson.recap(
        5,
        "A process holds actors. Leave the processes running, and put new actors or functions into them.",
        "One controller can drive SPMD code step by step. Adding up all ranks' gradients gives the gradient of the whole batch. Averaging their means does so only if the parts are equal.",
        "A collective waits for all ranks. If it hangs, put a new actor into the process and read the stacks.",
        f"Running actors keep the code that they were spawned with. A new actor took {lesson.in_words(changes['spawn a new actor'])} here, new processes {lesson.in_words(changes['new processes'])}.",
        "A log that collects similar lines can hide the one that matters. Keep process and time with each line.",
    )
    return


@app.cell(hide_code=True)
def _(changes):
    lesson.headline(
        f"new code reached running processes in {lesson.in_words(changes['send a function'])}; new processes took {lesson.in_words(changes['new processes'])}."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__, machine=True)
    return


@app.class_definition(hide_code=True)
class Solutions:
    """Check the exercises of this page, and solve them."""

    def check_ddp_step(ddp_step):
        nb02.check_step(ddp_step)

    def ddp_step(model, optimizer, mine, total_examples, add_up):
        inputs, targets = mine
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets, reduction="sum") / total_examples
        loss.backward()
        for parameter in model.parameters():
            parameter.grad = add_up(parameter.grad)
        optimizer.step()
        return add_up(loss).item()

    def check_hand_over(hand_over):
        one, none, two = torch.ones(1), torch.zeros(1), torch.zeros(2)
        exercise.agree(
            hand_over,
            Solutions.hand_over,
            nb02.draw_states,
            examples=[
                ({"in": one}, {"in": none}),
                ({"in": one}, {"in": two}),
                ({"in": one}, {"in": none, "out": two}),
                ({"in": one, "old": one}, {"in": none}),
            ],
            mistakes={
                "a tensor of another shape does not fit, though its name does": (
                    lambda old, new: {name: old.get(name, new[name]) for name in new}
                ),
                "names that only `old` has do not belong into the new model": (
                    lambda old, new: new | old
                ),
                "nothing is taken from `old`": lambda old, new: new,
            },
        )
        nb02.check_own_memory(hand_over)

    def hand_over(old, new):
        def fits(name):
            return name in old and old[name].shape == new[name].shape

        return {name: (old if fits(name) else new)[name].clone() for name in new}

    def check_merge_logs(merge_logs):
        def lines_of(by_process):
            return [
                (when, number, text)
                for number in by_process
                for when, text in by_process[number]
            ]

        exercise.agree(
            merge_logs,
            Solutions.merge_logs,
            nb02.draw_lines,
            examples=[
                ({0: [(2.0, "b")], 1: [(1.0, "a")]},),
                ({1: [(1.0, "a")], 0: [(1.0, "b")]},),
            ],
            mistakes={
                "the lines stand process after process, not by time": lines_of,
                "where times are equal, the smaller number comes first": (
                    lambda by_process: sorted(
                        lines_of(by_process), key=lambda line: line[0]
                    )
                ),
                "the latest line comes first": lambda by_process: sorted(
                    lines_of(by_process)
                )[::-1],
            },
        )

    def merge_logs(by_process):
        return sorted(
            (when, number, text)
            for number in by_process
            for when, text in by_process[number]
        )


if __name__ == "__main__":
    app.run()
