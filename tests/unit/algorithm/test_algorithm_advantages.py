"""Returns, skip-observation GAE and the length-adaptive lambda, against numbers worked out by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from online_sao.algorithm.advantages import length_adaptive_lambda, monte_carlo_returns, skip_observation_gae

F64 = torch.float64
NAN, INF = math.nan, math.inf


def t(*numbers: float, dtype: torch.dtype = F64) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype)


def mask(text: str) -> torch.Tensor:
    """'.AA.A' → action tokens at 1, 2 and 4."""
    return torch.tensor([letter == "A" for letter in text])


@pytest.mark.parametrize(("length", "expected"), [(1, 1 / 3), (2, 2 / 3), (3, 7 / 9), (10, 14 / 15), (100, 149 / 150)])
def test_length_adaptive_lambda(length: int, expected: float) -> None:
    assert length_adaptive_lambda(length) == pytest.approx(expected, abs=1e-12)
    assert length_adaptive_lambda(length, 1.5) == pytest.approx(max(0.0, 1 - 1 / (1.5 * length)), abs=1e-12)


def test_lambda_is_never_negative() -> None:
    assert length_adaptive_lambda(1, alpha=0.5) == 0.0


def test_lambda_of_no_action_token_is_an_error() -> None:
    with pytest.raises(ValueError, match="num_action_tokens"):
        length_adaptive_lambda(0)


def test_gae_of_one_action_by_hand() -> None:
    """gamma 1, lam 0.5. δ3 = 1 − 0.4 = 0.6; δ2 = 0.4 − 0.2 = 0.2; δ1 = 0.2 − 0.1 = 0.1. A3 = 0.6; A2 = 0.2 + 0.3 = 0.5; A1 = 0.1 + 0.25."""
    advantages = skip_observation_gae(t(0, 0, 0, 1), t(9, 0.1, 0.2, 0.4), mask(".AAA"), 1.0, 0.5)
    assert advantages.tolist() == pytest.approx([0.0, 0.35, 0.5, 0.6], abs=1e-12)


def test_two_actions_with_an_observation_between_by_hand() -> None:
    """Prompt, a1 a2, two observation tokens, b1 b2; gamma 0.9, lam 0.5; rewards 1 on a2 and −1 on b2.

    δ(b2) = −1 − 0.3 = −1.3               A(b2) = −1.3
    δ(b1) = 0.9·0.3 − 0.2 = 0.07          A(b1) = 0.07 + 0.45·(−1.3) = −0.515
    δ(a2) = 1 + 0.9·0.2 − 0.4 = 0.78      A(a2) = 0.78 + 0.45·(−0.515) = 0.54825
    δ(a1) = 0.9·0.4 − 0.5 = −0.14         A(a1) = −0.14 + 0.45·0.54825 = 0.1067125
    """
    rewards = t(0, 0, 1, 0, 0, 0, -1)
    values = t(7, 0.5, 0.4, 8, 9, 0.2, 0.3)
    advantages = skip_observation_gae(rewards, values, mask(".AA..AA"), 0.9, 0.5)
    assert advantages.tolist() == pytest.approx([0.0, 0.1067125, 0.54825, 0.0, 0.0, -0.515, -1.3], abs=1e-12)


def test_what_stands_on_observation_tokens_is_never_read() -> None:
    rewards, values, loss_mask = t(0, 0, 1, 0, 0, -1), t(0, 0.5, 0.4, 0, 0, 0.2), mask(".AA..A")
    expected = skip_observation_gae(rewards, values, loss_mask, 0.9, 0.5)
    noisy_rewards, noisy_values = rewards.clone(), values.clone()
    noisy_rewards[~loss_mask] = t(5, NAN, INF)
    noisy_values[~loss_mask] = t(NAN, 6, -INF)
    assert torch.equal(skip_observation_gae(noisy_rewards, noisy_values, loss_mask, 0.9, 0.5), expected)
    assert torch.equal(monte_carlo_returns(noisy_rewards, loss_mask), monte_carlo_returns(rewards, loss_mask))


def test_single_token_answer() -> None:
    advantages = skip_observation_gae(t(0, 0, 0.5), t(0, 0, 0.2), mask("..A"), 1.0, length_adaptive_lambda(1))
    assert advantages.tolist() == pytest.approx([0.0, 0.0, 0.3], abs=1e-12)
    assert monte_carlo_returns(t(0, 0, 0.5), mask("..A")).tolist() == [0.0, 0.0, 0.5]


def test_a_length_cut_off_is_terminal_and_bootstraps_nothing() -> None:
    """A cut-off answer of two tokens: whatever its last value, A(a2) = r − V(a2), with no V after it, even when tokens follow in the row."""
    advantages = skip_observation_gae(t(0, 0, 1, 0), t(0, 0.25, 0.75, 100), mask(".AA."), 1.0, 1.0)
    assert advantages.tolist() == pytest.approx([0.0, 0.75, 0.25, 0.0], abs=1e-12)


def test_no_action_token_gives_zeros() -> None:
    assert skip_observation_gae(t(1, 2), t(3, 4), mask(".."), 1.0, 0.9).tolist() == [0.0, 0.0]
    assert monte_carlo_returns(t(1, 2), mask("..")).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("broken", [NAN, INF, -INF])
@pytest.mark.parametrize("where", ["rewards", "values"])
def test_a_non_finite_reward_or_value_silences_the_whole_trajectory(broken: float, where: str) -> None:
    inputs = {"rewards": t(0, 0, 0, 1), "values": t(0, 0.1, 0.2, 0.3)}
    inputs[where][2] = broken
    assert skip_observation_gae(inputs["rewards"], inputs["values"], mask(".AAA"), 1.0, 0.9).tolist() == [0.0] * 4


def test_returns_by_hand() -> None:
    assert monte_carlo_returns(t(0, 0, 1, 0, 0, -0.5), mask(".AA.AA")).tolist() == [0.0, 0.5, 0.5, 0.0, -0.5, -0.5]
    assert monte_carlo_returns(t(0, 0, 1, 0, 0, -0.5), mask(".AA.AA"), gamma=0.5).tolist() == pytest.approx([0.0, 0.4375, 0.875, 0.0, -0.25, -0.5])


def test_a_return_that_includes_a_broken_reward_is_marked_and_later_ones_are_not() -> None:
    returns = monte_carlo_returns(t(0, 0, INF, 0, 1), mask(".AAAA"))
    assert returns[1:3].isnan().all()
    assert returns[[0, 3, 4]].tolist() == [0.0, 1.0, 1.0]


def test_results_are_constants_in_the_dtype_of_the_inputs() -> None:
    values = t(0.1, 0.2, dtype=torch.float32).requires_grad_()
    advantages = skip_observation_gae(t(0, 1, dtype=torch.float32), values, mask("AA"), 1.0, 0.9)
    assert not advantages.requires_grad
    assert advantages.dtype == torch.float32
    assert skip_observation_gae(t(0, 1), t(0, 0), mask("AA"), 1.0, 0.9).dtype == F64


numbers = st.floats(-10, 10, allow_subnormal=False)
tokens = st.lists(st.tuples(numbers, numbers, st.booleans()), min_size=1, max_size=25)


@given(tokens)
@settings(max_examples=30, deadline=None, database=None)
def test_with_lambda_and_gamma_one_the_advantage_is_return_minus_value(rows: list[tuple[float, float, bool]]) -> None:
    rewards, values, loss_mask = t(*(r[0] for r in rows)), t(*(r[1] for r in rows)), torch.tensor([r[2] for r in rows])
    advantages = skip_observation_gae(rewards, values, loss_mask, 1.0, 1.0)
    expected = torch.where(loss_mask, monte_carlo_returns(rewards, loss_mask) - values, torch.zeros_like(values))
    torch.testing.assert_close(advantages, expected, atol=1e-9, rtol=0)


@given(tokens, st.floats(0.1, 1), st.floats(0, 1))
@settings(max_examples=30, deadline=None, database=None)
def test_without_observations_it_is_plain_gae(rows: list[tuple[float, float, bool]], gamma: float, lam: float) -> None:
    """Plain GAE in its closed form: A_t = Σ_k (gamma·lam)^k · (r_{t+k} + gamma · V_{t+k+1} − V_{t+k}), V after the end 0."""
    rewards, values = [r[0] for r in rows], [r[1] for r in rows] + [0.0]
    length = len(rows)
    deltas = [rewards[i] + gamma * values[i + 1] - values[i] for i in range(length)]
    expected = [sum((gamma * lam) ** (j - i) * deltas[j] for j in range(i, length)) for i in range(length)]
    advantages = skip_observation_gae(t(*rewards), t(*values[:-1]), torch.ones(length, dtype=torch.bool), gamma, lam)
    assert advantages.tolist() == pytest.approx(expected, abs=1e-8)


@given(tokens, st.floats(0.1, 1), st.floats(0, 1))
@settings(max_examples=30, deadline=None, database=None)
def test_observations_can_be_cut_out_without_changing_any_advantage(rows: list[tuple[float, float, bool]], gamma: float, lam: float) -> None:
    rewards, values, loss_mask = t(*(r[0] for r in rows)), t(*(r[1] for r in rows)), torch.tensor([r[2] for r in rows])
    whole = skip_observation_gae(rewards, values, loss_mask, gamma, lam)
    cut = skip_observation_gae(rewards[loss_mask], values[loss_mask], loss_mask[loss_mask], gamma, lam)
    assert torch.equal(whole[loss_mask], cut)
    assert not whole[~loss_mask].any()
