# /// script
# [tool.marimo.display]
# theme = "system"
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
    import contextlib
    import logging
    import os
    import re
    import sys
    import tempfile
    import time
    import traceback
    from collections import Counter, deque
    from contextlib import asynccontextmanager
    from statistics import median
    from types import SimpleNamespace

    import marimo as mo
    import psutil
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    from zorplex_rl.course.figures.actor_charts import in_words, seconds_chart
    from zorplex_rl.course.figures.actor_drawings import layers_drawing, processes_drawing
    from zorplex_rl.course.lesson import exercise, lesson, scene
    from zorplex_rl.course.lesson.plug_in import plug_in
    from zorplex_rl.services.runtime import (
        Actor,
        current_rank,
        endpoint,
        start_runtime,
        this_host,
    )


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=42,
        hardware="two CPU cores, no network",
        goals=[
            "say what a host mesh, a process mesh and an actor mesh are, and what each costs to start",
            "run one step of data-parallel training on two processes from a notebook cell, by hand and with DDP",
            "find out where a program hangs, from inside, while it hangs",
            "change code in running processes, and say what survives each way to do it",
            "read the logs of many processes without being fooled by them",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The two-minute loop

    You know this loop: change a line, start the program, wait until all processes have imported, connected and loaded. Then the line turns out to be wrong. With
    one process it costs seconds, with a hundred it costs minutes, each time.

    The way out is to leave the processes running and to change what they *do*. A mesh of actors lets you: your notebook is the **controller**, which
    tells all processes what to do next. Between two cells, they wait with everything that they have loaded.
    """)
    return


@app.cell
def settings():
    config = SimpleNamespace(
        hosts=2,  # stand-ins on this machine
        per_host=2,  # processes
        patience=1.0,  # seconds until we look at what hangs
        learning_rate=0.1,
        unequal=6,  # of the 8 examples go to rank 0
        talkers=4,  # processes that print
    )
    return (config,)


@app.cell(hide_code=True)
def _():
    lesson.ran_on()
    return


@app.cell(hide_code=True)
def _(config):
    lesson.md(f"""
    ## Hosts, processes, actors

    A **host mesh** is a group of machines. On each of them you start processes, which makes a **process mesh**. Into each process you put an actor, which makes an actor mesh.
    A *job* hands out hosts. On a cluster it asks the scheduler for machines. `ProcessJob` stands in for that: its "hosts" are processes on this machine.

    The next cell asks for {config.hosts} hosts, starts {config.per_host} processes on each, and puts one actor into each process.
    """)
    return


@app.cell(hide_code=True)
def _():
    from monarch.job import ProcessJob

    # It says on every start what it connects to.
    logging.getLogger("monarch._src.job.job").setLevel(logging.WARNING)
    return (ProcessJob,)


@app.class_definition
class Where(Actor):
    @endpoint
    def am_i(self):
        return os.getpid(), os.getppid()


@app.cell(hide_code=True)
def _():
    how_many = lesson.predict(
        "How many processes of the operating system does that start, beside your notebook's own?",
        "two: one for each host",
        "four: one for each actor",
        "six",
    )
    how_many
    return (how_many,)


@app.cell
async def _(ProcessJob, config):
    start_runtime()
    before = set(children())
    job = ProcessJob({"hosts": config.hosts})
    try:
        _procs = job.state(cached_path=None).hosts.spawn_procs(
            per_host={"gpus": config.per_host}
        )
        _start = time.monotonic()
        _actors = _procs.spawn("where", Where)
        places = list((await _actors.am_i.call()).items())
        first_seconds = time.monotonic() - _start
        started = set(children()) - before

        _start = time.monotonic()
        _more = _procs.spawn("where_too", Where)
        await _more.am_i.call()
        more_seconds = time.monotonic() - _start
        more_started = set(children()) - before - started
    finally:
        job.kill()
    return first_seconds, more_seconds, more_started, places, started


@app.cell(hide_code=True)
def _(first_seconds, how_many, more_seconds, more_started, places, started):
    _hosts = {}
    for _place, (_pid, _parent) in places:
        _inside = ", ".join(f"{name}={value}" for name, value in _place.items())
        _hosts.setdefault(_parent, {})[_pid] = _inside
    _new = len(more_started)
    lesson.reveal(
        how_many,
        right={2: 0, 4: 1, 6: 2}.get(len(started), []),
        why=f"""
        {len(started)} processes. Each host has one that starts the others and looks after them; on a real cluster it is the only thing that you start by hand. The
        drawing shows the process ids of this run.

        The first actors took {in_words(first_seconds)}, since their processes had to start. A second mesh of actors in the *same* processes took
        {in_words(more_seconds)} and {_new or "no"} new processes. Remember these two numbers.
        """,
        shows=[
            lesson.figure(
                processes_drawing(os.getpid(), _hosts),
                "Found by asking the actors and the operating system. Each inner box is a process with an actor in it.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## One program, many ranks

    Data-parallel training gives every process a copy of the model and a part of the batch. Every process runs the same code on other data. This is called **SPMD**: single
    program, multiple data. Usually `torchrun` starts such a program once in every process, and then nobody can get in. Here the same processes are actors. They do one
    step when you call, and then wait for you.

    `setup_torch_elastic_env_async` gives them what `torchrun` would: rank, world size, and the address where they meet.
    """)
    return


