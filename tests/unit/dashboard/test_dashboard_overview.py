"""What Overview, Learning and Versions say for given numbers, and that no text from data becomes markup."""

from dataclasses import replace

import pytest
import torch

from api.dashboard import learning, overview, svg, versions, words
from api.dashboard.metrics import words_for
from api.dashboard.view import View
from online_sao.algorithm.importance import TokenWeights
from online_sao.experience.batching import TrainBatch
from online_sao.inference.engine import EngineLoad, ReplicaStatus
from online_sao.learner import report
from online_sao.service.alarms import AlarmStatus
from online_sao.service.control import RollbackStatus
from online_sao.service.evaluations import EvaluationStatus, Sample
from online_sao.service.history import ShiftStatus
from online_sao.service.interactions import Unused
from online_sao.service.reasons import ReasonCode, of_code
from online_sao.service.score_statistics import Delay
from online_sao.service.status import Coverage, LearnerStatus, StatusSnapshot, SwapStatus, UpdateStatus, VersionStatus
from online_sao.storage.repositories.overview import ScorePoint
from online_sao.types import Trajectory, TrajectoryState, VersionState

LEARNER = LearnerStatus("waiting", None, False, None, 1.0, 4711, 0, 3, 3)
VERSION = VersionStatus(3, 2, 0, VersionState.ACTIVE, None, 3, 988.0, 988.0, None, 0.625, 40)
SNAPSHOT = StatusSnapshot(
    as_of=1000.0,
    generating=0,
    pipeline={},
    oldest_ready_at=None,
    active_version=3,
    learner=LEARNER,
    last_update=None,
    versions=(VERSION,),
    swaps=(),
    scores=(),
    total_scores=0,
    coverage=Coverage(86400.0, 0, 0),
    alarms=(),
)
EVIL = "<script>alert('x')</script>"


def view(serving_version=3, load=EngineLoad(0, 0), shifts=(), rollbacks=(), **changes):
    return View(replace(SNAPSHOT, **changes), serving_version, load, shifts, rollbacks)


def with_learner(**changes):
    return view(learner=replace(LEARNER, **changes))


def update_status(accepted=True, reason=None, metrics=None):
    return UpdateStatus(4, accepted, reason, 0, 5 if accepted else None, 3, metrics or {}, {}, 986.0, 997.0)


def test_serving_says_how_many_engines_serve_and_who_is_ahead():
    two = (ReplicaStatus(0, "here", True, 4, 1), ReplicaStatus(1, "there", True, 3, 0), ReplicaStatus(2, "", False, None, 0, "killed"))
    said = overview.serving(replace(view(), replicas=two), "smollm2")
    assert "smollm2@v3" in said
    assert "serving with 2 of 3 engines, 1 already v4, idle" in said
    assert "none of 1 engines" in overview.serving(replace(view(), replicas=two[2:]), "smollm2")


def test_serving_says_version_and_load():
    assert "smollm2@v3" in overview.serving(view(), "smollm2")
    assert "idle" in overview.serving(view(), "smollm2")
    assert "2 running, 5 waiting" in overview.serving(view(load=EngineLoad(2, 5)), "smollm2")
    loading = overview.serving(view(serving_version=None), "smollm2")
    assert "is being loaded" in loading
    assert "@v" not in loading


def test_headline_is_the_mean_of_the_last_twenty():
    scores = tuple(ScorePoint(f"fb-{i}", float(i), 0.0 if i < 30 else 1.0, 0) for i in range(45))
    text = overview.figure(view(scores=scores, total_scores=1045))
    assert ">0.75<" in text  # 15 ones of the last 20
    assert "first 20 shown: 0.00" in text
    assert "1 045 in all" in text


def test_without_scores_it_says_what_to_do():
    assert "online-sao simulate" in overview.figure(view())
    assert "nothing is queued" in learning.outcome(view())
    assert "3 of 8 scored answers are queued" in learning.outcome(view(pipeline={TrajectoryState.READY: 3}))
    assert "No swap yet" in learning.swaps(view())


