"""From an export's lines to updates: what is trained on, in which order, and that learning really happens."""

from __future__ import annotations

import json

import pytest
from tiny_learner import VOCABULARY, make_bench

from online_sao.algorithm.recipes import recipe
from online_sao.config import Settings
from online_sao.errors import ConfigurationError
from online_sao.learner.learner import Learner
from online_sao.models.adapter import read_adapter
from online_sao.runtime import replay, replay_input

HEADER = {"object": "online_sao.export", "format": 1, "reward": {"score_min": 0.0, "score_max": 1.0, "metric_weights": {"score": 1.0}}}
SETTINGS = Settings(gates={"min_entropy": 0.0, "max_kl_base": 100.0})


def line(number: int, value: float | None, *, at: float, bench=None, **changes) -> dict[str, object]:
    trajectory = bench.sample(number) if bench is not None else None
    ids = list(trajectory.token_ids) if trajectory is not None else [1, 2, 3, 4, 5, 6, 7, 8]
    logprobs = list(trajectory.behavior_logprobs)[6:] if trajectory is not None else [-0.5, -0.5]
    scores = [] if value is None else [{"metric": "score", "value": value, "created": at, "counts": True}]
    return {
        "object": "interaction",
        "completion_id": f"c{number}",
        "choice": 0,
        "stored": True,
        "status": "completed",
        "finish_reason": "stop",
        "text": "",
        "prompt_ids": ids[:6],
        "token_ids": ids[6:],
        "behavior_logprobs": logprobs,
        "version_spans": [[0, len(ids) - 6, 0]],
        "sampling": {"max_tokens": 8, "temperature": 1.0, "top_p": 1.0},
        "scores": scores,
        **changes,
    }


@pytest.fixture
def write(tmp_path):
    def make(*lines, header=HEADER):
        path = tmp_path / "export.jsonl"
        path.write_text("".join(json.dumps(item) + "\n" for item in (header, *lines)))
        return path

    return make


def test_scores_come_in_the_order_they_were_given_and_the_rest_is_counted(write):
    superseded = [
        {"metric": "score", "value": 0.0, "created": 1.0, "counts": False},
        {"metric": "score", "value": 1.0, "created": 30.0, "counts": True},
        {"metric": "tone", "value": 0.0, "created": 99.0, "counts": False},
    ]
    source = replay_input.read(
        write(
            line(1, 1.0, at=20.0),
            line(2, 0.0, at=10.0),
            line(3, None, at=0.0),
            line(4, 1.0, at=5.0, stored=False, token_ids=None),
            line(5, 1.0, at=5.0, finish_reason="abandoned"),
            line(6, 1.0, at=5.0, sampling={"max_tokens": 8, "temperature": 0.0, "top_p": 1.0}),
            line(7, None, at=0.0, scores=superseded),
        )
    )
    assert [(trajectory.trajectory_id, trajectory.reward) for trajectory in source.trajectories] == [(3, -1.0), (2, 1.0), (8, 1.0)]
    assert source.left_out == {"not scored": 1, "kept without content": 1, "ended as abandoned": 1, "greedy_sampling": 1}


@pytest.mark.parametrize(
    ("lines", "header", "message"),
    [
        ([], {"object": "something"}, "no export"),
        ([], {**HEADER, "format": 99}, "newer"),
        ([{"object": "interaction"}], HEADER, "line 2"),
        ([line(1, 1.0, at=0.0, behavior_logprobs=[-0.5])], HEADER, "line 2"),
    ],
)
def test_what_cannot_be_read_is_said(write, lines, header, message):
    with pytest.raises(ConfigurationError, match=message):
        replay_input.read(write(*lines, header=header))


@pytest.fixture
def bench(monkeypatch):
    """The tiny learner in place of one that is opened from a folder."""
    bench = make_bench(policy_learning_rate=5e-2)
    monkeypatch.setattr(replay, "obtain", lambda model, cache: None)
    monkeypatch.setattr(Learner, "open", lambda *_args, **_kwargs: bench.learner)
    return bench


def test_the_policy_moves_towards_what_was_scored_high(write, bench, tmp_path):
    lines = [line(number, float(number % 2), at=float(number), bench=bench) for number in range(10)]
    source = replay_input.read(write(*lines))
    liked = source.trajectories[1]

    def likelihood() -> float:
        return sum(bench.learner.score(liked.token_ids[:6], liked.token_ids[6:], 1.0))

    before, told = likelihood(), []
    done = replay.replay(SETTINGS, recipe("sao", "live", batch_size=4), source, tmp_path / "out", told.append)
    assert likelihood() > before
    assert [update.trajectories for update in done] == [4, 4, 2]
    assert told == done
    records = [json.loads(text) for text in (tmp_path / "out" / replay_input.METRICS_FILE).read_text().splitlines()]
    assert [record["update"] for record in records] == [1, 2, 3]
    assert records[0]["metrics"]["policy/masked_fraction"] == 0.0, "the first batch is on-policy: logged logprobs are the base's own"
    assert read_adapter(tmp_path / "out" / replay.ADAPTER_FOLDER).matrices
    assert list((tmp_path / "out" / "tensorboard").glob("events.*"))
    with pytest.raises(ConfigurationError, match="already"):
        replay_input.check_out(tmp_path / "out")


def test_logged_logprobs_of_another_policy_are_masked_as_such(write, bench, tmp_path):
    lines = [line(number, 1.0, at=float(number), bench=bench) for number in range(4)]
    for item in lines:
        item["behavior_logprobs"] = [-30.0 for _ in item["behavior_logprobs"]]
    (update,) = replay.replay(SETTINGS, recipe("sao", "live", batch_size=4), replay_input.read(write(*lines)), tmp_path / "out", lambda _: None)
    assert update.metrics["policy/masked_fraction"] == 1.0
    assert update.refused is not None
    assert "masked_fraction" in update.refused


def test_nothing_to_learn_from_and_another_models_tokens(write, bench, tmp_path):
    with pytest.raises(ConfigurationError, match="no scored"):
        replay_input.read(write(line(1, None, at=0.0)))
    foreign = line(1, 1.0, at=0.0, token_ids=[VOCABULARY, 1])
    with pytest.raises(ConfigurationError, match="name its model"):
        replay.replay(SETTINGS, recipe(), replay_input.read(write(foreign)), tmp_path / "out", lambda _: None)
