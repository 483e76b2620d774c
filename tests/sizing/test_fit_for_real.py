"""A run under a real memory limit, that of a control group: what cannot fit is refused with a
setting, and with this setting it ends well.

Needs the rights to make a control group (version 1 or 2), as root in a container often has them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from zorplex_rl.sizing.measured_size import make_model
from zorplex_rl.sizing.model_shape import ModelShape

SHAPE = ModelShape(layers=4, hidden=256, heads=16, kv_heads=16, intermediate=512, vocabulary=2000, head_size=64)
"""Small, with large keys and values: the slots of a generator decide."""
LIMIT = 2_800_000_000
ROOTS = {"/sys/fs/cgroup/memory": "memory.limit_in_bytes", "/sys/fs/cgroup": "memory.max"}


@pytest.fixture
def group():
    """Make a control group with the limit, below that of this process. Yields its folder."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    path = next((path for _, kinds, path in lines if kinds == "memory"), next((p for _, k, p in lines if not k), "/"))
    for root, limit in ROOTS.items():
        folder = Path(root) / path.strip("/") / f"zorplex_test_{os.getpid()}"
        with suppress(OSError):
            folder.mkdir()
            try:
                (folder / limit).write_text(str(LIMIT))
                yield folder
            finally:
                folder.rmdir()
            return
    pytest.skip("no control group with a memory limit can be made here")


def train(group: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run ``zorplex-rl train`` with ``flags`` in ``group``."""
    command = [sys.executable, "-m", "zorplex_rl", "train", "--steps", "1", "--device", "cpu", *flags]
    enter = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    return subprocess.run([*enter, *command], capture_output=True, text=True, timeout=900, stdin=subprocess.DEVNULL)


def killed(group: Path) -> int:
    """Return how many processes of ``group`` the kernel has killed for memory."""
    events = next(file for name in ("memory.oom_control", "memory.events") if (file := group / name).exists())
    return sum(int(line.split()[1]) for line in events.read_text().splitlines() if line.startswith("oom_kill "))


@pytest.mark.long
def test_what_a_real_limit_cannot_hold_is_refused_and_what_is_advised_runs_within_it(group, tmp_path):
    make_model(SHAPE, tmp_path / "policy")
    flags = ["--policy", str(tmp_path / "policy"), "--max-tokens", "24", "--slots", "256", "--prompts-per-step", "32"]
    flags += ["--eval-tasks", "16", "--out", str(tmp_path / "run")]
    refused = train(group, *flags)
    assert refused.returncode == 2
    (sentence,) = refused.stderr.splitlines()
    assert re.search(r"needs about .* GB of main memory, and 2\.\d GB are there; it would fit with --", sentence), (
        sentence
    )
    assert not (tmp_path / "run").exists()

    advised = train(group, *flags, *sentence.partition("fit with ")[2].split())
    assert advised.returncode == 0, advised.stderr
    assert killed(group) == 0
    assert (tmp_path / "run" / "metrics.jsonl").exists()