def test_stages_add_up_what_was_not_used_and_say_how_many_answers_are_scored():
    names = ("pending", "ready", "claimed", "trained", "expired", "rejected", "not_trainable")
    pipeline = dict(zip(map(TrajectoryState, names), (1, 2, 8, 1234, 3, 4, 5), strict=True))
    text = overview.stages(view(pipeline=pipeline, generating=6))
    for part in ("<dd>6</dd>", "<dd>1</dd>", "<dd>2</dd>", "<dd>8</dd>", "<dd>1 234</dd>", "<dd>12</dd>"):
        assert part in text
    text = overview.coverage(view(coverage=Coverage(86400.0, 200, 51), delay=Delay(3, 4.0, 200.0)))
    assert "25.5 % <span class=muted>of 200</span>" in text
    assert "<dd>4.0 s</dd>" in text
    assert "<dd>3 min</dd>" in text
    assert "No answer" in overview.coverage(view())


def test_what_was_not_used_says_why_what_to_do_and_where_it_is():
    unused = (
        Unused(TrajectoryState.NOT_TRAINABLE, of_code(ReasonCode.STORE_FALSE), 1850),
        Unused(TrajectoryState.REJECTED, None, 8),
    )
    without_effect = (Unused(None, of_code(ReasonCode.METRIC_NOT_WEIGHTED), 3), Unused(TrajectoryState.EXPIRED, of_code(ReasonCode.POLICY_LAG), 1))
    drawn = overview.stages(replace(view(), unused=unused, without_effect=without_effect))
    scores, answers = drawn.split("<h3>Answers not used, scored or not</h3>")
    for part in ("1 850 asked for with store: false", "client&#x27;s wish", "training=not_trainable&amp;reason=store_false"):
        assert part in answers
    assert "training=rejected" in answers
    assert "8 in an update that a gate refused" in answers
    assert "Scores without effect, last day" in scores
    for part in (
        "3 for a metric without a weight",
        "reward.metric_weights",
        "receipt=not_trainable&amp;since=day&amp;effect=none&amp;reason=metric",
    ):
        assert part in scores
    assert "training=expired&amp;since=day" in scores
    assert "since=" not in answers
    assert "not used" not in overview.stages(view())


@pytest.mark.parametrize(
    ("changes", "enabled", "says", "looks"),
    [
        ({}, True, "Waiting: 0 of 8 scored answers", '"dot "'),
        ({"phase": "updating"}, True, "Updating the policy", '"dot "'),
        ({"phase": "updating", "detail": "update 4"}, True, "update 4", '"dot "'),
        ({"presence": "starting", "heartbeat_age": 5789.0, "silence": 20.0}, True, "Starting", '"dot off"'),
        ({"presence": "starting", "paused": True, "pause_reason": "looking"}, True, "It is paused: Looking.", '"dot off"'),
        ({"presence": "silent", "silence": 20.0}, True, "No sign of life for 20 s", '"dot bad"'),
        ({"presence": "ended", "silence": 20.0}, True, "the server&#x27;s log says why it ended", '"dot bad"'),
        ({"presence": "stopped", "phase": "stopped", "detail": "the base model is another"}, True, "The base model is another.", '"dot bad"'),
        ({"presence": "off", "heartbeat_age": None, "phase": "stopped"}, False, "Switched off", '"dot off"'),
        ({"paused": True, "pause_reason": "rollback"}, True, "Rollback. Serving and scoring go on", '"dot off"'),
        ({"paused": True, "pause_reason": "Why?", "phase": "updating", "detail": "8 trajectories"}, True, "Why? Serving and", '"dot off"'),
        ({"paused": True, "phase": "updating", "detail": "8 trajectories"}, True, "Updating the policy is still under way: 8 traj", '"dot off"'),
        ({"paused": True, "phase": "alarm", "pause_reason": "self-check failed"}, True, "Self-check failed. Serving goes on", '"dot bad"'),
    ],
)
def test_learner_states(changes, enabled, says, looks):
    text = overview.learner(with_learner(**changes), enabled)
    assert says in text
    assert looks in text


def test_only_a_process_that_has_ended_is_said_to_have_ended():
    for presence in ("starting", "silent", "alive", "off"):
        assert "ended" not in overview.learner(with_learner(presence=presence, silence=30.0), presence != "off")


def test_after_a_rollback_the_updates_made_are_still_all_of_them():
    text = overview.learner(view(last_update=replace(update_status(), number=50), learner=replace(LEARNER, head_update=35, head_version=35)), True)
    assert "Updates made</dt><dd>50<" in text
    assert "It stands on</dt><dd>v35<" in text


