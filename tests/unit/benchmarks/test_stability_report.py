"""From runs to verdicts: collapse as it is defined, claims decided by their rules and by nothing less than their evidence."""

import pytest

from online_sao.benchmarks.stability.claims import verdicts
from online_sao.benchmarks.stability.report import markdown, write_report
from online_sao.benchmarks.stability.summary import WINDOW, collapse, summarise
from online_sao.benchmarks.tiny_policy.curves import smoothed

METRICS = ("masked_fraction", "ess_fraction", "kl_behavior_current_k3", "kl_base", "entropy", "grad_norm")


def a_run(recipe="sao", lag=4, seed=1, task="sort", *, success=0.8, collapsed=None, updates=60, **numbers):
    """As training.run and the command leave it. ``collapsed``: from this update on nothing is right."""
    rates = [0.0 if collapsed is not None and update >= collapsed else success for update in range(1, updates + 1)]
    series = {f"policy/{name}": [numbers.get(name, 0.01)] * updates for name in METRICS}
    series |= {
        "data/success_rate": rates,
        "value/updates": [0 if recipe == "grpo" else 2] * updates,
        "value/grad_norm": [numbers.get("value_grad_norm", 1.0)] * updates,
        "value/explained_variance": [numbers.get("explained_variance", 0.3)] * updates,
        "value/explained_variance_trajectories": [min(256, 32 * update) for update in range(1, updates + 1)],
    }
    options = {"task": task, "recipe": recipe, "lag": lag, "seed": seed, "updates": updates, "group_size": 4, "warm_start": {}}
    result = {**options, "options": options, "series": series, "held_out": {"before": 0.3, "after": rates[-1]}, "problems": {}}
    result |= {"warm_start": {"parameters": 1000}, "environment": {"cpus": 2, "platform": "a machine", "torch": "2"}, "date": "2026-11-30T12:00:00"}
    return {**result, "summary": summarise(result)}


def runs(recipe, count=3, **options):
    return [a_run(recipe, seed=seed, **options) for seed in range(1, count + 1)]


def verdict(results, start):
    (found,) = [each for each in verdicts(results) if each.claim.startswith(start)]
    return found


def test_smoothing_is_over_the_latest_updates_only():
    assert smoothed([0, 0, 3, 3], 2) == [0, 1.5, 3]
    assert smoothed([1, 2], 20) == [1.5]


def test_collapse_is_a_fall_below_half_of_the_best_that_lasts():
    high = [0.8] * 40
    # The mean of 20 falls below 0.4 with the 11th zero (0.8 · 9/20 = 0.36).
    assert collapse([*high, *[0.0] * 60], 0.3) == 51
    assert collapse([*high, *[0.0] * (10 + WINDOW)], 0.3) == 51
    assert collapse([*high, *[0.0] * (10 + WINDOW - 1)], 0.3) is None  # one update short of lasting
    assert collapse([*high, *[0.41] * 60], 0.3) is None
    assert collapse([*high, *[0.39] * 60], 0.3) == 60  # only when all 20 are of the fall


def test_collapse_is_also_a_fall_below_the_warm_start():
    assert collapse([0.24] * 60, 0.35) == 20  # never rose; 0.24 is above half of 0.35, and below 0.25
    assert collapse([0.26] * 60, 0.35) is None
    assert collapse([0.0] * 10, 0.35) is None  # too short to tell


def test_a_summary_judges_explained_variance_with_a_full_window_and_a_critic_that_is_there():
    result = a_run()
    result["series"]["value/explained_variance"][:7] = [-9.0] * 7
    assert summarise(result)["explained_variance"] == pytest.approx(0.3)
    result["series"]["policy/grad_norm"][3] = None  # an update that was taken back
    assert summarise(result)["policy_grad_norm"] == pytest.approx(0.01)
    without = a_run("grpo")["summary"]
    assert without["explained_variance"] is None
    assert without["value_grad_norm"] is None
    assert (result["summary"]["final_success"], result["summary"]["best_update"]) == (pytest.approx(0.8), 20)


def test_a_recipe_collapses_where_others_do_not():
    stable = [*runs("grpo-dis"), *runs("sao")]
    assert verdict([*runs("grpo", collapsed=30), *stable], "`grpo` collapses").decision == "reproduced"
    two_of_three = [*runs("grpo", 2, collapsed=30), a_run("grpo", seed=3)]
    assert verdict([*two_of_three, *stable], "`grpo` collapses").decision == "reproduced"
    one_of_three = [a_run("grpo", seed=1, collapsed=30), *runs("grpo")[1:]]
    assert verdict([*one_of_three, *stable], "`grpo` collapses").decision == "not reproduced"
    assert verdict([*runs("grpo"), *stable], "`grpo` collapses").decision == "not reproduced"
    assert verdict([*runs("grpo", collapsed=30), *runs("grpo-dis"), *runs("sao", collapsed=30)], "`grpo` collapses").decision == "not reproduced"


