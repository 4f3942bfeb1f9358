"""Trajectories to packed batches."""

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from online_sao.experience.batching import PackedMicrobatch, pack
from online_sao.types import Trajectory


def trajectory(number: int, mask: str) -> Trajectory:
    """'.AA.A' → five tokens, action tokens at 1, 2, 4; every field differs from token to token and from trajectory to trajectory."""
    length = len(mask)
    actions = [letter == "A" for letter in mask]
    return Trajectory(
        trajectory_id=1000 + number,
        token_ids=tuple(100 * number + t for t in range(length)),
        loss_mask=tuple(actions),
        behavior_logprobs=tuple(-0.5 * (number + t) if a else 0.0 for t, a in enumerate(actions)),
        rewards=tuple(0.25 * (t - number) if a else 0.0 for t, a in enumerate(actions)),
        temperatures=tuple(1.0 + 0.125 * number if a else 1.0 for a in actions),
        policy_versions=tuple(number if a else -1 for a in actions),
    )


def test_one_microbatch_by_hand() -> None:
    batch = pack([trajectory(1, ".AA"), trajectory(2, "..A.A")], 8)
    (micro,) = batch.microbatches
    # The longer trajectory is placed first.
    assert micro.input_ids.tolist() == [200, 201, 202, 203, 204, 100, 101, 102]
    assert micro.position_ids.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert micro.action_positions.tolist() == [2, 4, 6, 7]
    assert micro.action_ids.tolist() == [202, 204, 101, 102]
    assert micro.trajectory_index.tolist() == [1, 1, 0, 0]
    assert micro.behavior_logprobs.tolist() == [-2.0, -3.0, -1.0, -1.5]
    assert micro.temperatures.tolist() == [1.25, 1.25, 1.125, 1.125]
    assert micro.rewards.tolist() == [0.0, 0.5, 0.0, 0.25]
    assert batch.num_action_tokens == 4
    assert [t.trajectory_id for t in batch.trajectories] == [1001, 1002]


def test_dtypes() -> None:
    (micro,) = pack([trajectory(1, ".A")], 8).microbatches
    for name in ("input_ids", "position_ids", "action_positions", "action_ids", "trajectory_index"):
        assert getattr(micro, name).dtype == torch.long
    for name in ("behavior_logprobs", "temperatures", "rewards"):
        assert getattr(micro, name).dtype == torch.float32


def test_the_position_before_every_action_belongs_to_the_same_trajectory() -> None:
    """Logits and values of a_t are read there: for the first action token that is the last prompt or observation token."""
    (micro,) = pack([trajectory(1, ".AA"), trajectory(2, "..A.A"), trajectory(3, ".A")], 64).microbatches
    before = micro.action_positions - 1
    assert torch.equal(micro.position_ids[before] + 1, micro.position_ids[micro.action_positions])
    assert torch.equal(micro.input_ids[before] // 100, micro.action_ids // 100)


def test_microbatches_are_filled_first_fit_by_falling_length() -> None:
    batch = pack([trajectory(0, ".A"), trajectory(1, ".AAAA"), trajectory(2, ".AAA"), trajectory(3, ".AA"), trajectory(4, ".A")], 8)
    owners = [sorted(set(micro.trajectory_index.tolist())) for micro in batch.microbatches]
    assert owners == [[1, 3], [0, 2, 4]]
    assert batch.num_action_tokens == 1 + 4 + 3 + 2 + 1


def test_a_microbatch_may_be_exactly_full() -> None:
    assert len(pack([trajectory(1, ".AAA"), trajectory(2, ".AAA")], 8).microbatches) == 1
    assert len(pack([trajectory(1, ".AAA"), trajectory(2, ".AAA")], 7).microbatches) == 2


def test_a_trajectory_above_the_limit_is_kept_whole_in_a_microbatch_of_its_own() -> None:
    batch = pack([trajectory(1, ".A"), trajectory(2, "....AAAAAA"), trajectory(3, ".A")], 4)
    assert [len(micro.input_ids) for micro in batch.microbatches] == [10, 4]
    assert set(batch.microbatches[0].trajectory_index.tolist()) == {1}


def test_what_cannot_be_packed_is_refused() -> None:
    good = trajectory(1, ".A")
    with pytest.raises(ValueError, match="at least one trajectory"):
        pack([], 8)
    with pytest.raises(ValueError, match="max_tokens"):
        pack([good], 0)
    with pytest.raises(ValueError, match="1002 has no action token"):
        pack([good, trajectory(2, "..")], 8)
    with pytest.raises(ValueError, match="token 0"):
        pack([trajectory(2, "A.")], 8)
    with pytest.raises(ValueError, match="differ in length"):
        pack([dataclasses.replace(good, rewards=(0.0,))], 8)


def test_non_finite_numbers_pass_through_for_the_losses_to_mask_and_count() -> None:
    (micro,) = pack([dataclasses.replace(trajectory(1, ".A"), rewards=(0.0, float("nan")))], 8).microbatches
    assert micro.rewards.isnan().all()


def rebuild(micro: PackedMicrobatch) -> dict[int, list[int]]:
    """Trajectory index → its token ids, found by the restarts of the positions."""
    starts = [i for i, position in enumerate(micro.position_ids.tolist()) if position == 0] + [len(micro.input_ids)]
    pieces: dict[int, list[int]] = {}
    for start, end in itertools.pairwise(starts):
        inside = (micro.action_positions >= start) & (micro.action_positions < end)
        (owner,) = set(micro.trajectory_index[inside].tolist())
        pieces[owner] = micro.input_ids[start:end].tolist()
    return pieces


masks = st.text(alphabet=".A", max_size=12).filter(lambda text: "A" in text).map(lambda text: "." + text)


@given(st.lists(masks, min_size=1, max_size=10), st.integers(1, 30))
@settings(max_examples=30, deadline=None, database=None)
def test_nothing_is_lost_split_or_doubled(texts: list[str], max_tokens: int) -> None:
    trajectories = [trajectory(number, text) for number, text in enumerate(texts)]
    batch = pack(trajectories, max_tokens)
    pieces: dict[int, list[int]] = {}
    for micro in batch.microbatches:
        found = rebuild(micro)
        assert len(micro.input_ids) <= max_tokens or len(found) == 1
        assert not pieces.keys() & found.keys()
        pieces |= found
        assert torch.equal(micro.input_ids[micro.action_positions], micro.action_ids)
    assert pieces == {index: list(t.token_ids) for index, t in enumerate(trajectories)}
    assert batch.num_action_tokens == sum(len(micro.action_ids) for micro in batch.microbatches) == sum(text.count("A") for text in texts)
    assert batch.trajectories == tuple(trajectories)