def test_the_learner_can_be_paused_and_resumed_from_where_its_state_is_shown():
    assert 'data-do="pause"' in overview.learner(view(), True)
    assert 'data-do="resume"' in overview.learner(with_learner(paused=True), True)


def test_the_newest_update_says_what_it_did():
    text = learning.outcome(view(last_update=update_status()))
    assert "Update 4 made version 5." in text
    assert "took 11 s" in text
    refused = learning.outcome(view(last_update=update_status(False, "entropy 0.01 is below 0.05")))
    assert "was discarded" in refused
    assert "entropy 0.01 is below 0.05" in refused


def test_every_metric_has_a_picture_its_meaning_and_its_name():
    metrics = {"policy/masked_fraction": 0.0123, "value/explained_variance": -0.5, "data/new_thing": 7.0, "serve/odd": 1.0, "policy/entropy": None}
    text = learning.metrics([update_status(metrics={"policy/masked_fraction": 0.5}), update_status(metrics=metrics)])
    assert text.count("<article") == 5
    assert "Tokens masked over 2 updates: 1.2 % – 50.0 %, now 1.2 %" in text
    assert 'Explained variance</h4><div class="now">−0.50' in text
    assert 'new thing</h4><div class="now">7.000' in text
    assert 'Entropy</h4><div class="now">–' in text
    assert "Other</h3>" in text
    assert "worse" in text  # the meaning is on the page, not in a tooltip
    assert learning.metrics([]) == ""


def test_a_sparkline_leaves_gaps_where_numbers_are_missing():
    drawn = svg.sparkline([1.0, 2.0, None, 3.0, 1.0], "x")
    assert drawn.count("<polyline") == 2
    assert 'points="0.0,44.0 60.0,24.0"' in drawn
    assert "<polyline" not in svg.sparkline([1.0], "one")


def test_the_ratio_histogram_says_how_much_is_on_policy():
    histogram = {"edges": [0.5, 0.99, 1.01, 2.0], "counts": [0, 10, 80, 9, 1], "non_finite": 2}
    drawn = svg.ratio_histogram(histogram)
    assert "80.0 % of 100 tokens have a ratio of 0.99–1.01" in drawn
    assert drawn.count('class="bar one"') == 1
    assert "2 were not finite" in drawn
    assert "<td>> 2</td>" in drawn or "<td>&gt; 2</td>" in drawn
    assert svg.ratio_histogram({"edges": [1.0], "counts": [0, 0]}) == ""
    assert svg.ratio_histogram({}) == ""


def test_a_score_that_is_nothing_is_no_power_of_ten():
    """On a scale of 0 to 1; on a scale of thousandths it is something."""
    low = replace(VERSION, mean_score=0.004, score_interval=(0.0015, 0.74))
    assert '<b>0.00</b> <span class="muted nowrap">0.00 – 0.74</span>' in versions.versions(view(versions=(low,)), [], [])
    small = replace(VERSION, mean_score=0.004, score_interval=(0.0015, 0.01))
    assert "1.5·10⁻³ – 0.01" in versions.versions(replace(view(versions=(small,)), score_range=(0.0, 0.01)), [], [])


def test_versions_say_where_they_stand_and_offer_the_way_back():
    failed = replace(VERSION, version=4, parent=3, state=VersionState.FAILED, reason="digest differs", mean_score=None, scores=0)
    retired = replace(VERSION, version=2, parent=0, state=VersionState.RETIRED, score_interval=(0.5, 1.25))
    left = replace(retired, version=1)
    gone = replace(retired, version=0, parent=None, files_removed_at=5.0)
    shown = view(versions=(failed, VERSION, retired, left, gone))
    update = replace(update_status(metrics={"policy/kl_base": 0.014}), policy_version=3)
    evaluation = EvaluationStatus(3, 21.25, 100, 0.875, 30.0, (), 1.0)
    text = versions.versions(shown, [update], [evaluation])
    rows = {row.split("<b>v")[1].split("<")[0]: row for row in text.split("<tr")[2:]}
    assert "digest differs" in rows["4"]
    assert "Roll back" not in rows["4"]
    for part in ("class=now", "serving", "0.014", "21.2", "0.88", "version=3"):
        assert part in rows["3"]
    assert "Roll back" not in rows["3"]
    assert 'data-do="rollback" data-value="2"' in rows["2"]
    assert "0.50 – 1.00" in rows["2"]  # cut at the end of the score range
    assert "left in a rollback" in rows["1"]
    assert "left in a rollback" not in rows["2"]
    assert "files removed" in rows["0"]
    assert "Roll back" not in rows["0"]
    assert "145 ms" in learning.swaps(view(swaps=(SwapStatus(3, 0.145, 0.2, 4, 0, 991.0),)))


