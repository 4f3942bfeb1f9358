"""Every condition on both sides of its bound, and the groups of scores that the first one compares."""

import math

import pytest

from online_sao.config import AlarmSettings
from online_sao.service.alarm_conditions import KINDS, Ability, LatestUpdate, Lengths, Measured, ScoreGroup, judge, score_drop
from online_sao.service.alarm_measurements import group_scores

SETTINGS = AlarmSettings()


def group(version: int, *scores: float) -> ScoreGroup:
    return ScoreGroup(version, scores)


def test_a_fall_beyond_noise_is_found_with_the_version_to_go_back_to():
    before, recent = group(4, *[1.0, 0.8] * 10), group(6, *[0.2, 0.4] * 10)
    finding = score_drop(before, recent, SETTINGS)
    assert finding is not None
    assert (finding.rollback_to, finding.policy_version, finding.severity) == (4, 6, "critical")
    assert finding.value == pytest.approx(0.3)
    for number in ("0.9", "0.3", "version 4", "version 6"):
        assert number in finding.message


def test_noise_is_welchs():
    """Two groups of unequal size and spread, by hand: s² of 0, 1, 0, 1 is 1/3, of 0.5 ± 0.1 it is 0.04/3."""
    before, recent = group(1, 0.0, 1.0, 0.0, 1.0), group(2, 0.4, 0.6, 0.4, 0.6)
    assert before.squared_error == pytest.approx(1 / 3 / 4)
    assert recent.squared_error == pytest.approx(0.04 / 3 / 4)
    noise = math.sqrt(before.squared_error + recent.squared_error)
    shifted = group(2, *(score - 2.9 * noise for score in recent.scores))
    assert score_drop(before, shifted, SETTINGS) is None
    shifted = group(2, *(score - 3.1 * noise for score in recent.scores))
    assert score_drop(before, shifted, SETTINGS) is not None


def test_a_rise_and_a_trifle_are_no_falls():
    assert score_drop(group(1, *[0.2] * 20), group(2, *[0.9] * 20), SETTINGS) is None
    assert score_drop(group(1, *[0.90] * 20), group(2, *[0.85] * 20), SETTINGS) is None, "no noise at all, and yet too little to matter"


def test_chance_alone_raises_it_in_few_of_many_comparisons():
    import random

    draw = random.Random(1)
    raised = sum(
        score_drop(group(1, *(draw.random() for _ in range(16))), group(2, *(draw.random() for _ in range(16))), SETTINGS) is not None
        for _ in range(2000)
    )
    assert raised < 12, "three standard errors are passed in about 0.25 % of cases at 16 scores a side"


def test_scores_are_grouped_by_whole_versions_along_the_lineage():
    points = [(5, 0.1), (5, 0.2), (4, 0.3), (3, 0.4), (3, 0.5), (3, 0.6), (2, 0.7), (9, 9.0)]
    before, recent = group_scores([5, 4, 3, 2, 1, 0], points, 3)
    assert (recent.newest_version, recent.scores) == (5, (0.1, 0.2, 0.3))
    assert (before.newest_version, before.scores) == (3, (0.4, 0.5, 0.6))
    assert group_scores([5, 4, 3, 2, 1, 0], points, 4) is None, "only three are left for the second group"
    assert group_scores([], points, 3) is None


def test_without_scores_of_the_active_version_the_newest_scored_one_stands_for_it():
    before, recent = group_scores([7, 6, 5], [(6, 0.0)] * 2 + [(5, 1.0)] * 2, 2)
    assert (before.newest_version, recent.newest_version) == (5, 6)


@pytest.mark.parametrize(
    ("kind", "bad", "good"),
    [
        ("response_length", Measured(lengths=Lengths(5, 30)), Measured(lengths=Lengths(15, 30))),
        ("response_length", Measured(lengths=Lengths(90, 30)), Measured(lengths=Lengths(60, 30))),
        ("response_length", Measured(ability=Ability(3, 0, None, None, (4, 30))), Measured(ability=Ability(3, 0, None, None, (20, 30)))),
        ("distinct_2", Measured(ability=Ability(3, 0, None, (0.6, 0.9), None)), Measured(ability=Ability(3, 0, None, (0.64, 0.9), None))),
        ("perplexity", Measured(ability=Ability(3, 0, (40, 25), None, None)), Measured(ability=Ability(3, 0, (30, 25), None, None))),
        ("kl_base", Measured(update=LatestUpdate(9, True, None, 0.6)), Measured(update=LatestUpdate(9, True, None, 0.4))),
        ("gate_failed", Measured(update=LatestUpdate(9, False, "policy/entropy is 0", None)), Measured(update=LatestUpdate(9, True, None, None))),
        ("learner_silent", Measured(learner_silence=61.0), Measured(learner_silence=59.0)),
        ("self_check_failed", Measured(self_check_problem="self-check failed for version 3"), Measured()),
        ("disk_nearly_full", Measured(disk_free_bytes=4.9e8), Measured(disk_free_bytes=5.1e8)),
    ],
)
def test_each_bound(kind, bad, good):
    verdicts = judge(bad, SETTINGS)
    finding = verdicts[kind]
    assert finding is not None
    assert finding.message
    assert finding.advice
    assert [other for other, found in verdicts.items() if found is not None] == [kind]
    assert judge(good, SETTINGS)[kind] is None


def test_what_was_not_measured_is_not_judged():
    assert set(judge(Measured(), SETTINGS)) == {"self_check_failed"}
    everything = Measured(
        scores=(group(1, 0.0, 1.0), group(2, 0.0, 1.0)),
        ability=Ability(1, 0, (1.0, 1.0), (1.0, 1.0), (1.0, 1.0)),
        lengths=Lengths(1, 1),
        update=LatestUpdate(1, True, None, 0.0),
        learner_silence=0.0,
        disk_free_bytes=1e12,
    )
    assert set(judge(everything, SETTINGS)) == set(KINDS)


def test_almost_no_disk_is_critical():
    assert judge(Measured(disk_free_bytes=1e8), SETTINGS)["disk_nearly_full"].severity == "critical"
    assert judge(Measured(disk_free_bytes=4e8), SETTINGS)["disk_nearly_full"].severity == "warning"
