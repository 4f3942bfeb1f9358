"""What recipes are compared by: recovery, levels, areas and updates of a phase, by hand-made runs; and the goal's verdicts by their rules."""

from dataclasses import replace

import pytest

from online_sao.benchmarks.adaptation_claims import ratio, run_area, verdicts
from online_sao.benchmarks.adaptation_measures import SMOOTHED, PhaseMeasures, Recovery, excludes, measure, measured, recipe_of, recovered_at

LENGTH = 60


def a_result(recipe="sao", seed=1, *, levels=(0.5, 0.5), silent=30, after=0.6):
    """Two phases of 60 interactions, one a second, answered after 3 s. The first scores ``levels[0]`` throughout; the second 0 for ``silent``
    interactions, then ``after``. A batch of eight an update, which takes four seconds; the fifth update of a phase takes 40."""
    interactions, updates = [], []
    for phase in (1, 2):
        for place in range(LENGTH):
            index = (phase - 1) * LENGTH + place
            score = levels[0] if phase == 1 else 0.0 if place < silent else after
            receipt = {"update": index // 8 + 1, "created": 1000.0 + index}
            interactions.append({"index": index, "phase": phase, "score": score, "total_seconds": 3.0, "receipt": receipt})
    for number in range(1, 16):
        metrics = {"policy/kl_base": number / 100, "value/updates": 0 if recipe == "running-mean" else 2, "value/explained_variance": number / 10}
        times = {"started_at": 100.0 * number, "finished_at": 100.0 * number + (40 if number in (5, 12) else 4)}
        updates.append({"number": number, "accepted": number != 15, "metrics": metrics, **times})
    phases = [
        {"number": 1, "name": "plain-words", "first": 0, "last": LENGTH - 1, "last_window_mean": levels[0], "distinct_2": 0.9},
        {"number": 2, "name": "ornate-words", "first": LENGTH, "last": 2 * LENGTH - 1, "last_window_mean": levels[1], "distinct_2": 0.8},
    ]
    name, _, preset = recipe.partition("/")
    run = {"options": {"population": "uniform"}, "phases": phases, "interactions": interactions, "updates": updates}
    return {
        "seed": seed,
        "settings": {"learning.recipe": name, "learning.preset": preset or "live"},
        "runs": {"real": run},
    }


def test_recovered_is_the_first_place_whose_latest_scores_reach_the_bar():
    scores = [0.0, 0.0, 0.4, 0.8, 0.0, 1.0]
    # Means of the latest three: -, -, 0.133, 0.4, 0.4, 0.6.
    assert recovered_at(scores, 0.4, 3) == 3
    assert recovered_at(scores, 0.41, 3) == 5
    assert recovered_at(scores, 0.61, 3) is None
    assert recovered_at([1.0, 0.0], 0.5, 3) == 1  # fewer than the window: all of them
    assert recovered_at([0.1] * 30, 0.1) == SMOOTHED - 1  # a mean that rounds below its bar is at it


def test_recovery_counts_interactions_and_seconds_from_the_shift():
    shift = measure(a_result(levels=(0.5, 0.6), silent=30, after=0.6))[1]
    # The bar is 0.8 · 0.5 = 0.4: 16 of the latest 24 score 0.6 (0.6 · 16 / 24 = 0.4). That is interaction 30 + 16 of the phase.
    assert shift.recovery.interactions == 46
    # Asked at 1060 − 3, the 46th scored at 1105.
    assert shift.recovery.seconds == 48.0
    assert (shift.recovery.phase_interactions, shift.recovery.phase_seconds) == (60, 62.0)
    assert shift.recovery.counted_interactions == 46
    assert shift.recovery.counted_seconds == 48.0


def test_what_does_not_recover_counts_as_its_phases_length():
    shift = measure(a_result(silent=50))[1]
    assert shift.recovery.interactions is None
    assert shift.recovery.seconds is None
    assert (shift.recovery.counted_interactions, shift.recovery.counted_seconds) == (60, 62.0)


def test_a_failed_interaction_was_asked_all_the_same():
    result = a_result(silent=30)
    run = result["runs"]["real"]
    run["interactions"] = [interaction for interaction in run["interactions"] if interaction["index"] != LENGTH]
    shift = measure(result)[1]
    assert (shift.answers, shift.recovery.interactions) == (59, 46)


def test_scores_that_never_came_leave_interactions_and_take_the_time():
    result = a_result()
    for interaction in result["runs"]["real"]["interactions"]:
        interaction["receipt"] = None
    shift = measure(result)[1]
    assert shift.recovery.interactions == 46
    assert shift.recovery.seconds is None
    assert shift.recovery.counted_seconds is None
    assert shift.update_seconds is None
    assert shift.kl_base is None


def test_the_first_phase_has_nothing_to_recover():
    first, shift = measure(a_result(), a_result("running-mean"))
    assert first.recovery is None
    assert first.shared_recovery is None
    assert shift.shared_recovery is not None
    assert measure(a_result())[1].shared_recovery is None


def test_the_shared_level_is_running_means_of_the_same_seed_whatever_a_recipe_had_learned():
    weak, strong = a_result("sao", levels=(0.1, 0.6)), a_result("running-mean", levels=(0.5, 0.6))
    found = measured([weak, strong, a_result("running-mean", seed=2, levels=(0.9, 0.6))])["uniform"]
    shift = found["sao"][1][1]
    # Own bar 0.08: four of 24 at 0.6 (0.1); the shared one is 0.4.
    assert (shift.recovery.interactions, shift.shared_recovery.interactions) == (34, 46)
    reference = found["running-mean"][1][1]
    assert reference.recovery == reference.shared_recovery
    assert found["running-mean"][2][1].recovery.interactions is None  # its bar, 0.72, is above 0.6


def test_area_levels_and_updates_of_each_phase():
    first, shift = measure(a_result(levels=(0.5, 0.55)))
    assert first.area == pytest.approx(0.5)
    assert shift.area == pytest.approx(0.3)
    assert run_area([replace(first, answers=20), shift]) == pytest.approx((0.5 * 20 + 0.3 * 60) / 80)
    assert (first.final_level, shift.final_level, first.distinct_2, shift.distinct_2) == (0.5, 0.55, 0.9, 0.8)
    # Update 8 used interactions 56 to 63, of both phases: it is the second's. Update 15 was not accepted.
    assert (first.kl_base, shift.kl_base) == (0.07, 0.14)
    assert first.update_seconds == shift.update_seconds == 4.0
    assert (first.explained_variance, shift.explained_variance) == (0.7, 1.5)


def test_without_a_critic_nothing_is_explained():
    assert [phase.explained_variance for phase in measure(a_result("running-mean"))] == [None, None]


def test_phases_before_and_after_the_branching_are_one_run():
    whole = a_result(levels=(0.5, 0.55))
    run = whole["runs"]["real"]
    parts = {}
    for name, number in (("before", 1), ("real", 2)):
        interactions = [interaction for interaction in run["interactions"] if interaction["phase"] == number]
        updates = [update for update in run["updates"] if (update["number"] >= 8) == (number == 2)]
        parts[name] = {**run, "phases": [run["phases"][number - 1]], "interactions": interactions, "updates": updates}
    assert measure({**whole, "runs": {**parts, "anchor-only": parts["real"]}}) == measure(whole)


def test_recipes_are_named_as_they_are_asked_for():
    assert recipe_of({"settings": {}}) == "sao"
    assert recipe_of(a_result("ema")) == "ema"
    assert recipe_of(a_result("sao/paper")) == "sao/paper"


@pytest.mark.parametrize(
    ("before", "after", "exclusive"),
    [
        ("plain-words", "ornate-words", True),
        ("first-person", "plain-words", False),
        ("", "first-person", False),
        ("plain-words/ornate-words", "ornate-words/plain-words", True),
        ("plain-words/ornate-words", "ornate-words/first-person", False),
        ("plain-words", "ornate-words/plain-words", False),
    ],
)
def test_phases_exclude_each_other_where_every_user_turns_round(before, after, exclusive):
    assert excludes(before, after) is exclusive


# --- verdicts -----------------------------------------------------------------------------------------------------------------------------


def phases(interactions, *, area=0.5, exclusive=True, shared=None):
    """A first phase, and a shift after which ``interactions`` were needed (None: 100 were not enough)."""
    own = Recovery(interactions, None, 100, None)
    by_shared = own if shared is None else Recovery(shared, None, 100, None)
    rest = {"area": area, "final_level": 0.5, "distinct_2": None, "kl_base": None, "update_seconds": None, "explained_variance": None}
    return [
        PhaseMeasures(1, "plain-words", False, 100, None, None, **rest),
        PhaseMeasures(2, "ornate-words", exclusive, 100, own, by_shared, **rest),
    ]


def uniform(sao, running_mean, ema=(90, 90, 90), batch_mean=(90, 90, 90)):
    by_recipe = {"sao": sao, "running-mean": running_mean, "ema": ema, "batch-mean": batch_mean}
    return {recipe: {seed: phases(needed) for seed, needed in enumerate(row, start=1)} for recipe, row in by_recipe.items()}


def mixed(sao, others):
    areas = {"sao": sao, "running-mean": others, "ema": others, "batch-mean": others}
    return {recipe: {seed: phases(50, area=area) for seed, area in enumerate(row, start=1)} for recipe, row in areas.items()}


def decisions(found):
    whole, *parts = verdicts(found)
    assert len(parts) == 9
    return whole.decision, [part.decision for part in parts]


AHEAD = mixed((0.6, 0.6, 0.6), (0.5, 0.4, 0.5))


def test_the_goal_is_met_where_every_part_is():
    assert decisions({"uniform": uniform((40, 30, 90), (80, 80, 90)), "mixed": AHEAD}) == ("met", ["met"] * 9)  # ratios 0.5, 0.375, 1: median 0.5


def test_half_as_many_is_of_each_seeds_own_ratio_in_the_median():
    whole, parts = decisions({"uniform": uniform((41, 30, 90), (80, 80, 90)), "mixed": AHEAD})
    assert (whole, parts) == ("not met", ["not met"] * 2 + ["met"] * 7)


def test_a_level_of_its_own_that_is_easy_to_come_back_to_is_not_enough():
    found = {"uniform": uniform((40, 40, 40), (80, 80, 80)), "mixed": AHEAD}
    found["uniform"]["sao"] = {seed: phases(40, shared=70) for seed in (1, 2, 3)}
    whole, parts = decisions(found)
    assert (whole, parts[:2]) == ("not met", ["met", "not met"])


def test_what_did_not_recover_is_counted_and_said():
    found = {"uniform": uniform((50, 50, None), (None, None, 90)), "mixed": AHEAD}
    first = verdicts(found)[1]
    assert first.decision == "met"  # 0.5, 0.5, 1.11
    assert "sao not recovered in 1" in first.evidence
    assert "running-mean not recovered in 2" in first.evidence
    assert ratio(Recovery(None, None, 100, None), Recovery(80, None, 100, None)) == 1.25


@pytest.mark.parametrize("rival", [2, 3])
def test_ema_and_batch_mean_need_at_least_as_many(rival):
    rows = [(40, 40, 40), (90, 90, 90), (40, 40, 40), (40, 40, 40)]
    assert decisions({"uniform": uniform(*rows), "mixed": AHEAD})[0] == "met"
    rows[rival] = (39, 39, 39)
    whole, parts = decisions({"uniform": uniform(*rows), "mixed": AHEAD})
    assert whole == "not met"
    assert parts[2 * (rival - 1)] == "not met"
    assert parts.count("not met") == 2


def test_two_seeds_decide_nothing():
    found = {"uniform": uniform((40, 30), (80, 80), (90, 90), (90, 90)), "mixed": mixed((0.6, 0.6), (0.1, 0.1))}
    assert decisions(found) == ("undecided", ["undecided"] * 9)
    assert decisions({}) == ("undecided", ["undecided"] * 9)


def test_a_shift_that_does_not_exclude_what_was_wanted_decides_nothing():
    found = uniform((40, 30, 20), (90, 90, 90))
    found["sao"] = {seed: phases(40, exclusive=False) for seed in (1, 2, 3)}
    assert decisions({"uniform": found, "mixed": AHEAD})[1] == ["undecided"] * 6 + ["met"] * 3


@pytest.mark.parametrize(
    ("sao", "decision"),
    [((0.6, 0.6, 0.6), "met"), ((0.6, 0.6, 0.5), "undecided"), ((0.5, 0.5, 0.6), "not met"), ((0.4, 0.4, 0.9), "not met")],
)
def test_ahead_on_the_mixed_population_means_the_whole_interval(sao, decision):
    found = {"mixed": mixed(sao, (0.5, 0.5, 0.5))}
    assert decisions(found)[1] == ["undecided"] * 6 + [decision] * 3
