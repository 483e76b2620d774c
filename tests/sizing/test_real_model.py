"""``.ci/gpu`` measures a model from elsewhere: the one in ``ZORPLEX_TEST_MODEL``, else a small Qwen2 with
random weights and a tokenizer of its own. Without a GPU it measures the CPU."""

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


@pytest.mark.long
def test_a_model_is_sampled_trained_and_recorded(tmp_path, monkeypatch):
    record, folder = tmp_path / "record.json", os.environ.get("ZORPLEX_TEST_MODEL")
    if not folder:
        monkeypatch.syspath_prepend(ROOT / "recipes")
        recipe, folder = importlib.import_module("embedded_policy"), str(tmp_path / "model")
        make_model(SHAPE, tmp_path / "model")
        recipe.build_tokenizer(recipe.Recipe(seed=5, vocabulary=400)).save_pretrained(folder)
    record.write_text('[{"date": "before"}]')
    few = "--minutes 2 --steps 2 --tasks 4 --prompts 1".split()
    subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "gpu"), folder, *few, "--record", str(record)],
        check=True,
    )
    before, found = json.loads(record.read_text())
    assert before == {"date": "before"}
    assert found["model"] == Path(folder).name
    for said in ("sampling of 8 episodes: ", "gradient of 8 episodes: ", "training: 2 steps in "):
        assert said in found["cpu, float32"]
    assert "failed" not in json.dumps(found)
