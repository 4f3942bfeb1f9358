"""The ingest benchmark's tables: figures where they belong, goals missed said to be missed."""

import copy

from online_sao.benchmarks.ingest import main
from online_sao.benchmarks.ingest_report import markdown, write_report

BURST = {"scores": 100, "seconds": 1.0, "p50": 0.01, "p95": 0.02, "p99.9": 0.06, "failed": 0, "failures": [], "server_cpu": 0.9, "client_cpu": 0.2}
RESULT = {
    "database": "sqlite",
    "interactions": 1_000_500,
    "environment": {"cpus": 2, "load_at_end": 0.4},
    "bursts": [{"name": "8 clients", "rate": 1400.0, "p99": 0.08, **BURST}, {"name": "1000/s", "rate": 980.0, "p99": 0.04, **BURST}],
    "readings": {"snapshot": {"first": 0.5, "median": 0.1, "maximum": 0.15}, "shifts": {"first": 0.9, "median": 0.001, "maximum": 0.19}},
}


def test_goals_that_are_met():
    report = markdown([RESULT])
    assert "**sqlite**, 1,000,500 interactions stored" in report
    assert "| 8 clients | 1400 | 10.0 | 20.0 | 80.0 | 60.0 | 0 of 100 | 90% | 20% |" in report
    assert "| snapshot | 500.0 | 100.0 | 150.0 |" in report
    assert "| 1400 (8 clients) | yes |" in report
    assert "| up to 980 scores/s | yes |" in report
    assert "| 190 ms (shifts) | yes |" in report


def test_goals_that_are_missed():
    result = copy.deepcopy(RESULT)
    result["bursts"][1] |= {"failed": 1}
    result["bursts"][0] |= {"rate": 900.0}
    result["bursts"][1] |= {"rate": 900.0}
    result["readings"]["snapshot"] |= {"maximum": 0.21}
    report = markdown([result])
    assert report.count("**no**") == 3
    assert "| up to 0 scores/s | **no** |" in report
    assert "| 210 ms (snapshot) | **no** |" in report


def test_both_databases_in_one_report_and_plot(tmp_path):
    written = write_report([RESULT, {**RESULT, "database": "postgresql"}], tmp_path)
    assert [path.name for path in written] == ["report.md", "ingest.png"]
    assert written[1].read_bytes()[1:4] == b"PNG"
    assert "**postgresql**" in written[0].read_text()


def test_without_figures_there_is_no_report(tmp_path):
    assert main(["--report-only", "--out", str(tmp_path)]) == 1
