"""Trajectories to packed batches."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from online_sao.experience import batching
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


def sharing(number: int, prefix: str, mask: str) -> Trajectory:
    """As ``trajectory``, but its first tokens are those of ``prefix``, the same for everybody who has it."""
    plain = trajectory(number, "." * len(prefix) + mask)
    return dataclasses.replace(plain, token_ids=tuple(ord(letter) for letter in prefix) + plain.token_ids[len(prefix) :])


def test_one_microbatch_by_hand() -> None:
    batch = pack([trajectory(1, ".AA"), trajectory(2, "..A.A")], 8)
    (micro,) = batch.microbatches
    # The longer trajectory is placed first. Nothing is read from the last action token of each: it is left out.
    assert micro.input_ids.tolist() == [200, 201, 202, 203, 100, 101]
    assert micro.position_ids.tolist() == [0, 1, 2, 3, 0, 1]
    assert micro.segment_ids.tolist() == [1, 1, 1, 1, 2, 2]
    assert micro.state_positions.tolist() == [1, 3, 4, 5]
    assert micro.action_ids.tolist() == [202, 204, 101, 102]
    assert micro.trajectory_index.tolist() == [1, 1, 0, 0]
    assert micro.behavior_logprobs.tolist() == [-2.0, -3.0, -1.0, -1.5]
    assert micro.temperatures.tolist() == [1.25, 1.25, 1.125, 1.125]
    assert micro.rewards.tolist() == [0.0, 0.5, 0.0, 0.25]
    assert batch.num_action_tokens == 4
    assert [t.trajectory_id for t in batch.trajectories] == [1001, 1002]


def test_what_all_begin_with_stands_in_the_row_once() -> None:
    (micro,) = pack([sharing(1, "xyz", ".A"), sharing(2, "xyz", "A.A"), sharing(3, "xy", "A")], 64).microbatches
    x, y, z = (ord(letter) for letter in "xyz")
    assert micro.input_ids.tolist() == [x, y, z, 203, 204, z, 103]
    assert micro.position_ids.tolist() == [0, 1, 2, 3, 4, 2, 3]
    assert micro.segment_ids.tolist() == [0, 0, 1, 1, 1, 2, 2]
    # The third trajectory is nothing but the prefix: its one action token is produced by the prefix's last state.
    assert micro.state_positions.tolist() == [2, 4, 6, 1]
    assert micro.action_ids.tolist() == [203, 205, 104, 302]
    assert micro.trajectory_index.tolist() == [1, 1, 0, 2]


def test_action_tokens_are_never_shared_even_where_they_are_equal() -> None:
    (micro,) = pack([sharing(1, "xy", "AA"), dataclasses.replace(sharing(1, "xy", "AA"), trajectory_id=7)], 64).microbatches
    x, y = (ord(letter) for letter in "xy")
    assert micro.input_ids.tolist() == [x, y, 102, 102]
    assert micro.state_positions.tolist() == [1, 2, 1, 3]


def test_dtypes() -> None:
    (micro,) = pack([trajectory(1, ".A")], 8).microbatches
    for name in ("input_ids", "position_ids", "segment_ids", "state_positions", "action_ids", "trajectory_index"):
        assert getattr(micro, name).dtype == torch.long
    for name in ("behavior_logprobs", "temperatures", "rewards"):
        assert getattr(micro, name).dtype == torch.float32


def test_microbatches_are_filled_first_fit_by_falling_length() -> None:
    batch = pack([trajectory(0, ".A"), trajectory(1, ".AAAA"), trajectory(2, ".AAA"), trajectory(3, ".AA"), trajectory(4, ".A")], 6)
    owners = [sorted(set(micro.trajectory_index.tolist())) for micro in batch.microbatches]
    assert owners == [[1, 3], [0, 2, 4]]
    assert batch.num_action_tokens == 1 + 4 + 3 + 2 + 1


def test_a_microbatch_may_be_exactly_full() -> None:
    assert len(pack([trajectory(1, ".AAA"), trajectory(2, ".AAA")], 6).microbatches) == 1
    assert len(pack([trajectory(1, ".AAA"), trajectory(2, ".AAA")], 5).microbatches) == 2
    assert len(pack([sharing(1, "xyz", "AA"), sharing(2, "xyz", "AA")], 5).microbatches) == 1
    assert len(pack([sharing(1, "xyz", "AA"), sharing(2, "xyz", "AA")], 4).microbatches) == 2


def test_a_batch_is_shared_out_among_those_who_compute_at_once() -> None:
    long, short = "." * 40 + "A" * 41, "." * 20 + "A" * 21
    trajectories = [trajectory(1, short), trajectory(2, long), trajectory(3, short), trajectory(4, long), trajectory(5, short)]
    assert len(pack(trajectories, 1000).microbatches) == 1
    two = pack(trajectories, 1000, 2).microbatches
    assert [sorted(set(micro.trajectory_index.tolist())) for micro in two] == [[0, 1, 4], [2, 3]]
    assert [len(micro.input_ids) for micro in two] == [80 + 40 + 40, 80 + 40]
    assert len(pack(trajectories, 1000, 4).microbatches) == 4
    assert len(pack(trajectories, 1000, 16).microbatches) == 4, "280 tokens: a fifth share would have less than 64"
    assert len(pack(trajectories[:1], 1000, 2).microbatches) == 1


def test_a_trajectory_above_the_limit_is_kept_whole_in_a_microbatch_of_its_own() -> None:
    batch = pack([trajectory(1, ".A"), trajectory(2, "....AAAAAA"), trajectory(3, ".A")], 4)
    assert [len(micro.input_ids) for micro in batch.microbatches] == [9, 2]
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
    """Trajectory index → the tokens its action tokens can see or are: its own segment's and the shared ones, and its last action token."""
    pieces: dict[int, list[int]] = {}
    for index in micro.trajectory_index.unique().tolist():
        own = micro.trajectory_index == index
        segments = set(micro.segment_ids[micro.state_positions[own]].tolist()) - {0}
        assert len(segments) <= 1
        seen = (micro.segment_ids == 0) | torch.isin(micro.segment_ids, torch.tensor(sorted(segments), dtype=torch.long))
        seen &= torch.arange(len(seen)) <= micro.state_positions[own].max()
        assert micro.position_ids[seen].tolist() == list(range(int(seen.sum())))
        pieces[index] = [*micro.input_ids[seen].tolist(), int(micro.action_ids[own][-1])]
    return pieces


