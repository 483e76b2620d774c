"""A model from elsewhere goes through the whole: the one in ``ZORPLEX_TEST_MODEL``, else a small Qwen2
with random weights and a tokenizer of its own."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from zorplex_rl.course.nb10 import make_model
from zorplex_rl.sizing.model_shape import ModelShape

ROOT = Path(__file__).parents[2]
SHAPE = ModelShape(layers=6, hidden=256, heads=8, kv_heads=2, intermediate=1024, vocabulary=4000)
SMALL = "--tasks 4 --prompts-per-step 2 --group-size 4 --max-tokens 24 --slots 8 --token-budget 2048 --eval-tasks 4 --dtype float32"


@pytest.mark.long
def test_a_model_is_trained_exported_evaluated_and_sized(tmp_path, monkeypatch):
    record, folder, flags, steps = tmp_path / "record.json", os.environ.get("ZORPLEX_TEST_MODEL"), "", 20
    if not folder:
        monkeypatch.syspath_prepend(ROOT / "recipes")
        recipe = importlib.import_module("embedded_policy")
        folder, flags, steps = str(tmp_path / "model"), SMALL, 3
        make_model(SHAPE, tmp_path / "model")
        recipe.build_tokenizer(recipe.Recipe(seed=5, vocabulary=400)).save_pretrained(folder)
    record.write_text('[{"date": "before"}]')
    command = [sys.executable, str(ROOT / ".ci" / "gpu"), folder, "--steps", str(steps), "--record", str(record)]
    subprocess.run([*command, *flags.split()], check=True)
    before, found = json.loads(record.read_text())
    assert before == {"date": "before"}
    assert (found["steps"], found["model"]) == (steps, Path(folder).name)
    assert all(0 <= float(found[f"accuracy {when}"]) <= 1 for when in ("before", "after"))
    assert float(found["weights pulled, GB/s"]) > 0
    for role in ("trainer", "generator"):
        # How far off sizing may be is what benchmarks/sizing.py asks, on models large enough to tell.
        computed, measured = map(float, found[f"{role}, GB computed, measured"].split(", "))
        assert 0.7 < computed / measured < 1.4, found
