"""The learner and decode benchmarks: their arithmetic by hand, memory, and a step of TRL."""

from __future__ import annotations

import sys

import pytest
import torch

from online_sao.benchmarks import decode, learner, trl_grpo
from online_sao.benchmarks.measured import peak_memory
from online_sao.benchmarks.trl_grpo import _padded
from tests.fakes.tiny_model import tiny_model


def test_the_learner_benchmark_says_what_it_lacks(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(trl_grpo.importlib.util, "find_spec", lambda name: None)
    assert learner.main(["--out", str(tmp_path / "new")]) == 2
    assert "online-sao[bench]" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    assert learner.main(["--out", str(tmp_path), "--report-only"]) == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no other system says")
def test_memory_is_what_a_step_needs_beyond_what_is_there():
    def step() -> None:
        torch.ones(10_000_000) * 2  # two of 40 MB

    step()
    for _ in range(2):
        found = peak_memory(step)
        assert found is not None
        assert 78e6 < found["more"] < 90e6


def test_padding_to_either_side():
    ids, mask = _padded([[1, 2], [3]], 0, left=True)
    assert (ids.tolist(), mask.tolist()) == ([[1, 2], [0, 3]], [[1, 1], [0, 1]])
    ids, mask = _padded([[1, 2], [3]], 0, left=False)
    assert (ids.tolist(), mask.tolist()) == ([[1, 2], [3, 0]], [[1, 1], [1, 0]])


def test_trl_takes_a_step_on_our_trajectories(tmp_path):
    pytest.importorskip("trl")
    trajectories = learner.make_trajectories(tiny_model(), learner.Case("usual", trajectories=4, tokens=3), 1000)
    for with_reference in (False, True):
        step = trl_grpo.GRPOStep(tiny_model(), trajectories, rank=2, alpha=4, learning_rate=1e-2, with_reference=with_reference, folder=tmp_path)
        weights = [p for p in step._trainer.model.parameters() if p.requires_grad]
        before = [p.detach().clone() for p in weights]
        step()
        assert any(not torch.equal(p, old) for p, old in zip(weights, before, strict=True))


def test_the_floor_is_whichever_takes_longer():
    assert decode.floor_seconds(800, 200, 10.0, bandwidth=100.0, rate=100.0) == {"memory": 10.0, "compute": 0.1, "seconds": 10.0}
    assert decode.floor_seconds(800, 200, 5000.0, bandwidth=100.0, rate=100.0)["seconds"] == 50.0


def test_steps_count_while_all_answers_run():
    # The second begins at 2 and the first ends at 5: gaps outside do not count.
    assert decode._steps([[0, 1, 3, 5], [2, 3, 4, 9]]) == [2, 1, 1]


def test_keys_and_values_by_hand():
    model = decode.load_model(tiny_model())  # 2 layers, 1 key-value head of width 32
    assert decode.kv_bytes(model, 10) == 2 * 4 * 2 * 1 * 32 * 10