masks = st.text(alphabet=".A", max_size=12).filter(lambda text: "A" in text).map(lambda text: "." + text)


@given(st.lists(st.tuples(st.sampled_from(["", "x", "xy", "xyz", "q"]), masks), min_size=1, max_size=10), st.integers(1, 30), st.integers(1, 4))
@settings(max_examples=60, deadline=None, database=None)
def test_nothing_is_lost_split_or_doubled(texts: list[tuple[str, str]], max_tokens: int, at_least: int) -> None:
    trajectories = [sharing(number, prefix, mask) for number, (prefix, mask) in enumerate(texts)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "SMALLEST_SHARE", 4)
        batch = pack(trajectories, max_tokens, at_least)
    pieces: dict[int, list[int]] = {}
    for micro in batch.microbatches:
        found = rebuild(micro)
        assert len(micro.input_ids) <= max_tokens or len(found) == 1
        assert not pieces.keys() & found.keys()
        pieces |= found
        for index in found:  # every action token is read from the state of the token before it
            tokens, flags = trajectories[index].token_ids, trajectories[index].loss_mask
            before = [tokens[t - 1] for t, flag in enumerate(flags) if flag]
            own = micro.trajectory_index == index
            assert micro.input_ids[micro.state_positions[own]].tolist() == before
            assert micro.position_ids[micro.state_positions[own]].tolist() == [t - 1 for t, flag in enumerate(flags) if flag]
    ends = [len(t.loss_mask) - t.loss_mask[::-1].index(True) for t in trajectories]
    assert pieces == {index: list(t.token_ids[: ends[index]]) for index, t in enumerate(trajectories)}
    assert batch.num_action_tokens == sum(len(micro.action_ids) for micro in batch.microbatches) == sum(t.num_action_tokens for t in trajectories)
    assert batch.trajectories == tuple(trajectories)
