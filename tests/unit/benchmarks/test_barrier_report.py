"""The barrier benchmark's simulated part from end to end, kept and reported; its real part's table."""

import json

import pytest

from online_sao.benchmarks.barrier import _tokens, main
from online_sao.benchmarks.barrier_report import FIGURES, markdown
from online_sao.errors import ConfigurationError

SMALL = ["--parts", "model", "--workers", "8", "16", "--updates", "6", "--rollouts", "0", "--warmup", "2", "--seeds", "1", "2"]


def test_cells_are_kept_reported_and_not_mixed_with_others(tmp_path):
    assert main([*SMALL, "--out", str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        "model-cv1-8.json", "model-cv1-16.json", "model-cv2-8.json", "model-cv2-16.json", "report.md", "barrier.png"
    }  # fmt: skip
    report = (tmp_path / "report.md").read_text()
    rows = [line for line in report.splitlines() if line.startswith(("| 8 |", "| 16 |"))]
    assert len(rows) == 2 * 2 * 3
    assert all(line.endswith("| 1.0 |") for line in rows if "synchronous |" in line)
    cell = json.loads((tmp_path / "model-cv2-16.json").read_text())["schedules"]["single rollouts"]
    assert f"| {cell['worker_utilisation']['mean']:.1%} ±" in rows[-1]
    kept = (tmp_path / "model-cv1-8.json").stat().st_mtime_ns
    assert main([*SMALL, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "model-cv1-8.json").stat().st_mtime_ns == kept
    with pytest.raises(ConfigurationError, match="other settings"):
        main([*SMALL, "--update-time", "0.9", "--out", str(tmp_path)])


def test_without_figures_there_is_no_report(tmp_path, capsys):
    assert main(["--report-only", "--out", str(tmp_path)]) == 1
    assert "no figures" in capsys.readouterr().err


def test_batches_that_hold_no_whole_groups_are_refused(tmp_path):
    with pytest.raises(SystemExit):
        main(["--workers", "12", "--out", str(tmp_path)])


def test_a_prediction_stands_before_what_was_measured():
    predicted, measured = ({key: start + place for place, (key, _, _) in enumerate(FIGURES)} for start in (0.5, 0.75))
    settings = {"real_workers": 8, "real_tokens": 32, "real_batch": 16, "real_updates": 20, "model": "tiny"}
    run = {"variation": 2.0, "schedule": "single rollouts", "predicted": predicted, "measured": measured}
    report = markdown(
        [], {"settings": settings, "environment": {"cpus": 2, "load_at_end": 0.5}, "drift": {"token": 1.02, "update": 0.97}, "runs": [run]}
    )
    assert "a token took 1.02 times as long as before them, an update 0.97 times" in report
    assert "| 2 | single rollouts | 50.0% → 75.0% | 150.0% → 175.0% | 2.5 → 2.8 |" in report


def test_real_lengths_are_whole_tokens_that_fit_and_the_same_each_time():
    one, other = _tokens(2.0, 32, 100), _tokens(2.0, 32, 100)
    lengths = [next(one) for _ in range(2000)]
    assert lengths == [next(other) for _ in range(2000)]
    assert min(lengths) >= 1
    assert max(lengths) == 100
    assert all(length == int(length) for length in lengths)
