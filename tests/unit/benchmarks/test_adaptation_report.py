"""From seeds to figures: differences from the right control, medians and ranges, goals said to be missed when they are."""

import copy

import pytest
from simulated_results import SCHEDULE, seed_result, simulated_result

from online_sao.benchmarks.adaptation import _arguments, _options, main
from online_sao.benchmarks.adaptation_report import markdown, summarise, write_report
from online_sao.simulation.run import SimulationOptions


@pytest.fixture(scope="module")
def seeds():
    return [seed_result(seed) for seed in (1, 2, 3)]


def row(report, start):
    (line,) = [line for line in report.splitlines() if line.startswith(f"| {start} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_each_phase_is_compared_with_the_control_sampled_before_anything_was_learned(seeds):
    summary = seeds[0]["summary"]
    runs = seeds[0]["runs"]
    assert [phase["name"] for phase in summary["phases"]] == ["first-person", "plain-words", "ornate-words"]
    last = summary["phases"][2]
    assert last["frozen"] == runs["before"]["controls"]["3"]["mean"]
    assert last["minus_frozen"] == pytest.approx(runs["real"]["phases"][0]["last_window_mean"] - last["frozen"])
    assert last["minus_anchor_only"] == pytest.approx(
        runs["real"]["phases"][0]["last_window_mean"] - runs["anchor-only"]["phases"][0]["last_window_mean"]
    )
    assert last["held_out_frozen"] == runs["before"]["held_out_frozen"]["3"]
    assert [phase["minus_anchor_only"] for phase in summary["phases"][:2]] == [None, None]
    assert last["distinct_2_ratio"] == pytest.approx(runs["real"]["phases"][0]["distinct_2"] / runs["before"]["controls"]["3"]["distinct_2"])
    assert summary["kl_base_max"] == max(run["kl_base_max"] for run in runs.values())


def test_without_branches_one_run_holds_every_phase():
    run = simulated_result(SimulationOptions(schedule=SCHEDULE, seed=1, window=20), [(0.1, 0.8)] * 3, failures=2)
    summary = summarise({"real": run})
    assert [phase["number"] for phase in summary["phases"]] == [1, 2, 3]
    assert all(phase["minus_frozen"] == phase["last_window_mean"] - phase["frozen"] for phase in summary["phases"])
    assert summary["phases"][2]["minus_anchor_only"] is None
    assert summary["non_2xx"] == 2


def test_tables_give_median_and_range(seeds):
    changed = copy.deepcopy(seeds)
    for result, difference in zip(changed, (0.5, 0.3, -0.1), strict=True):
        result["summary"]["phases"][1]["minus_frozen"] = difference
    report = markdown(changed)
    assert "+0.30 (-0.10 to +0.50)" in report
    assert row(report, "phase 2: ≥ 0.25 over frozen in the median")[1:] == ["+0.300", "yes"]
    assert row(report, "phase 2: no seed below frozen")[1:] == ["lowest -0.100", "**no**"]
    assert row(report, "phase 3: above anchor-only in the median")[-1] == "yes"
    assert row(report, "no call answered other than 2xx")[1:] == ["0 of 900", "yes"]


def test_goals_missed_are_said_so(seeds):
    changed = copy.deepcopy(seeds)
    for result in changed:
        result["summary"]["phases"][2] |= {"minus_anchor_only": -0.05, "minus_frozen": 0.2, "distinct_2_ratio": 0.6}
        result["summary"]["non_2xx"] = 1
    report = markdown(changed)
    for goal in (
        "phase 3: ≥ 0.25 over frozen in the median",
        "phase 3: above anchor-only in the median",
        "phase 3: distinct-2 ≥ 0.7 of base in every seed",
        "no call answered other than 2xx",
    ):
        assert row(report, goal)[-1] == "**no**", goal


def test_seeds_run_with_other_settings_are_not_passed_off_as_one_experiment(seeds):
    assert "as they come" in markdown(seeds)
    other = seed_result(4, **{"learning.policy_learning_rate": "1e-3"})
    assert "do not merge" in markdown([*seeds, other])
    assert "`learning.policy_learning_rate=1e-3`" in markdown([other])


def test_plots_are_written(seeds, tmp_path):
    pytest.importorskip("matplotlib")
    written = write_report(seeds, tmp_path)
    assert [path.name for path in written] == ["report.md", "adaptation.png", "held-out.png", "kl.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written[1:])


def test_finished_seeds_are_skipped_and_the_report_made_anew(seeds, tmp_path):
    import json

    for result in seeds:
        (tmp_path / f"seed-{result['seed']}.json").write_text(json.dumps(result))
    assert main(["--seeds", "1", "2", "--out", str(tmp_path)]) == 0
    (tmp_path / "report.md").unlink()
    assert main(["--report-only", "--out", str(tmp_path)]) == 0
    assert "seeds 1, 2, 3" in (tmp_path / "report.md").read_text()
    assert main(["--report-only", "--out", str(tmp_path / "empty")]) == 1


def test_scores_per_phase_fill_what_the_schedule_leaves_open():
    arguments = _arguments(["--schedule", "first-person,plain-words:40", "--scores-per-phase", "24", "--set", "learning.batch_size=4"])
    assert _options(arguments, 7).schedule == "first-person:24,plain-words:40"
    assert _options(arguments, 7).seed == 7
    assert arguments.settings == {"learning.batch_size": "4"}


@pytest.mark.parametrize("wrong", [["--schedule", "first-person"], ["--set", "batch_size=4"], ["--controls", "none"]])
def test_arguments_that_cannot_work_are_refused(wrong, capsys):
    with pytest.raises(SystemExit):
        _arguments(wrong)
    assert "error" in capsys.readouterr().err
