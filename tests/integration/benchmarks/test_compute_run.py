"""The learner and decode benchmarks from end to end, on the tiny model."""

import json

import pytest
import torch

from online_sao.benchmarks import decode, learner
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