@app.class_definition
class Worker(Actor):
    """Hold a model, and run any function that is sent."""

    @endpoint
    def join(self):
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        return dist.get_rank(), dist.get_world_size()

    @endpoint
    def run(self, function, *arguments):
        return function(self, *arguments)


@app.cell(hide_code=True)
def _():
    mo.md("""
    The endpoint `run` is the whole trick of this notebook: a function is a message, too. It is copied to the process and runs there, beside the model. `scene.enter` stops
    what an earlier run of the cell has left running.
    """)
    return


@app.cell
async def _():
    from monarch.spmd import setup_torch_elastic_env_async

    start_runtime()
    _start = time.monotonic()
    procs = await scene.enter("02", running(this_host().spawn_procs(per_host={"ranks": 2})))
    await setup_torch_elastic_env_async(procs)
    workers = procs.spawn("workers", Worker)
    joined = await workers.join.call()
    restart_seconds = time.monotonic() - _start
    return joined, procs, restart_seconds, workers


@app.cell(hide_code=True)
def _(joined, restart_seconds):
    lesson.md(f"""
    {len(joined)} ranks have met after {in_words(restart_seconds)}. Most of that was spent importing PyTorch. That is what each restart would cost, on this machine, with this little program.

    Now a training step. The model is one linear layer, and the batch has eight examples. Each rank takes every second one. After its backward pass, it has the gradient of its own four.
    The one line that makes it data-parallel is the sum over all ranks, `all_reduce`.
    """)
    return


@app.function
def new_model():
    torch.manual_seed(0)
    return torch.nn.Linear(8, 1)


@app.function
def step(model, inputs, targets, average, learning_rate):
    F.mse_loss(model(inputs), targets).backward()
    average(model)
    torch.optim.SGD(model.parameters(), learning_rate).step()


@app.function
def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)  # the sum over all ranks, on every rank
        parameter.grad /= dist.get_world_size()


@app.function
def step_by_hand(worker, inputs, targets, learning_rate):
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    worker.model = new_model()
    step(worker.model, inputs[mine], targets[mine], average_gradients, learning_rate)
    return [p.detach().clone() for p in worker.model.parameters()]


@app.cell(hide_code=True)
def _():
    mo.md("""
    PyTorch's own `DistributedDataParallel`, or **DDP**, does the averaging during the backward pass. Otherwise the step is the same.
    """)
    return


@app.function
def step_with_ddp(worker, inputs, targets, learning_rate):
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    worker.model = new_model()
    wrapped = torch.nn.parallel.DistributedDataParallel(worker.model)
    step(wrapped, inputs[mine], targets[mine], lambda model: None, learning_rate)
    return [p.detach().clone() for p in worker.model.parameters()]


@app.cell(hide_code=True)
def _():
    same_weights = lesson.predict(
        "Two ranks each see half of the batch and average their gradients. One process sees the whole batch. After one step from the same start, the weights are",
        "different on every rank: each has learned from other examples",
        "equal on both ranks, but not those of the one process",
        "the same in all, up to rounding",
    )
    same_weights
    return (same_weights,)


