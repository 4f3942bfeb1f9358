"""From seeds to figures: differences from the right control, medians and ranges, goals said to be missed when they are."""

import copy
import json
import shutil
from pathlib import Path

import pytest
from simulated_results import SCHEDULE, seed_result, simulated_result

from online_sao.benchmarks.adaptation import _arguments, _options, main, plan_runs
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


def test_figures_kept_before_recipes_were_compared_give_the_tables_of_then(tmp_path):
    """Those of docs/adaptation.md."""
    documents = Path(__file__).parents[3] / "docs"
    shutil.copytree(documents / "data" / "adaptation", tmp_path / "copy")
    assert main(["--report-only", "--out", str(tmp_path / "copy")]) == 0
    report = (tmp_path / "copy" / "report.md").read_text()
    assert report.startswith("Schedule `first-person:96,plain-words:112,ornate-words:176`, seeds 1, 2, 3, 4, 5, server settings")
    rows = ("| 1 first-person |", "| 2 plain-words |", "| 3 ornate-words |")
    documented = [line.replace("**", "") for line in (documents / "adaptation.md").read_text().splitlines() if line.startswith(rows)]
    assert documented[:6] == [line for line in report.splitlines() if line.startswith(rows)]


# --- several recipes ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared():
    """sao and running-mean, three seeds each, in the order they are run; ema has but one."""
    runs = [seed_result(seed, **{"learning.recipe": recipe}) for seed in (1, 2, 3) for recipe in ("running-mean", "sao")]
    return [*runs, seed_result(1, **{"learning.recipe": "ema"})]


def test_recipes_are_compared_by_phase_and_by_seed(compared, tmp_path):
    (written, *_) = write_report(compared, tmp_path)
    report = written.read_text()
    assert "seeds 1, 2, 3" in report
    compared_tables, *each = report.split("\n## ")[1:]
    assert compared_tables.startswith("Uniform population")
    assert [part.splitlines()[0] for part in each] == [f"{recipe}, uniform population" for recipe in ("sao", "running-mean", "ema")]
    last = compared_tables.split("### Phase 3: ornate-words (excludes what was wanted before)")[1].split("###")[0]
    figures = [line.split(" | ")[:2] for line in last.splitlines() if line.startswith("| ")]
    assert figures[1:] == [["| sao", "3"], ["| running-mean", "3"], ["| ema", "1"]]
    against = compared_tables.split("### By seed, against `running-mean`")[1]
    # The same seeds made the same scores: every pair is equal.
    (line,) = [line for line in against.splitlines() if line.startswith("| sao | 3 ornate-words |")]
    equal, none = "1.00 (1.00 to 1.00)", "+0.000 (+0.000 to +0.000)"
    assert line == f"| sao | 3 ornate-words | 3 | {equal} | {equal} | – | {none} | {none} |"
    assert row(report, "**the goal**")[1] == "**not met**"
    assert row(report, "back to its own level before the shift in half the interactions of `running-mean`")[1] == "**not met**"
    assert row(report, "back to its own level before the shift no later than `ema`")[1] == "**undecided**"
    assert row(report, "mixed population: clearly ahead of `running-mean`")[1] == "**undecided**"


def test_populations_are_not_merged(compared, tmp_path):
    changed = copy.deepcopy(compared)
    for result in changed[:2]:
        for run in result["runs"].values():
            run["options"]["population"] = "mixed"
    written = write_report(changed, tmp_path)
    report = written[0].read_text()
    assert report.index("## Uniform population") < report.index("## Mixed population") < report.index("## sao, uniform population")
    of_mixed = report.split("## Mixed population")[1].split("\n## ")[0]
    assert len([line for line in of_mixed.splitlines() if line.startswith("| sao | 1 |")]) == 3


@pytest.mark.parametrize("difference", ["setting", "option"])
def test_runs_made_otherwise_are_not_compared(compared, difference, tmp_path):
    changed = copy.deepcopy(compared)
    if difference == "setting":
        changed[0]["settings"]["learning.batch_size"] = "4"
    else:
        changed[0]["runs"]["real"]["options"]["scale"] = "thumbs"
    report = write_report(changed, tmp_path)[0].read_text()
    assert "Nothing is compared" in report
    assert "Verdict" not in report
    assert "## running-mean, uniform population" in report