def test_samples_of_two_versions_stand_side_by_side_by_prompt():
    left = EvaluationStatus(0, 20.0, 9, 0.9, 12.0, (Sample("Why?", "Because.", 3, None), Sample("Old?", "Yes", 1, None)), 1.0)
    right = EvaluationStatus(7, 22.0, 9, 0.8, 14.0, (Sample("Why?", "<i>I</i> know.", 3, None),), 1.0)
    pair = versions.Pair(left, right)
    text = versions.comparison(pair)
    assert text.index("Why?") < text.index("Because.") < text.index("&lt;i&gt;I&lt;/i&gt; know.") < text.index("Old?")
    assert "perplexity 22.0" in text
    assert '<option value="7" selected>' in versions.choice([right, left], pair)
    assert "Nothing to compare yet" in versions.comparison(versions.picked([], {}))


@pytest.mark.parametrize(
    ("evaluated", "query", "left", "right", "ignored"),
    [
        ([51, 50, 0], {}, 0, 51, []),
        ([51, 50, 35], {}, 35, 51, []),
        ([51, 50, 35], {"left": "50", "right": "035"}, 50, 35, []),
        ([51, 50, 35], {"left": "48"}, 35, 51, ["left=48 in the address was ignored: version 48 has not been evaluated. Evaluated are: 35, 50, 51."]),
        ([51, 50], {"right": "9999"}, 50, 51, ["right=9999 in the address was ignored: version 9999 has not been evaluated. Evaluated are: 50, 51."]),
        ([51, 50], {"right": "50"}, 51, 50, []),
        ([50], {}, None, 50, []),
    ],
)
def test_two_different_versions_are_compared_and_a_wish_that_cannot_be_met_is_told(evaluated, query, left, right, ignored):
    found = [EvaluationStatus(version, 20.0, 9, 0.9, 12.0, (Sample("Why?", EVIL, 3, None),), 1.0) for version in evaluated]
    pair = versions.picked(found, query)
    assert (pair.left and pair.left.policy_version, pair.right.policy_version, list(pair.ignored)) == (left, right, ignored)
    drawn = versions.comparison(pair)
    assert ("Only version 50 has been evaluated" in drawn) == (left is None)
    assert ("The base model has not been evaluated" in versions.choice(found, pair)) == (left is not None and 0 not in evaluated)
    assert "<script" not in drawn


def test_versions_come_in_pages_and_the_one_that_serves_is_on_each():
    listed = [replace(VERSION, version=number, parent=number - 1, state=VersionState.RETIRED) for number in range(40, 0, -1)]
    listed[15] = replace(listed[15], state=VersionState.ACTIVE)  # version 25, after a rollback
    shown = view(versions=tuple(listed))

    def numbers(text):
        return [int(part.split("<")[0]) for part in text.split('<td data-label="Version"><b>v')[1:]]

    first = versions.versions(shown, (), (), None, {"left": "3"})
    assert numbers(first) == [25, *range(40, 30, -1)]
    assert "left=3&amp;before=31" in first
    assert "Newest<" not in first
    second = versions.versions(shown, (), (), 31)
    assert numbers(second) == list(range(30, 20, -1))
    last = versions.versions(shown, (), (), 3)
    assert numbers(last) == [25, 2, 1]
    assert "GET /admin/policies" in last  # more than the page has read
    assert "GET /admin/policies" not in second
    assert "Older" not in last
    assert "Newest<" in last