@app.cell
async def _(config, workers):
    torch.manual_seed(1)
    inputs, targets = torch.randn(8, 8), torch.randn(8, 1)

    alone = new_model()
    step(alone, inputs, targets, lambda model: None, config.learning_rate)

    _batch = inputs, targets, config.learning_rate
    by_hand = await workers.run.call(step_by_hand, *_batch)
    with_ddp = await workers.run.call(step_with_ddp, *_batch)
    return alone, by_hand, inputs, targets, with_ddp


@app.function(hide_code=True)
def furthest(found, model):
    """The largest difference between lists of weights and those of a model."""
    return max(
        float((mine - its).detach().abs().max())
        for weights in found
        for mine, its in zip(weights, model.parameters(), strict=True)
    )


@app.cell(hide_code=True)
def _(alone, by_hand, same_weights, with_ddp):
    _runs = {"by hand": by_hand, "with DDP": with_ddp}
    _far = {
        name: [furthest([w], alone) for _, w in run.items()] for name, run in _runs.items()
    }
    _between = furthest(
        [by_hand.item(ranks=1)], SimpleNamespace(parameters=lambda: by_hand.item(ranks=0))
    )
    _worst = max(map(max, _far.values()))
    lesson.reveal(
        same_weights,
        right=2 if _worst < 1e-5 else 1 if _between < 1e-5 else 0,
        why=f"""
        The largest difference to the one process is {_worst:.1e}. The loss is a mean over examples. The mean of the means of two equal halves is the mean of the whole, so the averaged
        gradient is the gradient of the whole batch. Both ranks then take the same step from the same start.
        """,
        shows=[
            lesson.table(
                "Largest difference of a weight to that of one process",
                [
                    {"step": name, "rank 0": f"{far[0]:.1e}", "rank 1": f"{far[1]:.1e}"}
                    for name, far in _far.items()
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _(config):
    lesson.md(f"""
    ### Halves that are not equal

    In reinforcement learning, parts are rarely equal: answers differ in length, and some are dropped. Let rank 0 have {config.unequal} of the eight examples and rank 1 the other {8 - config.unequal}. Everything else
    stays as it was, and the two gradients are still averaged.
    """)
    return


@app.cell(hide_code=True)
def _():
    unequal_halves = lesson.predict(
        "Are the weights still those of the one process?",
        "yes: an average is an average",
        "no, and neither rank will say so",
        "no: PyTorch raises an error",
    )
    unequal_halves
    return (unequal_halves,)


@app.function
def step_on_unequal_parts(worker, inputs, targets, learning_rate, first, average_gradient):
    mine = slice(0, first) if dist.get_rank() == 0 else slice(first, None)

    def add_up(tensor):
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    def average(model):
        for parameter in model.parameters():
            examples, everybody = len(inputs[mine]), len(inputs)
            averaged = average_gradient(parameter.grad, examples, everybody, add_up)
            parameter.grad.copy_(averaged)

    worker.model = new_model()
    step(worker.model, inputs[mine], targets[mine], average, learning_rate)
    return [p.detach().clone() for p in worker.model.parameters()]


@app.function
def plain_average(gradient, examples, everybody, add_up):
    return add_up(gradient) / 2


@app.cell
async def _(average_in_use, config, inputs, targets, workers):
    _batch = inputs, targets, config.learning_rate, config.unequal
    plain = await workers.run.call(step_on_unequal_parts, *_batch, plain_average)
    yours = await workers.run.call(step_on_unequal_parts, *_batch, average_in_use)
    return plain, yours


@app.cell(hide_code=True)
def _(alone, plain, unequal_halves, whose_average, yours):
    _plain, _yours = (
        furthest([w for _, w in run.items()], alone) for run in (plain, yours)
    )
    lesson.reveal(
        unequal_halves,
        right=0 if _plain < 1e-5 else 1,
        why=f"""
        {"Yes" if _plain < 1e-5 else "No"}: the largest difference is {_plain:.1e}. No error is raised, and both ranks agree with each other. An example of the
        smaller part counts more than one of the larger part. Such a run trains, only not on the loss that you wrote down.
        """,
        shows=[
            lesson.table(
                "Largest difference of a weight to that of one process; unequal parts",
                [
                    {"average": "plain, by half", "difference": f"{_plain:.1e}"},
                    {"average": f"by {whose_average}", "difference": f"{_yours:.1e}"},
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: the right average

    Complete `average_gradient`. It gets this rank's `gradient`, which is a mean over its `examples`. `everybody` is the number of examples of all ranks. `add_up` returns the sum of a tensor over all ranks. Return the gradient of the mean over all examples.

    *Plugged in:* your function is sent to both ranks and averages their gradients. The table above shows how far the weights are off with it. Every rank has to call
    `add_up` equally often; you will soon see why.
    """)
    return


@app.function
def average_gradient(gradient, examples, everybody, add_up):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: average_gradient,
        check_average_gradient,
        average_gradient_solution,
        level="core",
        minutes=6,
        hints=(
            "A mean times its number of examples is a sum. Sums of parts add up to the sum of the whole.",
            "Weigh the gradient before it is added up: `gradient * examples`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    average_in_use, whose_average = plug_in(
        average_gradient, average_gradient_solution, gives_a_gradient
    )
    return average_in_use, whose_average


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A step that hangs

    Now a mistake that everybody makes once. You want to look at one number, so you call *one* rank. The function that you send has an `all_reduce` in it.
    """)
    return


@app.function
def sum_over_ranks(worker, number):
    total = torch.tensor([number])
    dist.all_reduce(total)
    return total.item()


@app.cell(hide_code=True)
def _():
    one_rank = lesson.predict(
        "`workers.slice(ranks=0).run.call_one(sum_over_ranks, 10.0)`: what happens?",
        "it returns 10: the sum over the ranks that were called",
        "it returns nothing, for as long as you wait",
        "an error says that rank 1 is missing",
    )
    one_rank
    return (one_rank,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    Suppose that it hangs. A rank works on one message at a time, so asking *it* is no use. But an actor is not a process. You can put another actor into the same process, now, while the first one is
    busy. This one reads what every thread of its process is doing.
    """)
    return


@app.class_definition
class Inspector(Actor):
    @endpoint
    def stacks(self):
        """Return, for each thread, its calls as (function, line): outermost first."""
        return [
            [(call.name, call.line) for call in traceback.extract_stack(frame)]
            for frame in sys._current_frames().values()
        ]


@app.cell(hide_code=True)
def _():
    can_it_look = lesson.predict(
        "Rank 0 is inside an `all_reduce` that does not return. You spawn an `Inspector` into its process and call it. Does it answer?",
        "no: the process hangs, and its actors with it",
        "yes: it names the line where the other one waits",
        "yes, but all it can see is itself",
    )
    can_it_look
    return (can_it_look,)


@app.cell(hide_code=True)
def _():
    rescue = lesson.predict(
        "Finally, you send the same function to rank 1, with 32. What then?",
        "rank 1 answers 32; rank 0 hangs on",
        "both answer 42",
        "nothing: it is too late",
    )
    rescue
    return (rescue,)


@app.cell
async def _(config, procs, workers):
    # The mistake: one rank only.
    stuck = workers.slice(ranks=0).run.call_one(sum_over_ranks, 10.0).as_asyncio()
    came, _ = await asyncio.wait([stuck], timeout=config.patience)

    # Look into the process.
    inspector = procs.slice(ranks=0).spawn("inspector", Inspector)
    looking = time.monotonic()
    stacks = await inspector.stacks.call_one()
    looking = time.monotonic() - looking

    # The rescue: the other rank comes, too.
    answer_1 = await workers.slice(ranks=1).run.call_one(sum_over_ranks, 32.0)
    async with asyncio.timeout(10):
        answer_0 = await stuck
    return answer_0, answer_1, came, looking, stacks


@app.cell(hide_code=True)
def _(came, config, one_rank):
    lesson.reveal(
        one_rank,
        right=0 if came else 1,
        why=f"""
        {"It answered" if came else f"After {config.patience:g} s there was no answer"}. A *collective* such as `all_reduce` is a meeting: it begins when all ranks have come. Rank 0 has come and waits. Nothing in the program is
        wrong, so nothing can report an error. By default, PyTorch would wait for half an hour.
        """,
    )
    return


@app.cell(hide_code=True)
def _(can_it_look, looking, stacks):
    _waiting = next((s for s in stacks if "sum_over_ranks" in [name for name, _ in s]), [])
    _from = next((i for i, (name, _) in enumerate(_waiting) if name == "sum_over_ranks"), 0)
    lesson.reveal(
        can_it_look,
        right=1 if _waiting else 2,
        why=f"""
        It answered within {in_words(looking)}, with the stacks of {len(stacks)} threads. {"One of them is the worker's" if _waiting else "None of them is the worker's"}. The wait itself is native code that lets other threads run. So every question that you forgot to prepare
        can be asked later: you write the actor that answers it when you need it.
        """,
        shows=[
            lesson.table(
                "The worker's thread, from your function inwards",
                [
                    {
                        "in the function": f"`{name}`",
                        "at the line": lesson.quote(line or ""),
                    }
                    for name, line in _waiting[_from:]
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _(answer_0, answer_1, rescue):
    lesson.reveal(
        rescue,
        right=1 if answer_0 == answer_1 == 42 else 0,
        why=f"""
        Rank 1 answered {answer_1:g} and rank 0 {answer_0:g}. The meeting was complete, so it took place. Nothing was restarted, and the next step can follow.

        In a program started by `torchrun` there is nobody who could send rank 1 there. A controller can, and that makes it worth having.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## New code, old processes

    A process is built in layers, and each way to change the code throws away some of them. Choose one.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        layers_drawing(),
        "From the bottom up: each layer stands on those below. What is marked as new has to be made again.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    First the trap. A `Greeter` runs in both processes. Then you edit the class in your notebook, and run its cell again. You have not spawned anything since.
    """)
    return


@app.cell(hide_code=True)
def _():
    old_or_new = lesson.predict(
        "You call `greet` on the running actors. Which text do you get?",
        "the new one: it is the same class",
        "the old one",
        "an error: the class has changed",
    )
    old_or_new
    return (old_or_new,)


@app.cell
async def _(procs):
    class Greeter(Actor):
        @endpoint
        def greet(self):
            return "hello from the old code"

    greeters = procs.spawn("greeters", Greeter)

    class Greeter(Actor):  # the edited cell
        @endpoint
        def greet(self):
            return "hello from the new code"

    greeting = await greeters.slice(ranks=0).greet.call_one()
    new_greeters = procs.spawn("new_greeters", Greeter)
    new_greeting = await new_greeters.slice(ranks=0).greet.call_one()
    return greeting, new_greeting


@app.cell(hide_code=True)
def _(greeting, new_greeting, old_or_new):
    lesson.reveal(
        old_or_new,
        right=1 if "old" in greeting else 0,
        why=f"""
        The running actors said {lesson.quote(greeting)}, and newly spawned ones {lesson.quote(new_greeting)}. A message is a copy, and `spawn` is a message: it carried the class as it was then.

        So three ways remain. Send a function to `run`: it is copied with every call, so it is always new. Spawn a new actor into the old processes. Or start new processes.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    change_time = lesson.predict(
        "A new actor in the old processes or new processes with PyTorch and a process group: how much faster is the first?",
        "less than ten times",
        "ten to a hundred times",
        "more than a hundred times",
    )
    change_time
    return (change_time,)


@app.function
def weight_norm(worker):
    return float(worker.model.weight.detach().norm())


@app.cell
async def _(plain, procs, restart_seconds, workers, yours):
    _ran_before = plain, yours  # so that every rank has a model

    async def send_a_function():
        await workers.run.call(weight_norm)

    async def spawn_an_actor():
        await procs.spawn("new_workers", Worker).run.call(lambda worker: None)

    changes = {
        "send a function": await seconds_of(send_a_function),
        "spawn a new actor": await seconds_of(spawn_an_actor),
        "new processes": restart_seconds,
    }
    return (changes,)


@app.cell(hide_code=True)
def _(change_time, changes):
    _send, _spawn, _restart = changes.values()
    _times = _restart / _spawn
    lesson.reveal(
        change_time,
        right=0 if _times < 10 else 1 if _times <= 100 else 2,
        why=f"""
        {float(f"{_times:.2g}"):,.0f} times: {in_words(_spawn)} for a new actor, {in_words(_restart)} for new processes. To send a function took {in_words(_send)}. With a large model the gap is wider, since loading it
        belongs to the third way only, if the new actor finds the weights where the old one left them.
        """,
        shows=[
            lesson.figure(
                seconds_chart(changes, "seconds until the new code has run"),
                "Two processes on this machine; medians of five, and the one start of this page. Each grid line is ten times the one before.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: hand over the state

    Your new class has a model with another shape: one layer is new, one is gone, one has grown. You want to keep what fits. Complete `hand_over`. `old` and `new` are state dicts: names
    with tensors. Return a new dict with the names of `new`. It has the old tensor where the name exists in both and the shape is the same, and the new tensor elsewhere. Change neither of the
    two, and return clones: your answer must not share memory with either.
    """)
    return


@app.function
def hand_over(old, new):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: hand_over,
        check_hand_over,
        hand_over_solution,
        level="stretch",
        minutes=8,
        hints=(
            "Go through the names of `new`, and decide for each which of the two tensors it gets.",
            "`name in old and old[name].shape == tensor.shape`; then `.clone()`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Logs

    Whatever an actor prints goes to the terminal of the controller. In a large mesh that is a flood, so Monarch can collect lines from all processes and show similar ones once. The number in brackets
    is the rank whose line is shown.

    Four processes print their loss. In three of them it is 0.71. In the process of rank 2 it is `nan`: not a number, the first sign of a run that goes wrong.
    """)
    return


@app.class_definition
class Talker(Actor):
    def __init__(self):
        self.recorder = Recorder(current_rank().rank)
        self.log = logging.getLogger("training")
        self.log.handlers, self.log.propagate = [self.recorder], False
        self.log.setLevel(logging.INFO)

    @endpoint
    def report(self, step):
        loss = "nan" if self.recorder.rank == 2 else "0.71"
        print(f"step {step}: loss {loss}", flush=True)
        self.log.info("step %d: loss %s", step, loss)

    @endpoint
    def records(self):
        return list(self.recorder.kept)


@app.class_definition
class Recorder(logging.Handler):
    """Keep the last lines, each with its time and the rank."""

    def __init__(self, rank, most=1000):
        super().__init__()
        self.rank, self.kept = rank, deque(maxlen=most)

    def emit(self, record):
        self.kept.append((record.created, self.rank, record.getMessage()))


@app.cell(hide_code=True)
def _():
    which_line = lesson.predict(
        "What does the collected log show for step 7?",
        "loss 0.71 three times, and loss nan once",
        "four lines, one of each process",
        "nan and 0.71 under one line",
    )
    which_line
    return (which_line,)


@app.cell
async def _(config):
    import monarch

    start_runtime()
    monarch.configure(enable_log_forwarding=True)
    with captured() as terminal:
        async with running(
            this_host().spawn_procs(per_host={"ranks": config.talkers})
        ) as _procs:
            await _procs.logging_option(stream_to_client=True, aggregate_window_sec=2)
            _talkers = _procs.spawn("talkers", Talker)
            await _talkers.report.call(7)
            await asyncio.sleep(4.2)  # until the window of two seconds is over
            recorded = await _talkers.records.call()
    monarch.configure(enable_log_forwarding=False)
    return recorded, terminal


@app.cell(hide_code=True)
def _(terminal, which_line):
    _lines = [re.sub(r"\x1b\[\d+m", "", line) for line in terminal]
    raw = [line for line in _lines if line.startswith("step 7")]
    collected = [line for line in _lines if "similar log lines" in line]
    _counted = [(int(re.search(r"\d+", line)[0]), "nan" in line) for line in collected]
    _nan = sum(count for count, nan in _counted if nan)
    _right = [] if not collected else 1 if len(collected) == 4 else 0 if _nan == 1 else 2
    _read = " / ".join(collected) or "nothing"
    _verdicts = {
        0: "This time nan has a line of its own. It is luck: whether a line joins another depends on when it comes.",
        2: "The process that went wrong is not on your screen."
        if _nan == 0
        else "The line of rank 2 stands for others, too, in which all is well. Next time it may be the other way round.",
    }
    _verdict = _verdicts.get(_right, "") if collected else ""
    lesson.reveal(
        which_line,
        right=_right,
        why=f"""
        You read {lesson.quote(_read)}. "Similar" is judged by how many characters differ, and between 0.71 and nan there are few. {_verdict}

        Without collecting, the terminal shows {len(raw)} lines, and none says who wrote it: {lesson.quote(" / ".join(raw))}.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    The cure is to treat a log as data. `Recorder` above is a handler of Python's `logging`. It keeps every line with its time and rank, in the process. The controller asks for the lines when it
    wants them, and counts only equal ones.
    """)
    return


@app.cell(hide_code=True)
def _(merge_in_use, recorded, whose_merge):
    _by_rank = {
        lines[0][1]: [(t, said) for t, _, said in lines] for _, lines in recorded.items()
    }
    _merged = merge_in_use(_by_rank)
    _counts = Counter(said for _, _, said in _merged)
    _start = _merged[0][0] if _merged else 0
    mo.vstack(
        [
            lesson.table(
                f"The same four lines as data, merged by {whose_merge}",
                [
                    {
                        "ms": f"{1000 * (when - _start):.1f}",
                        "rank": rank,
                        "line": f"`{said}`",
                    }
                    for when, rank, said in _merged
                ],
            ),
            lesson.table(
                "Equal lines, counted",
                [
                    {"line": f"`{said}`", "processes": count}
                    for said, count in _counts.items()
                ],
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: one log from many

    Complete `merge_logs`. It gets, for each rank, a list of `(time, text)`, each list in order. Return one list of `(time, rank, text)`, ordered by time, and by rank where
    times are equal. The table above is merged by *your* function as soon as there is one.
    """)
    return


@app.function
def merge_logs(by_rank):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: merge_logs,
        check_merge_logs,
        merge_logs_solution,
        level="warm-up",
        minutes=4,
        hints=(
            "Make one list of tuples first, in any order.",
            "Tuples are compared element by element, so `sorted` does the rest.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    merge_in_use, whose_merge = plug_in(merge_logs, merge_logs_solution, gives_lines)
    return merge_in_use, whose_merge


@app.cell
async def _(answer_0, changes, new_greeting):
    # The cell uses all results above, so that it runs last.
    _results = answer_0, changes, new_greeting
    await scene.leave("02")
    return


@app.cell(hide_code=True)
def _():
    lesson.predicted(9)
    return


@app.cell(hide_code=True)
def _(changes):
    lesson.recap(
        "A host starts processes, a process holds actors. Processes are expensive, further actors in them are cheap.",
        "One controller can drive SPMD code step by step. Averaged gradients of equal parts are the gradient of the whole batch; unequal parts have to be weighted.",
        "A collective waits for all ranks. If it hangs, put a new actor into the process and read the stacks.",
        f"Running actors keep the code that they were spawned with. A new actor took {in_words(changes['spawn a new actor'])} here, new processes {in_words(changes['new processes'])}.",
        "A log that collects similar lines can hide the one that matters. Keep rank and time with each line.",
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.function(hide_code=True)
@asynccontextmanager
async def running(procs):
    """Stop the processes at the end."""
    try:
        yield procs
    finally:
        await procs.stop()


@app.function(hide_code=True)
async def seconds_of(work, times=5):
    """Return the median of several runs, in seconds."""
    runs = []
    for _ in range(times):
        start = time.perf_counter()
        await work()
        runs.append(time.perf_counter() - start)
    return median(runs)


@app.function(hide_code=True)
def children():
    """List the processes that this one has started, and theirs."""
    return psutil.Process().children(recursive=True)


@app.function(hide_code=True)
@contextlib.contextmanager
def captured():
    """Collect what this process and its children write to the terminal, as a list of lines."""
    lines = []
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile("w+") as file:
        saved = os.dup(1), os.dup(2)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            for number, descriptor in enumerate(saved, start=1):
                os.dup2(descriptor, number)
                os.close(descriptor)
            file.seek(0)
            lines += file.read().splitlines()


@app.function(hide_code=True)
def gives_a_gradient(average_gradient):
    """Return True if both ranks can use what ``average_gradient`` returns, right or wrong."""
    gradient, asked = torch.ones(2, 3), []

    def add_up(tensor):
        asked.append(tensor)
        return 2 * tensor

    averaged = average_gradient(gradient, 1, 2, add_up)
    return averaged.shape == gradient.shape and len(asked) == 1


@app.function(hide_code=True)
def gives_lines(merge_logs):
    """Return True if the table can show what ``merge_logs`` returns, right or wrong."""
    found = merge_logs({0: [(1.0, "a")], 1: [(0.5, "b")]})
    return all(
        when >= 0 and rank in (0, 1) and isinstance(text, str) for when, rank, text in found
    )


@app.function(hide_code=True)
def check_average_gradient(average_gradient):
    for examples in ([4, 4], [6, 2], [1, 7, 2]):
        gradients = [torch.full((2,), float(3**rank)) for rank in range(len(examples))]
        everybody = sum(examples)
        right = sum(g * n for g, n in zip(gradients, examples, strict=True)) / everybody
        asked = []

        def record(tensor, asked=asked):
            asked.append(tensor.clone())
            return tensor.clone()

        # All ranks run side by side, so find out first what each of them adds up.
        for gradient, mine in zip(gradients, examples, strict=True):
            average_gradient(gradient.clone(), mine, everybody, record)
        assert len(asked) == len(examples), (
            f"{len(examples)} ranks call `add_up` {len(asked)} times in all, and each should call it once"
        )
        total = sum(asked)

        def answer(tensor, total=total):
            return total.clone()

        found = average_gradient(gradients[0].clone(), examples[0], everybody, answer)
        shown = found.tolist() if isinstance(found, torch.Tensor) else found
        assert isinstance(found, torch.Tensor) and torch.allclose(found, right), (
            f"for ranks with {lesson.quote(examples)} examples and the gradients {lesson.quote([g[0].item() for g in gradients])}, "
            f"`average_gradient` gives {lesson.quote(shown)}, and should give {lesson.quote(right.tolist())}"
        )


@app.function(hide_code=True)
def average_gradient_solution(gradient, examples, everybody, add_up):
    return add_up(gradient * examples) / everybody


@app.function(hide_code=True)
def check_hand_over(hand_over):
    old = {"kept": torch.ones(2), "grown": torch.ones(2), "gone": torch.ones(1)}
    new = {"kept": torch.zeros(2), "grown": torch.zeros(3), "added": torch.zeros(1)}
    found = hand_over(old, new)
    assert isinstance(found, dict), (
        f"`hand_over` gives {lesson.quote(found)}, and should give a dict"
    )
    lists = {name: tensor.tolist() for name, tensor in found.items()}
    right = {"kept": [1.0, 1.0], "grown": [0.0, 0.0, 0.0], "added": [0.0]}
    assert lists == right, (
        f"from {lesson.quote('kept, grown, gone')} to {lesson.quote('kept, grown, added')}, "
        f"`hand_over` gives {lesson.quote(lists)}, and should give {lesson.quote(right)}"
    )
    for tensor in found.values():
        tensor += 7
    assert float(sum(t.sum() for t in (*old.values(), *new.values()))) == 5, (
        "a change of the answer also changes `old` or `new`, so it shares memory with them"
    )


@app.function(hide_code=True)
def hand_over_solution(old, new):
    def fits(name):
        return name in old and old[name].shape == new[name].shape

    return {name: (old if fits(name) else new)[name].clone() for name in new}


@app.function(hide_code=True)
def check_merge_logs(merge_logs):
    exercise.expect(merge_logs, {0: [(1.0, "a")]}, result=[(1.0, 0, "a")])
    exercise.expect(
        merge_logs,
        {0: [(1.0, "a"), (4.0, "d")], 1: [(2.0, "b"), (3.0, "c")]},
        result=[(1.0, 0, "a"), (2.0, 1, "b"), (3.0, 1, "c"), (4.0, 0, "d")],
    )
    exercise.expect(
        merge_logs,
        {1: [(1.0, "a")], 0: [(1.0, "b")], 2: []},
        result=[(1.0, 0, "b"), (1.0, 1, "a")],
    )


@app.function(hide_code=True)
def merge_logs_solution(by_rank):
    return sorted(
        (time, rank, text) for rank, lines in by_rank.items() for time, text in lines
    )


if __name__ == "__main__":
    app.run()