def test_what_did_not_recover_is_said_in_the_table(compared, tmp_path):
    changed = copy.deepcopy(compared)
    for interaction in changed[0]["runs"]["real"]["interactions"]:
        interaction["score"] = 0.0
    report = write_report(changed, tmp_path)[0].read_text()
    assert "1 not recovered" in report.split("### Phase 3")[1].split("###")[0]


def test_the_recipes_curves_are_drawn(compared, tmp_path):
    pytest.importorskip("matplotlib")
    written = write_report(compared, tmp_path)
    assert [path.name for path in written] == ["report.md", "recipes.png"]
    assert written[1].read_bytes().startswith(b"\x89PNG")


def test_seed_one_of_everything_comes_first_and_every_run_has_a_file_of_its_own():
    arguments = _arguments(["--recipes", "sao", "sao/paper", "running-mean", "--population", "uniform", "mixed", "--seeds", "1", "2"])
    planned = plan_runs(arguments)
    stems = ["sao", "sao-paper", "running-mean", "sao-mixed", "sao-paper-mixed", "running-mean-mixed"]
    assert [run.stem for run in planned] == [f"{stem}-seed-{seed}" for seed in (1, 2) for stem in stems]
    assert planned[1].settings({"engine.kind": "vllm"}) == {"learning.recipe": "sao", "learning.preset": "paper", "engine.kind": "vllm"}
    assert [run.population for run in planned[:6]] == ["uniform"] * 3 + ["mixed"] * 3


def test_recipes_of_a_seed_meet_the_same_users():
    arguments = _arguments(["--recipes", "sao", "ema", "--schedule", "plain-words:8,ornate-words:8", "--population", "mixed"])
    first, second = plan_runs(arguments)[:2]
    assert {first.seed, second.seed} == {1}
    assert _options(arguments, first.seed, first.population) == _options(arguments, second.seed, second.population)


def test_one_recipe_by_the_settings_keeps_its_files():
    for population in ("uniform", "mixed"):
        assert [run.stem for run in plan_runs(_arguments(["--seeds", "3", "--population", population]))] == ["seed-3"]
    assert plan_runs(_arguments([]))[0].settings({"learning.recipe": "ema"}) == {"learning.recipe": "ema"}


def test_engine_is_short_for_a_setting():
    assert _arguments(["--engine", "vllm", "--set", "learning.batch_size=4"]).settings == {"engine.kind": "vllm", "learning.batch_size": "4"}
    assert _arguments([]).settings == {}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--recipes", "sao", "runing-mean"], "Did you mean running-mean?"),
        (["--recipes", "sao/life"], "NAME/paper"),
        (["--recipes", "ema/paper"], "no recipe ema/paper"),
        (["--recipes", "grpo"], "compares several answers"),
        (["--recipes", "sao", "ema", "--schedule", "plain-words,first-person"], "the last shift"),
        (["--recipes", "sao", "ema", "--schedule", "plain-words", "--controls", "frozen"], "the last shift"),
        (["--recipes", "sao", "--set", "learning.recipe=ema"], "do not go together"),
        (["--engine", "vllm", "--set", "engine.kind=transformers"], "do not go together"),
        (["--population", "mixed", "--schedule", "plain-words,warm-words"], "has no opposite"),
    ],
)
def test_comparisons_that_cannot_work_are_refused_before_anything_runs(wrong, said, capsys):
    with pytest.raises(SystemExit):
        _arguments(wrong)
    assert said in " ".join(capsys.readouterr().err.split())


def test_the_same_run_twice_is_not_counted_twice(tmp_path):
    for name in ("seed-1", "sao-seed-1"):
        (tmp_path / f"{name}.json").write_text(json.dumps(seed_result(1)))
    assert main(["--report-only", "--out", str(tmp_path)]) == 1
    (tmp_path / "seed-1.json").unlink()
    assert main(["--report-only", "--out", str(tmp_path)]) == 0
