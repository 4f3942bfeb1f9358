"""The two labs from end to end: files, reports, and what a second call does with them."""

import json

from online_sao.benchmarks.adaptation_lab.command import main as adaptation
from online_sao.benchmarks.adaptation_lab.options import LIVE
from online_sao.benchmarks.adaptation_lab.stream import POPULATIONS
from online_sao.benchmarks.stability.command import main as stability


def test_every_stability_run_is_a_file_that_a_second_call_skips(tmp_path, capsys):
    asked = ["--recipes", "sao", "grpo", "--preset", "live", "--lags", "0", "2", "--seeds", "1", "--updates", "3", "--batch-size", "8"]
    asked += ["--held-out", "16", "--warm-start-steps", "25", "--threads", "1", "--out", str(tmp_path)]
    assert stability(asked) == 0
    files = sorted((tmp_path / "runs").iterdir())
    names = {f"{task}-{name}-lag{lag}-seed1.json" for task in ("lookup", "sort") for name in ("sao", "grpo") for lag in (0, 2)}
    assert {path.name for path in files} == names
    result = json.loads((tmp_path / "runs" / "lookup-sao-lag2-seed1.json").read_text())
    assert result["options"]["updates"] == 3
    assert result["recipe_numbers"]["value_updates"] == 2
    assert result["recipe_numbers"]["anchor_coefficient"] == 0  # of every recipe, and not what live says
    assert 5e5 < result["warm_start"]["parameters"] < 2e6
    assert {len(values) for values in result["series"].values()} == {3}
    assert "--seeds 1" in result["command"]
    written = [path.stat().st_mtime_ns for path in files]
    capsys.readouterr()
    assert stability(asked) == 0
    assert [path.stat().st_mtime_ns for path in files] == written
    assert "8 of 8 runs are there already" in capsys.readouterr().err
    (tmp_path / "report.md").unlink()
    assert stability(["--report-only", "--out", str(tmp_path)]) == 0
    assert "| sao | 2 | 1 |" in (tmp_path / "report.md").read_text()
    assert stability([*asked, "--group-size", "2"]) == 1  # not passed off as the same experiment
    assert "made with other options" in capsys.readouterr().err


def test_every_run_of_the_adaptation_lab_is_a_file_that_a_second_call_skips(tmp_path, capsys):
    asked = ["--recipes", "sao", "ema", "--seeds", "1", "--phase-interactions", "8", "--warm-start-steps", "25", "--out", str(tmp_path)]
    assert adaptation(asked) == 0
    files = sorted((tmp_path / "runs").iterdir())
    names = {f"{population}-unnamed-binary-{name}-seed1.json" for population in POPULATIONS for name in ("sao", "ema")}
    assert {path.name for path in files} == names
    result = json.loads((tmp_path / "runs" / "mixed-unnamed-binary-sao-seed1.json").read_text())
    assert result["recipe_numbers"]["anchor_gain"] == LIVE.anchor_gain
    assert len(result["scores"]) == 24
    assert "--seeds 1" in result["command"]
    written = [path.stat().st_mtime_ns for path in files]
    capsys.readouterr()
    assert adaptation(asked) == 0
    assert [path.stat().st_mtime_ns for path in files] == written
    assert "6 of 6 runs are there already" in capsys.readouterr().err
    (tmp_path / "report.md").unlink()
    assert adaptation(["--report-only", "--out", str(tmp_path)]) == 0
    assert "| ema | 1 |" in (tmp_path / "report.md").read_text()
    assert adaptation([*asked, "--lag", "0"]) == 1  # not passed off as the same experiment
    assert "made with other options" in capsys.readouterr().err