def test_collapses_need_seeds_a_lag_and_no_counterexample():
    stable = [*runs("grpo-dis"), *runs("sao")]
    assert verdict([*runs("grpo", 2, collapsed=30), *stable], "`grpo` collapses").decision == "undecided"
    on_policy = [*runs("grpo", lag=0, collapsed=30), *runs("grpo-dis", lag=0), *runs("sao", lag=0)]
    assert verdict(on_policy, "`grpo` collapses").decision == "undecided"
    elsewhere = [*runs("grpo", lag=16), *runs("grpo-dis", lag=16, collapsed=30), *runs("sao", lag=16)]
    assert verdict([*runs("grpo", collapsed=30), *stable, *elsewhere], "`grpo` collapses").decision == "undecided"


@pytest.mark.parametrize(("sao", "expected"), [(0.9, "reproduced"), (0.81, "not reproduced"), (0.7, "not reproduced")])
def test_differences_are_of_pairs(sao, expected):
    rivals = [a_run("grpo-dis", lag, seed, success=0.01 * seed + (0.8 if lag else 0.5)) for lag in (0, 4) for seed in (1, 2, 3)]
    ours = [a_run("sao", lag, seed, success=0.01 * seed + (sao if lag else sao - 0.3) - 0.01 * (seed == 2)) for lag in (0, 4) for seed in (1, 2, 3)]
    found = verdict([*rivals, *ours], "`sao` ends above")
    assert found.decision == expected
    assert "6 pairs" in found.evidence
    assert verdict([*rivals, *ours[:-1]], "`sao` ends above").decision == "undecided"


def test_critics_are_compared_by_gradient_norm_and_explained_variance():
    ours = [a_run("sao", lag, seed, value_grad_norm=1.0, explained_variance=0.4) for lag in (0, 4) for seed in (1, 2, 3)]
    unfrozen = [a_run("sao-unfrozen-attention", lag, seed, value_grad_norm=1.5) for lag in (0, 4) for seed in (1, 2, 3)]
    one_update = [a_run("sao-k1", lag, seed, explained_variance=0.45) for lag in (0, 4) for seed in (1, 2, 3)]
    assert verdict([*ours, *unfrozen], "frozen attention").decision == "reproduced"
    assert verdict([*ours, *unfrozen], "frozen attention").evidence.startswith("+0.405")  # log 1.5
    assert verdict([*ours, *one_update], "K=2").decision == "not reproduced"
    assert verdict(ours, "K=2").decision == "undecided"


def test_masked_tokens_are_few_everywhere_or_they_are_not():
    few = [*runs("sao", lag=0, masked_fraction=0.0), *runs("sao", lag=16, masked_fraction=0.03)]
    assert verdict(few, "masked").decision == "reproduced"
    assert verdict([*few, *runs("sao", task="lookup", masked_fraction=0.06)], "masked").decision == "not reproduced"
    assert verdict(runs("sao", 2), "masked").decision == "undecided"


def test_the_report_has_a_row_for_every_recipe_and_lag(tmp_path):
    results = [*runs("grpo", collapsed=30), *runs("sao"), *runs("sao", lag=0), *runs("sao", task="lookup")]
    report = markdown(results)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in report.splitlines() if line.startswith(("| sao |", "| grpo |"))]
    assert [row[:4] for row in rows] == [["sao", "4", "3", "0"], ["sao", "0", "3", "0"], ["grpo", "4", "3", "3 (40, 40, 40)"], ["sao", "4", "3", "0"]]
    assert rows[2][-2:] == ["–", "–"]
    assert "do not merge" not in report
    other = a_run(seed=4, updates=80)
    assert "do not merge" in markdown([*results, other])
    assert "Groups of one" not in report
    written = write_report([*results, *runs("grpo", task="lookup", grad_norm=0.0, kl_behavior_current_k3=0.0)], tmp_path)  # a log has no place for 0
    assert {path.name for path in written} == {
        "report.md",
        *(f"{kind}-{task}.png" for kind in ("success", "diagnostics") for task in ("sort", "lookup")),
    }
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written[1:])
