"""Policies that every test may use: the embedded one, and tiny random ones that babble their way to
calls."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Several tests share the cores: a thread of torch that waits for another is to sleep, not to spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import psutil
import pytest
import torch
from filelock import FileLock
from hypothesis import HealthCheck, settings

from zorplex_rl.devices import cores
from zorplex_rl.policy.load import EMBEDDED_PATH, Policy, load_policy
from zorplex_rl.policy.model import Model
from zorplex_rl.run.folder import RunFolder

NOTEBOOKS = Path(__file__).parent / "notebooks"
OF_ALL_NOTEBOOKS = ("test_answers.py", "test_course.py", "test_notebooks.py")
# Every folder of tests: what one test file takes from another is found, and so are the actors of a
# test by the processes that Monarch starts.
FOLDERS = sorted({str(path.parent) for path in Path(__file__).parent.rglob("*.py")})
sys.path.extend(folder for folder in FOLDERS if folder not in sys.path)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (*FOLDERS, os.environ.get("PYTHONPATH"))))
# The tests start some thousand processes. Without kept bytecode each compiles the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A shell ignores these in what it starts in the background, and a test that sends one to a program
# of its own would wait for ever.
for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(
            _number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL
        )
torch.set_num_threads(1)
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


def pytest_xdist_auto_num_workers(config):
    """Seven for two cores, since many tests wait for their processes, two without the slow ones; and
    as many as fit into memory, with 3 GB for each of them and the runs that it starts."""
    wanted = cores() if "not slow" in config.option.markexpr else 7 * cores() // 2
    return max(1, min(wanted, psutil.virtual_memory().total // (3 * 2**30)))


def pytest_collection_modifyitems(items):
    """The tests of single pages are long, and so are those of a site unless one is given: in
    ``.ci/run`` the site build, which follows the tests, runs every page and gives them the site.
    What is long is slow, too."""
    for item in items:
        of_one_page = NOTEBOOKS in item.path.parents and item.path.name not in OF_ALL_NOTEBOOKS
        of_a_site = item.path.name == "test_site.py" and "ZORPLEX_SITE" not in os.environ
        if of_one_page or of_a_site:
            item.add_marker("long")
        if item.get_closest_marker("long"):
            item.add_marker("slow")


def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine in an event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(
        pyfuncitem.obj(
            **{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
        )
    )
    return True


# What is imported stays: the collector, which took a tenth of the time, looks at it no more.
gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _fonts_listed():
    """On a new machine matplotlib starts a process, once, that lists the fonts. No test starts it."""
    import matplotlib.font_manager  # noqa: F401


# What tends to follow what when a babbler speaks: tokens and their odds, after "\n", "LOOKUP", and
# so on.
_HABITS: dict[str, dict[str, float]] = {
    "Ċ": {"LOOKUP": 6, "GETKEY": 2, "FETCH": 1, "[ANSWER": 3, "So": 3, "<|im_end|>": 0.5, "Ġ": 1},
    "LOOKUP": {"[blip": 3, "[zork": 3, "[faz": 3},
    "GETKEY": {"[blip": 3, "[zork": 3},
    "FETCH": {"[K": 3},
    "[K": {"1": 2, "4": 2},
    "[ANSWER": {"]": 4},
    "[blip": {"]": 4},
    "[zork": {"]": 4},
    "[faz": {"]": 4},
    "]": {"Ġ": 4, "Ġ-": 2, "Ċ": 1},
    "So": {"Ġis": 3, "Ġ": 1, "LOOKUP": 1},
    "Ġis": {"Ġ": 3},
    "Ġ": {"1": 2, "4": 2, "7": 2},
    "Ġ-": {"1": 2, "4": 2},
    "1": {"Ċ": 3, "7": 2, "]": 2, ".": 1},
    "4": {"Ċ": 2, "1": 2, "]": 2, ".": 1, "<|im_end|>": 1},
    "7": {"Ċ": 3, "4": 2, "<|im_end|>": 1},
    ".": {"Ċ": 3, "5": 1, "<|im_end|>": 1, "Ġ": 1},
}


def babbler(
    tokenizer,
    architecture: str = "qwen2",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    habits: dict[str, dict[str, float]] = _HABITS,
    foreign: bool = False,
) -> Policy:
    """A tiny random model that leans towards ``habits``; its random layers make every context
    count. If ``foreign``, it is transformers' own."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.1,
        "tie_word_embeddings": False,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
        "pad_token_id": tokenizer.pad_token_id,
    }
    model = (
        Qwen2ForCausalLM(Qwen2Config(**shape))
        if architecture == "qwen2"
        else LlamaForCausalLM(LlamaConfig(**shape))
    )
    axes = torch.linalg.qr(torch.randn(64, 64))[0]
    with torch.no_grad():
        for axis, (before, odds) in zip(axes, habits.items(), strict=False):
            model.model.embed_tokens.weight[tokenizer.convert_tokens_to_ids(before)] = 12 * axis
            for after, share in odds.items():
                model.lm_head.weight[tokenizer.convert_tokens_to_ids(after)] += (
                    (10 + torch.tensor(share).log()) / 8 * axis
                )
    if not foreign:
        ours = Model(
            SimpleNamespace(**model.config.to_dict()),
            SimpleNamespace(eos_token_id=tokenizer.eos_token_id),
        )
        ours.load_state_dict(model.state_dict())
        model = ours
    return Policy(
        model.to(dtype).eval(), tokenizer, f"babbler:{architecture}", (tokenizer.eos_token_id,)
    )


