"""The two labs from end to end: files, reports, and what a second call does with them."""

import json

from online_sao.benchmarks.adaptation_lab.command import main as adaptation
from online_sao.benchmarks.adaptation_lab.options import LIVE
from online_sao.benchmarks.adaptation_lab.stream import POPULATIONS
from online_sao.benchmarks.stability.command import main as stability


def assert_kept(lab, asked, out, capsys, *, runs, row, otherwise):
    """A second call makes nothing anew, a report is made of what is there, and a call that asks for something else is told so."""
    files = sorted((out / "runs").iterdir())
    written = [path.stat().st_mtime_ns for path in files]
    capsys.readouterr()
    assert lab(asked) == 0
    assert [path.stat().st_mtime_ns for path in files] == written
    assert f"{runs} of {runs} runs are there already" in capsys.readouterr().err
    (out / "report.md").unlink()
    assert lab(["--report-only", "--out", str(out)]) == 0
    assert row in (out / "report.md").read_text()
    assert lab([*asked, *otherwise]) == 1  # not passed off as the same experiment
    assert "made with other options" in capsys.readouterr().err


def test_every_stability_run_is_a_file_that_a_second_call_skips(tmp_path, capsys):
    asked = ["--recipes", "sao", "grpo", "--preset", "live", "--lags", "0", "2", "--seeds", "1", "--updates", "3", "--batch-size", "8"]
    asked += ["--held-out", "16", "--warm-start-steps", "25", "--threads", "1", "--out", str(tmp_path)]
    assert stability(asked) == 0
    names = {f"{task}-{name}-lag{lag}-seed1.json" for task in ("lookup", "sort") for name in ("sao", "grpo") for lag in (0, 2)}
    assert {path.name for path in (tmp_path / "runs").iterdir()} == names
    result = json.loads((tmp_path / "runs" / "lookup-sao-lag2-seed1.json").read_text())
    assert result["options"]["updates"] == 3
    assert result["recipe_numbers"]["value_updates"] == 2
    assert result["recipe_numbers"]["anchor_coefficient"] == 0  # of every recipe, and not what live says
    assert 5e5 < result["warm_start"]["parameters"] < 2e6
    assert {len(values) for values in result["series"].values()} == {3}
    assert "--seeds 1" in result["command"]
    assert_kept(stability, asked, tmp_path, capsys, runs=8, row="| sao | 2 | 1 |", otherwise=["--group-size", "2"])


def test_every_run_of_the_adaptation_lab_is_a_file_that_a_second_call_skips(tmp_path, capsys):
    asked = ["--recipes", "sao", "ema", "--seeds", "1", "--phase-interactions", "8", "--warm-start-steps", "25", "--out", str(tmp_path)]
    assert adaptation(asked) == 0
    names = {f"{population}-unnamed-binary-{name}-seed1.json" for population in POPULATIONS for name in ("sao", "ema")}
    assert {path.name for path in (tmp_path / "runs").iterdir()} == names
    result = json.loads((tmp_path / "runs" / "mixed-unnamed-binary-sao-seed1.json").read_text())
    assert result["recipe_numbers"]["anchor_gain"] == LIVE.anchor_gain
    assert len(result["scores"]) == 24
    assert "--seeds 1" in result["command"]
    assert_kept(adaptation, asked, tmp_path, capsys, runs=6, row="| ema | 1 |", otherwise=["--lag", "0"])
