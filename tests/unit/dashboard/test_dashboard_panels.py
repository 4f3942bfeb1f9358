"""What the panels say for given numbers, and that no text from data becomes markup."""

from dataclasses import replace

import pytest
import torch

from api.dashboard import panels, words
from api.dashboard.metrics import words_for
from api.dashboard.view import LearnerView, ScorePoint, SwapView, UpdateView, VersionView, View
from online_sao.algorithm.importance import TokenWeights
from online_sao.experience.batching import TrainBatch
from online_sao.learner import report
from online_sao.types import Trajectory

LEARNER = LearnerView("waiting", None, False, None, 1.0, 3, 3)
VIEW = View(
    taken_at=1000.0,
    ready=True,
    serving_version=3,
    running=0,
    waiting=0,
    trajectories={},
    learner=LEARNER,
    update=None,
    versions=(VersionView(3, 2, "active", 3, None, 12.0, 988.0),),
    swaps=(),
    scores=(),
    total_scores=0,
)
EVIL = "<script>alert('x')</script>"


def with_learner(**changes):
    return replace(VIEW, learner=replace(LEARNER, **changes))


def test_serving_says_version_and_load():
    assert "smollm2@v3" in panels.serving(VIEW, "smollm2")
    assert "idle" in panels.serving(VIEW, "smollm2")
    assert "2 running, 5 waiting" in panels.serving(replace(VIEW, running=2, waiting=5), "smollm2")
    loading = panels.serving(replace(VIEW, ready=False, serving_version=None), "smollm2")
    assert "is being loaded" in loading
    assert "@v" not in loading


def test_headline_is_the_mean_of_the_last_twenty():
    scores = tuple(ScorePoint(float(i), 0.0 if i < 30 else 1.0, 0) for i in range(45))
    text = panels.figure(replace(VIEW, scores=scores, total_scores=1045))
    assert ">0.75<" in text  # 15 ones of the last 20
    assert "first 20 shown: 0.00" in text
    assert "1 045 in all" in text


def test_without_scores_it_says_what_to_do():
    assert "online-sao simulate" in panels.figure(VIEW)
    assert "nothing is queued" in panels.update(VIEW)
    assert "3 scored answers are queued" in panels.update(replace(VIEW, trajectories={"ready": 3}))
    assert "No swap yet" in panels.swaps(VIEW)


def test_stages_add_up_what_was_not_used():
    of = {"pending": 1, "ready": 2, "claimed": 8, "trained": 1234, "expired": 3, "rejected": 4, "not_trainable": 5}
    text = panels.stages(replace(VIEW, trajectories=of))
    for part in ("<dd>1</dd>", "<dd>2</dd>", "<dd>8</dd>", "<dd>1 234</dd>", "<dd>12</dd>", "3 expired, 4 rejected, 5 not trainable"):
        assert part in text


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
    text = panels.update(replace(VIEW, update=UpdateView(4, True, None, 5, metrics, 3.0, 11.0)))
    assert "Update 4 made version 5." in text
    assert "Tokens masked</dt><dd>1.2 %" in text
    assert "Explained variance</dt><dd>−0.50" in text
    assert "new thing</dt><dd>7.000" in text
    refused = panels.update(replace(VIEW, update=UpdateView(5, False, "entropy 0.01 is below 0.05", None, {}, 3.0, 11.0)))
    assert "was discarded" in refused
    assert "entropy 0.01 is below 0.05" in refused


def test_tables_mark_the_serving_version_and_list_swaps():
    failed = VersionView(4, 3, "failed", 4, "digest differs", 1.0, None)
    text = panels.versions(replace(VIEW, versions=(failed, *VIEW.versions)))
    assert '<tr class="now"><td>v3</td><td>serving</td>' in text
    assert "digest differs" in text
    assert "145 ms" in panels.swaps(replace(VIEW, swaps=(SwapView(3, 0.145, 0.2, 4, 0, 9.0),)))


def test_text_from_data_is_never_markup():
    learner = replace(LEARNER, detail=EVIL, phase=EVIL)
    view = replace(
        VIEW,
        learner=learner,
        update=UpdateView(1, False, EVIL, None, {f"data/{EVIL}": 1.0}, 0.0, 0.0),
        versions=(VersionView(1, 0, EVIL, 1, EVIL, 0.0, None),),
    )
    for text in (panels.serving(view, EVIL), panels.learner(view, True), panels.update(view), panels.versions(view)):
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
