"""The barrier benchmark's real part: engine, learner process and swaps on the tiny model, each schedule a few updates."""

import json

import numpy as np

from online_sao.benchmarks.barrier import main


def test_every_schedule_runs_for_real_beside_its_prediction(tmp_path):
    command = ["--parts", "real", "--variations", "1", "--real-batch", "8", "--real-tokens", "6", "--real-updates", "2", "--real-warmup", "1"]
    assert main([*command, "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "real.json").read_text())
    runs = {run["schedule"]: run for run in result["runs"]}
    assert list(runs) == ["synchronous", "asynchronous groups", "single rollouts"]
    for run in runs.values():
        for found in (run["predicted"], run["measured"]):
            assert all(np.isfinite(value) and value >= 0 for value in found.values())
            assert 0 < found["worker_utilisation"] <= 1 + 1e-9
            assert 0 < found["learner_utilisation"] <= 1 + 1e-9
    assert runs["synchronous"]["measured"]["lag_mean"] == 0
    for pace in result["pace"].values():
        assert pace["slowed"] > 0
        assert all(seconds > 0 for _, seconds in pace["token_seconds"])
    assert result["drift"]["update"] > 0
    assert "| 1 | single rollouts |" in (tmp_path / "report.md").read_text()
