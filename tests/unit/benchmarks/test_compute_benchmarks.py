"""The learner and decode benchmarks: their arithmetic by hand, and whole runs of seconds on the tiny model."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from online_sao.benchmarks import decode, learner, trl_grpo
from online_sao.benchmarks.measured import peak_memory
from online_sao.benchmarks.trl_grpo import _padded
from tests.fakes.tiny_model import tiny_model


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_learner_benchmark_from_end_to_end(tmp_path):
    sizes = ["--batches", "2", "--lengths", "--ranks", "2", "--repetitions", "2", "--growth-repetitions", "1", "--tokens", "4", "--threads", "1"]
    sizes += ["--at-once", "2"]
    command = ["--model", str(tiny_model()), "--no-trl", *sizes, "--out", str(tmp_path)]
    assert learner.main(command) == 0
    usual, fewer, rank = json.loads((tmp_path / "learner.json").read_text())["cases"]
    assert (usual["trajectories"], fewer["trajectories"], rank["rank"]) == (8, 2, 2)
    assert usual["action_tokens"] == 32
    assert [case["contestants"]["sao"]["seconds"]["runs"] for case in (usual, fewer, rank)] == [2, 1, 1]
    assert usual["computed_tokens"] < usual["all_tokens"], "a shared prefix is computed once"
    for case in (usual, fewer, rank):
        sao, cheap = (case["contestants"][name] for name in ("sao", "running-mean"))
        assert sao["flops"] > cheap["flops"] > 0
        assert sum(sao["executed_flops"].values()) > sao["flops"]
        assert sao["masked_fraction"] == 0, "the batch is on-policy"
        assert sum(sao["time_by_kind"].values()) == pytest.approx(1)
        assert sao["time_by_kind"]["products"] > 0.05, "operators of all threads are seen"
        assert cheap["parts"]["value"]["median"] == 0
    assert usual["contestants"]["sao"]["flops"] > fewer["contestants"]["sao"]["flops"]
    report = (tmp_path / "report.md").read_text()
    (tmp_path / "report.md").unlink()
    assert learner.main(["--out", str(tmp_path), "--report-only"]) == 0
    assert (tmp_path / "report.md").read_text() == report
    assert "| sao |" in report


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


def test_the_decode_benchmark_from_end_to_end(tmp_path):
    sizes = ["--requests", "1", "3", "--tokens", "6", "--repetitions", "1", "--threads", "1", "--bandwidth-megabytes", "8"]
    assert decode.main(["--model", str(tiny_model()), *sizes, "--out", str(tmp_path)]) == 0
    alone, three = json.loads((tmp_path / "decode.json").read_text())["cases"]
    assert (alone["requests"], three["requests"]) == (1, 3)
    # 2 blocks of 64x64, 64x32 twice, 64x64, 64x128 twice, 128x64, and the output matrix.
    assert alone["limits"]["weight_bytes"] == 4 * (2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128) + 49152 * 64)
    for case in (alone, three):
        assert case["step_seconds"]["median"] > case["limits"]["floor"]["seconds"] > 0
        assert 0 < case["shares"]["model"] + case["shares"]["sampling"] < 1
        assert case["time_by_kind"]["products"] > 0, "the generation thread is seen"
    assert (tmp_path / "report.md").read_text().count("\n| 1 |") == 4
