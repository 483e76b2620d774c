"""A model from elsewhere goes through the whole: the one in ``ZORPLEX_TEST_MODEL``, else a small Qwen2
with random weights and a tokenizer of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from zorplex_rl.policy.warmstart import WarmStart, build_tokenizer

from zorplex_rl.course.nb10 import make_model
from zorplex_rl.sizing.model_shape import ModelShape

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SHAPE = ModelShape(layers=6, hidden=256, heads=8, kv_heads=2, intermediate=1024, vocabulary=4000)
SMALL = "--prompts-per-step 2 --group-size 4 --max-tokens 24 --slots 8 --token-budget 2048 --eval-tasks 4 --dtype float32".split()


@pytest.mark.long
def test_a_model_is_trained_exported_evaluated_and_sized(tmp_path):
    record, folder = tmp_path / "record.json", os.environ.get("ZORPLEX_TEST_MODEL")
    if folder:
        flags, steps = [], 20
    else:
        make_model(SHAPE, tmp_path / "model")
        build_tokenizer(WarmStart(seed=5, vocabulary=400)).save_pretrained(tmp_path / "model")
        folder, flags, steps = str(tmp_path / "model"), SMALL, 3
    record.write_text('[{"date": "before"}]')
    command = [
        sys.executable,
        str(ROOT / ".ci" / "gpu"),
        folder,
        "--steps",
        str(steps),
        "--record",
        str(record),
        *flags,
    ]
    subprocess.run(command + ["--tasks", "4"] * (steps == 3), check=True)
    before, found = json.loads(record.read_text())
    assert before == {"date": "before"} and found["steps"] == steps
    assert found["date"] <= date.today().isoformat() and found["model"] == Path(folder).name
    assert all(0 <= float(found[f"accuracy {when}"]) <= 1 for when in ("before", "after"))
    assert float(found["weights pulled, GB/s"]) > 0
    for role in ("trainer", "generator"):
        # How far off sizing may be is what benchmarks/sizing.py asks, on models large enough to tell.
        computed, measured = map(float, found[f"{role}, GB computed, measured"].split(", "))
        assert 0.7 < computed / measured < 1.4, found


def test_the_readme_says_what_was_recorded_last_with_a_pretrained_model():
    last = json.loads((ROOT / "benchmarks" / "real_model.json").read_text())[-1]
    before, after = (f"{100 * float(last[f'accuracy {when}']):.0f} %" for when in ("before", "after"))
    said = " ".join((ROOT / "README.md").read_text().split())
    assert f"{last['steps']} steps, a minute, took it there from {before} to {after} right" in said
