"""What the panels say for given numbers, and that no text from data becomes markup."""

from dataclasses import replace

import pytest
import torch

from api.dashboard import panels, words
from api.dashboard.metrics import words_for
from api.dashboard.view import View
from online_sao.algorithm.importance import TokenWeights
from online_sao.experience.batching import TrainBatch
from online_sao.inference.engine import EngineLoad
from online_sao.learner import report
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
)
EVIL = "<script>alert('x')</script>"


def view(serving_version=3, load=EngineLoad(0, 0), **changes):
    return View(replace(SNAPSHOT, **changes), serving_version, load)


def with_learner(**changes):
    return view(learner=replace(LEARNER, **changes))


def update_status(accepted=True, reason=None, metrics=None):
    return UpdateStatus(4, accepted, reason, 0, 5 if accepted else None, 3, metrics or {}, {}, 986.0, 997.0)


def test_serving_says_version_and_load():
    assert "smollm2@v3" in panels.serving(view(), "smollm2")
    assert "idle" in panels.serving(view(), "smollm2")
    assert "2 running, 5 waiting" in panels.serving(view(load=EngineLoad(2, 5)), "smollm2")
    loading = panels.serving(view(serving_version=None), "smollm2")
    assert "is being loaded" in loading
    assert "@v" not in loading


def test_headline_is_the_mean_of_the_last_twenty():
    scores = tuple(ScorePoint(f"fb-{i}", float(i), 0.0 if i < 30 else 1.0, 0) for i in range(45))
    text = panels.figure(view(scores=scores, total_scores=1045))
    assert ">0.75<" in text  # 15 ones of the last 20
    assert "first 20 shown: 0.00" in text
    assert "1 045 in all" in text


def test_without_scores_it_says_what_to_do():
    assert "online-sao simulate" in panels.figure(view())
    assert "nothing is queued" in panels.update(view())
    assert "3 scored answers are queued" in panels.update(view(pipeline={TrajectoryState.READY: 3}))
    assert "No swap yet" in panels.swaps(view())


def test_stages_add_up_what_was_not_used_and_say_how_many_answers_are_scored():
    names = ("pending", "ready", "claimed", "trained", "expired", "rejected", "not_trainable")
    pipeline = dict(zip(map(TrajectoryState, names), (1, 2, 8, 1234, 3, 4, 5), strict=True))
    text = panels.stages(view(pipeline=pipeline, coverage=Coverage(86400.0, 200, 51)))
    for part in ("<dd>1</dd>", "<dd>2</dd>", "<dd>8</dd>", "<dd>1 234</dd>", "<dd>12</dd>", "3 expired, 4 rejected, 5 not trainable"):
        assert part in text
    assert "25.5 % of the last day" in text


@pytest.mark.parametrize(
    ("changes", "enabled", "says", "looks"),
    [
        ({}, True, "Waiting for scores", '"dot "'),
        ({"phase": "updating", "detail": "update 4"}, True, "update 4", '"dot "'),
        ({"heartbeat_age": 60.0}, True, "Not responding", '"dot bad"'),
        ({"heartbeat_age": None, "phase": "stopped"}, True, "Starting", '"dot off"'),
        ({"heartbeat_age": None, "phase": "stopped"}, False, "Switched off", '"dot off"'),
        ({"heartbeat_age": 60.0, "phase": "stopped"}, True, "Not running", '"dot off"'),
        ({"paused": True, "pause_reason": "rollback"}, True, "rollback Resume with POST /admin/learner/resume", '"dot off"'),
        ({"paused": True, "phase": "alarm", "pause_reason": "self-check failed"}, True, "self-check failed Serving goes on", '"dot bad"'),
    ],
)
def test_learner_states(changes, enabled, says, looks):
    text = panels.learner(with_learner(**changes), enabled)
    assert says in text
    assert looks in text


def test_update_names_metrics_in_plain_words_and_hides_none():
    metrics = {"policy/masked_fraction": 0.0123, "value/explained_variance": -0.5, "data/new_thing": 7.0}
    text = panels.update(view(last_update=update_status(metrics=metrics | {"policy/entropy": None})))
    assert "Update 4 made version 5." in text
    assert "3 s ago, took 11 s" in text
    assert "Entropy</dt><dd>–" in text
    assert "Tokens masked</dt><dd>1.2 %" in text
    assert "Explained variance</dt><dd>−0.50" in text
    assert "new thing</dt><dd>7.000" in text
    refused = panels.update(view(last_update=update_status(False, "entropy 0.01 is below 0.05")))
    assert "was discarded" in refused
    assert "entropy 0.01 is below 0.05" in refused


def test_tables_mark_the_serving_version_and_list_swaps():
    failed = replace(VERSION, version=4, parent=3, state=VersionState.FAILED, reason="digest differs", mean_score=None, scores=0)
    text = panels.versions(view(versions=(failed, VERSION)))
    serving = (
        '<tr class="now"><td>v3</td><td>serving</td><td class="n">0.62</td><td class="n">40</td><td class="n">v2</td><td class="n">12 s ago</td>'
    )
    assert serving in text
    assert "digest differs" in text
    assert "145 ms" in panels.swaps(view(swaps=(SwapStatus(3, 0.145, 0.2, 4, 0, 991.0),)))


def test_text_from_data_is_never_markup():
    shown = view(
        learner=replace(LEARNER, detail=EVIL, phase=EVIL),
        last_update=update_status(False, EVIL, {f"data/{EVIL}": 1.0}),
        versions=(replace(VERSION, reason=EVIL),),
    )
    for text in (panels.serving(shown, EVIL), panels.learner(shown, True), panels.update(shown), panels.versions(shown)):
        assert "<script" not in text
        assert "&lt;script" in text


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
        **report.value_metrics(report.ValuePass([one]), one, 1),
        **report.data_metrics(TrainBatch((), (trajectory,), 1)),
    }
    assert [name for name in reported if words_for(name)[1] == words_for("data/nobody named this")[1]] == []