@pytest.fixture(scope="session")
def tokenizer():
    """The tokenizer of the embedded policy, as transformers reads it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(EMBEDDED_PATH)


@pytest.fixture(scope="session", params=["qwen2", "llama", "foreign"])
def babbling(request, tokenizer) -> Policy:
    """A float32 babbler of each architecture, and one that is transformers' own."""
    is_foreign = request.param == "foreign"
    return babbler(tokenizer, "llama" if is_foreign else request.param, foreign=is_foreign)


@pytest.fixture(scope="session")
def embedded() -> Policy:
    """The embedded policy in float32; shared, so no test may change it."""
    if not EMBEDDED_PATH.is_dir():
        pytest.skip(f"{EMBEDDED_PATH} has not been built yet")
    return load_policy("embedded")


@pytest.fixture(scope="module")
def chromium():
    """One browser for each file of tests; beyond it, playwright's event loop would be in the way of
    other tests' own."""
    from pages import launched

    with launched() as browser:
        yield browser


@pytest.fixture
def small_disk(tmp_path, request):
    """A file system of the size that the test names."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={request.param}", "tmpfs", disk]
    if os.geteuid() or subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.fixture(scope="session")
def once(tmp_path_factory, worker_id, testrun_uid):
    """``once(name, fill)``: a folder that ``fill(folder)`` has filled, for whichever of this test
    run's processes asked first."""
    own = tmp_path_factory.getbasetemp()
    shared = (own if worker_id == "master" else own.parent) / f"once-{testrun_uid}"
    shared.mkdir(exist_ok=True)

    def folder_of(name: str, fill: Callable[[Path], object]) -> Path:
        folder, done = shared / name, shared / f"{name}.done"
        with FileLock(shared / f"{name}.lock"):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                fill(folder)
                done.touch()
        return folder

    return folder_of


@pytest.fixture(scope="session")
def sync_run(once):
    """The run folder of ``SMALL``: four synchronous steps that nothing disturbed."""
    from runs import SMALL, train_here

    return RunFolder(once("sync", lambda folder: train_here(SMALL, folder, draws=True)))


@pytest.fixture(scope="session")
def lagging_run(once):
    """The run folder of ``LAGGING``: two generators that take over weights in mid-episode."""
    from runs import LAGGING, train_here

    return RunFolder(once("lagging", lambda folder: train_here(LAGGING, folder)))
