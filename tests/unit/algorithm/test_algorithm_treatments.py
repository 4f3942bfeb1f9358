"""The treatments of ratios that rival DIS (PPO's clip, decoupled PPO and IcePop, sequence rejection): gradients as published, numbers by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from online_sao.algorithm.importance import TokenWeights, bernoulli_kl, decoupled_ppo, dis, ppo_clip, sequence_rejection, tapered
from online_sao.algorithm.losses import policy_loss

F64 = torch.float64
NAN, INF = math.nan, math.inf


def t(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=F64)


def logs(*ratios: float) -> torch.Tensor:
    return torch.tensor([math.log(ratio) for ratio in ratios], dtype=F64)


def zeros(n: int) -> torch.Tensor:
    return torch.zeros(n, dtype=F64)


def same(one: TokenWeights, other: TokenWeights) -> bool:
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("weights", "kept", "masked_low", "masked_high", "non_finite"))


def test_a_clip_looks_at_the_sign_of_the_advantage() -> None:
    ratios = (0.5, 0.9, 1.1, 1.5)
    up = ppo_clip(logs(*ratios), zeros(4), t(2, 2, 2, 2), 0.2, 0.28)
    down = ppo_clip(logs(*ratios), zeros(4), t(-2, -2, -2, -2), 0.2, 0.28)
    assert up.weights.tolist() == pytest.approx([0.5, 0.9, 1.1, 0.0])
    assert down.weights.tolist() == pytest.approx([0.0, 0.9, 1.1, 1.5])
    assert (up.masked_high.tolist(), up.masked_low.any().item()) == ([False, False, False, True], False)
    assert (down.masked_low.tolist(), down.masked_high.any().item()) == ([True, False, False, False], False)


def test_the_two_widths_of_a_clip_are_its_own() -> None:
    assert ppo_clip(logs(1.27, 1.29, 1.27, 1.29), zeros(4), t(1, 1, -1, -1), 0.2, 0.28).kept.tolist() == [True, False, True, True]
    assert ppo_clip(logs(0.81, 0.79, 0.81, 0.79), zeros(4), t(-1, -1, 1, 1), 0.2, 0.28).kept.tolist() == [True, False, True, True]


def test_a_clip_includes_its_edge() -> None:
    edge = torch.tensor([math.log1p(0.28), math.log1p(-0.2)], dtype=F64)
    assert not ppo_clip(edge, zeros(2), t(1, -1), 0.2, 0.28).kept.any()


@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(-1, 1), st.floats(-1, 1), st.floats(-3, 3)), min_size=1, max_size=8))
@settings(max_examples=100, deadline=None, database=None)
def test_weights_give_the_gradient_of_the_clipped_objectives(tokens: list[tuple[float, float, float, float]]) -> None:
    """− M(k) · min(r·A, clip(r)·A) / N as published, by autograd, beside the one policy loss with these weights: PPO (k = 1), AReaL, IcePop."""
    log_r, log_k, behavior, advantages = (torch.tensor(column, dtype=F64) for column in zip(*tokens, strict=True))
    for lowest, highest in ((0.0, INF), (0.0, 2.0), (0.5, 2.0)):
        proximal = behavior + log_k
        current = (proximal + log_r).requires_grad_()
        r, k = torch.exp(current - proximal), torch.exp(proximal - behavior)
        surrogate = torch.minimum(r * advantages, r.clamp(1 - 0.2, 1 + 0.28) * advantages)
        (-(torch.where((k >= lowest) & (k <= highest), k, 0.0) * surrogate).sum() / len(tokens)).backward()
        mine = current.detach().clone().requires_grad_()
        weights = decoupled_ppo(mine, proximal, behavior, advantages, 0.2, 0.28, lowest, highest).weights
        policy_loss(mine, weights, advantages, len(tokens)).backward()
        torch.testing.assert_close(mine.grad, current.grad)


def test_decoupled_with_proximal_as_behavior_is_the_clip() -> None:
    current, behavior, advantages = logs(0.5, 0.9, 1.5, 3.0), logs(0.7, 0.8, 0.9, 0.2), t(1, -1, 1, -1)
    clipped = ppo_clip(current, behavior, advantages, 0.2, 0.28)
    assert 0 < clipped.kept.sum() < 4
    assert same(decoupled_ppo(current, behavior, behavior, advantages, 0.2, 0.28, 0.5, 5.0), clipped)


def test_decoupled_with_proximal_as_current_is_the_plain_ratio() -> None:
    current, behavior = logs(0.5, 0.9, 0.9), logs(0.7, 0.1, 0.9)
    result = decoupled_ppo(current, current, behavior, t(1, -1, 1), 0.2, 0.2)
    assert result.weights.tolist() == pytest.approx([5 / 7, 9.0, 1.0])
    assert result.kept.all()


def test_icepop_with_proximal_as_current_is_dis_in_the_same_band() -> None:
    current, behavior = logs(0.3, 0.6, 1.0, 4.9, 5.1, 100.0), zeros(6)
    icepop = decoupled_ppo(current, current, behavior, t(1, -1, 1, -1, 1, -1), 0.2, 0.28, 0.5, 5.0)
    assert icepop.kept.tolist() == [False, True, True, True, False, False]
    assert same(icepop, dis(current, behavior, 0.5, 4.0))


def test_a_capped_weight_is_left_out_not_cut() -> None:
    result = decoupled_ppo(logs(6.0, 4.0), logs(6.0, 4.0), zeros(2), t(1, 1), 0.2, 0.2, 0.0, 5.0)
    assert (result.weights.tolist(), result.masked_high.tolist()) == (pytest.approx([0.0, 4.0]), [True, False])


def test_a_taper_brings_good_tokens_back_and_leaves_bad_ones_where_they_fell() -> None:
    ratios = (0.01, 0.6, 0.8, 1.5, 7.0)
    good = tapered(logs(*ratios), zeros(5), t(2, 2, 2, 2, 2), 0.3, 5.0)
    bad = tapered(logs(*ratios), zeros(5), t(-2, -2, -2, -2, -2), 0.3, 5.0)
    assert good.weights.tolist() == [1.0, 1.0, 1.0, 1.0, 0.0]
    assert bad.weights.tolist() == pytest.approx([0.0, 0.0, 0.8, 1.0, 1.0])
    assert (good.masked_low.any().item(), good.masked_high.tolist()) == (False, [False, False, False, False, True])
    assert (bad.masked_low.tolist(), bad.masked_high.any().item()) == ([True, True, False, False, False], False)


def test_on_policy_a_taper_is_dis() -> None:
    behavior = logs(0.2, 0.9, 1.0)
    assert same(tapered(behavior, behavior, t(1, -1, 0), 0.3, 5.0), dis(behavior, behavior, 0.3, 5.0))


def test_a_taper_leaves_out_and_counts_what_is_not_finite() -> None:
    result = tapered(t(NAN, -1, -INF, 0, 0), t(-1, NAN, -1, -INF, -INF), t(1, 1, -1, 1, -1), 0.3, 5.0)
    assert result.non_finite.all()
    assert not result.weights.any()


def test_bernoulli_kl_by_hand() -> None:
    p, q = logs(0.5, 0.25, 0.9), logs(0.25, 0.5, 0.9)
    expected = [0.5 * math.log(2) + 0.5 * math.log(2 / 3), 0.25 * math.log(0.5) + 0.75 * math.log(1.5), 0.0]
    assert bernoulli_kl(p, q).tolist() == pytest.approx(expected, abs=1e-12)
    assert expected[0] == pytest.approx(0.1438410, abs=1e-7)
    assert bernoulli_kl(t(0.0, -1e9), t(0.0, -1e9)).tolist() == [0.0, 0.0]
    assert bernoulli_kl(t(0.0), t(-1e9)).item() == pytest.approx(math.log(1e6), rel=1e-4)


@given(st.floats(-20, 0), st.floats(-20, 0))
@settings(max_examples=50, deadline=None, database=None)
def test_bernoulli_kl_is_never_negative(p: float, q: float) -> None:
    assert bernoulli_kl(torch.tensor([p]), torch.tensor([q])).item() >= 0.0


def test_a_trajectory_is_in_or_out_as_a_whole_by_the_mean_of_its_tokens() -> None:
    """Trajectory 4: tokens that drift by 0.1438 and 0, mean 0.0719. Trajectory 9: none drifts."""
    behavior, current = logs(0.5, 0.9, 0.25, 0.5), logs(0.25, 0.9, 0.25, 0.5)
    owner = torch.tensor([4, 9, 9, 4])
    out = sequence_rejection(current, behavior, owner, 0.0719)
    assert out.kept.tolist() == [False, True, True, False]
    assert (out.masked_low.tolist(), out.masked_high.tolist()) == ([True, False, False, False], [False, False, False, True])
    kept = sequence_rejection(current, behavior, owner, 0.0720)
    assert kept.weights.tolist() == pytest.approx([0.5, 1.0, 1.0, 1.0])
    assert kept.kept.all()


@pytest.mark.parametrize("broken", [NAN, INF, -INF])
def test_what_is_not_finite_is_a_class_of_its_own_and_leaves_the_others_alone(broken: float) -> None:
    current, behavior, advantages, owner = t(broken, -1.0, -1.0), t(-1.0, -1.0, -1.0), t(1, 1, 1), torch.tensor([0, 0, 1])
    for result in (
        ppo_clip(current, behavior, advantages, 0.2, 0.28),
        decoupled_ppo(behavior, current, behavior, advantages, 0.2, 0.28, 0.5, 5.0),
        sequence_rejection(current, behavior, owner, 1e-3),
    ):
        assert result.non_finite.tolist() == [True, False, False]
        assert result.weights.tolist() == [0.0, 1.0, 1.0]
        classes = torch.stack([result.kept, result.masked_low, result.masked_high, result.non_finite]).sum(0)
        assert classes.tolist() == [1, 1, 1]


def test_a_ratio_that_overflows_counts_as_not_finite() -> None:
    result = ppo_clip(torch.tensor([0.0]), torch.tensor([-1000.0]), torch.tensor([-1.0]), 0.2, 0.28)
    assert (result.non_finite.item(), result.kept.item(), result.weights.item()) == (True, False, 0.0)