SHIFT = ShiftStatus(900.0, 910.0, 61, 0.9, 0.2, 0.7, 990.0, 55, 70, 90.0, False, True)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "55 scores"),
        ({}, "70 answers, 90 s" if words.age(90.0) == "90 s" else "70 answers, 2 min"),
        ({"recovered_at": None, "scores_to_recovery": None, "seconds_to_recovery": None}, "not yet"),
        ({"recovered_at": None, "scores_to_recovery": None, "seconds_to_recovery": None, "overtaken": True}, "not before the next shift"),
        ({"scores_to_recovery": 0}, "never below 80 %"),
        ({"clear": False}, "1 lesser fall within what chance does is left out"),
    ],
)
def test_shifts_say_when_the_policy_was_back(changes, says):
    assert says in overview.shifts(view(shifts=(replace(SHIFT, **changes),)))


def test_shifts_that_were_not_looked_for_yet_are_not_said_to_be_none():
    text = overview.shifts(replace(view(), shifts=None))
    assert "being looked for" in text
    assert "No shift" not in text
    assert "No shift so far" in overview.shifts(view())


def test_past_alarms_stand_under_a_heading_with_their_numbers_and_advice():
    alarm = AlarmStatus(1, "score_drop", "critical", f"0.2 after 0.8 {EVIL}", "Roll back.", 3, 0.2, 0.5, "Rolled back.", 0.0, 60.0)
    text = overview.past_alarms(replace(view(), past_alarms=(alarm,)))
    for part in (
        "<details",
        "Past alarms (1)",
        "score drop",
        "Value 0.200, threshold 0.500",
        "Roll back.",
        "Rolled back.",
        "raised 1970-01-01 00:00:00",
    ):
        assert part in text
    assert "cleared 1970-01-01 00:01:00 UTC" in text
    assert "<script" not in text
    assert overview.past_alarms(view()) == ""


def test_alarms_say_what_was_seen_and_what_to_do():
    alarm = AlarmStatus(1, "score_fell", "critical", f"0.2 after 0.8 {EVIL}", "Roll back.", 3, 0.2, 0.5, "Rolled back to version 2.", 990.0, None)
    text = overview.alarms(view(alarms=(alarm,)))
    for part in ("0.2 after 0.8", "Roll back.", "Rolled back to version 2.", "score fell", "&lt;script"):
        assert part in text
    assert "1 alarm<" in overview.alarm_chip(view(alarms=(alarm,)))
    assert overview.alarms(view()) == overview.alarm_chip(view()) == ""


def test_text_from_data_is_never_markup():
    shown = view(
        learner=replace(LEARNER, detail=EVIL, phase=EVIL),
        last_update=update_status(False, EVIL),
        versions=(replace(VERSION, reason=EVIL),),
        rollbacks=(RollbackStatus(1, 3, 2, False, EVIL, 0, 900.0, None, EVIL, "failed"),),
    )
    drawn = (
        overview.serving(shown, EVIL),
        overview.learner(shown, True),
        learning.outcome(shown),
        learning.metrics([update_status(metrics={f"data/{EVIL}": 1.0})]),
        versions.versions(shown, (), ()),
        versions.rollbacks(shown),
    )
    for text in drawn:
        assert "<script" not in text
        assert "script" in text


@pytest.mark.parametrize(("seconds", "text"), [(-3, "0 s"), (0.4, "0 s"), (89, "89 s"), (91, "2 min"), (3 * 3600, "3 h"), (50 * 3600, "2 d")])
def test_ages(seconds, text):
    assert words.age(seconds) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (None, 2, "–"),
        (0.0, 2, "0.00"),
        (-0.5, 2, "−0.50"),
        (1234.5, 1, "1 234.5"),
        (0.000012, 3, "1.2·10⁻⁵"),
        (-2.5e7, 1, "−2.5·10⁷"),
        (float("nan"), 2, "not a number"),
    ],
)
def test_numbers(value, digits, text):
    assert words.number(value, digits) == text


def test_every_metric_of_an_update_has_words():
    one = torch.ones(1)
    yes, no = one.bool(), ~one.bool()
    trajectory = Trajectory(1, (5, 6), (False, True), (0.0, -1.0), (0.0, 1.0), (0.0, 1.0), (-1, 0))
    reported = {
        **report.policy_metrics(report.PolicyPass([one], [TokenWeights(one, yes, no, no, no)], [one]), [one]),
        **report.value_metrics(report.ValuePass([one]), one, 1, 1.0),
        **report.data_metrics(TrainBatch((), (trajectory,), 1)),
    }
    assert [name for name in reported if words_for(name)[1] == words_for("data/nobody named this")[1]] == []
