"""Interactions to token-aligned trajectories."""

from typing import Any

import pytest

from online_sao.experience.trajectories import build_trajectory
from online_sao.types import Completion, FinishReason, Interaction, SamplingParams, VersionSpan


def interaction(
    prompt: list[int],
    answer: list[int],
    *,
    logprobs: list[float] | None = None,
    spans: list[tuple[int, int, int]] | None = None,
    finish: FinishReason = "stop",
    temperature: float = 1.0,
    top_p: float = 1.0,
) -> Interaction:
    return Interaction(
        completion_id="chatcmpl-1",
        choice=0,
        prompt_ids=tuple(prompt),
        completion=Completion(
            token_ids=tuple(answer),
            behavior_logprobs=tuple(logprobs if logprobs is not None else [-0.1 * (i + 1) for i in range(len(answer))]),
            version_spans=tuple(VersionSpan(*span) for span in (spans if spans is not None else [(0, len(answer), 3)])),
            text="",
            finish_reason=finish,
        ),
        sampling=SamplingParams(max_tokens=16, temperature=temperature, top_p=top_p),
    )


def test_one_turn() -> None:
    trajectory = build_trajectory(
        7, [interaction([10, 11], [20, 21, 2], logprobs=[-1.0, -2.0, -0.5], spans=[(0, 1, 4), (1, 3, 5)], temperature=0.7)], [0.6]
    )
    assert trajectory.trajectory_id == 7
    assert trajectory.token_ids == (10, 11, 20, 21, 2)
    assert trajectory.loss_mask == (False, False, True, True, True)
    assert trajectory.behavior_logprobs == (0.0, 0.0, -1.0, -2.0, -0.5)
    assert trajectory.rewards == (0.0, 0.0, 0.0, 0.0, 0.6)
    assert trajectory.temperatures == (1.0, 1.0, 0.7, 0.7, 0.7)
    assert trajectory.policy_versions == (-1, -1, 4, 5, 5)
    assert trajectory.truncated is False
    assert (trajectory.num_action_tokens, trajectory.reward) == (3, 0.6)


def test_lag_is_counted_from_the_oldest_action_token_and_never_from_the_prompt() -> None:
    trajectory = build_trajectory(1, [interaction([10], [20, 21, 22], spans=[(0, 1, 9), (1, 2, 4), (2, 3, 11)])], [0.0])
    assert trajectory.oldest_policy_version == 4


def test_the_sampled_end_of_turn_token_is_an_action_and_carries_the_reward() -> None:
    trajectory = build_trajectory(1, [interaction([10], [20, 2])], [1.0])
    assert trajectory.loss_mask[-1] is True
    assert trajectory.rewards[-1] == 1.0


def test_several_turns_with_observations_between() -> None:
    """Turn 2's prompt is turn 1 whole, then two tokens the policy did not sample; turn 3 adds none."""
    turns = [
        interaction([10, 11], [20, 2], logprobs=[-1.0, -2.0], spans=[(0, 2, 3)], temperature=0.5),
        interaction([10, 11, 20, 2, 30, 31], [40], logprobs=[-3.0], spans=[(0, 1, 5)], temperature=2.0),
        interaction([10, 11, 20, 2, 30, 31, 40], [50], logprobs=[-4.0], spans=[(0, 1, 6)]),
    ]
    trajectory = build_trajectory(1, turns, [0.25, -1.0, 0.5])
    assert trajectory.token_ids == (10, 11, 20, 2, 30, 31, 40, 50)
    assert trajectory.loss_mask == (False, False, True, True, False, False, True, True)
    assert trajectory.behavior_logprobs == (0.0, 0.0, -1.0, -2.0, 0.0, 0.0, -3.0, -4.0)
    assert trajectory.rewards == (0.0, 0.0, 0.0, 0.25, 0.0, 0.0, -1.0, 0.5)
    assert trajectory.temperatures == (1.0, 1.0, 0.5, 0.5, 1.0, 1.0, 2.0, 1.0)
    assert trajectory.policy_versions == (-1, -1, 3, 3, -1, -1, 5, 6)
    assert trajectory.oldest_policy_version == 3


def test_single_token_answer() -> None:
    trajectory = build_trajectory(1, [interaction([10], [2])], [-1.0])
    assert trajectory.rewards == (0.0, -1.0)
    assert trajectory.num_action_tokens == 1


def test_a_length_cut_off_is_marked_and_otherwise_the_same() -> None:
    whole, cut = (build_trajectory(1, [interaction([10], [20, 21], finish=finish)], [1.0]) for finish in ("stop", "length"))
    assert (whole.truncated, cut.truncated) == (False, True)
    assert (whole.rewards, whole.loss_mask) == (cut.rewards, cut.loss_mask)
    turns = [interaction([10], [20], finish="length"), interaction([10, 20, 30], [40])]
    assert build_trajectory(1, turns, [0.0, 1.0]).truncated is True


@pytest.mark.parametrize(
    "second_prompt",
    [
        [10, 11, 20, 99, 30],
        [10, 11, 20],
        [10, 11],
        [99, 11, 20, 2, 30],
    ],
    ids=["completion differs", "completion is cut", "completion is missing", "prompt differs"],
)
def test_a_turn_that_does_not_preserve_its_prefix_is_refused(second_prompt: list[int]) -> None:
    with pytest.raises(ValueError, match="turn 1: its prompt does not begin with the 4 tokens"):
        build_trajectory(1, [interaction([10, 11], [20, 2]), interaction(second_prompt, [40])], [0.0, 1.0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answer": [], "spans": []}, "no tokens"),
        ({"prompt": []}, "prompt is empty"),
        ({"logprobs": [-1.0]}, "2 tokens but 1 behavior logprobs"),
        ({"spans": [(0, 1, 3)]}, "cover 1 of 2"),
        ({"spans": [(0, 3, 3)]}, "cover 3 of 2"),
        ({"spans": [(1, 2, 3)]}, "does not follow token 0"),
        ({"spans": [(0, 2, 3), (1, 2, 4)]}, "does not follow token 2"),
        ({"finish": "abandoned"}, "'abandoned' cannot train"),
        ({"finish": "error"}, "'error' cannot train"),
        ({"temperature": 0.0}, "greedy_sampling"),
        ({"top_p": 0.9}, "truncated_distribution"),
    ],
)
def test_what_cannot_train_is_refused(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"prompt": [10], "answer": [20, 21]} | changes
    with pytest.raises(ValueError, match=message):
        build_trajectory(1, [interaction(arguments.pop("prompt"), arguments.pop("answer"), **arguments)], [1.0])


def test_counts_must_match() -> None:
    with pytest.raises(ValueError, match="at least one"):
        build_trajectory(1, [], [])
    with pytest.raises(ValueError, match="as many rewards, not 2"):
        build_trajectory(1, [interaction([10], [20])], [1.0, 0.0])
