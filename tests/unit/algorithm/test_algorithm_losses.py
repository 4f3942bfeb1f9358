"""The three losses and their gradients, against numbers worked out by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from online_sao.algorithm.importance import dis
from online_sao.algorithm.losses import anchor_loss, policy_loss, value_loss
from online_sao.algorithm.numerics import tempered_log_softmax

F64 = torch.float64
NAN, INF = math.nan, math.inf


def t(*numbers: float, grad: bool = False) -> torch.Tensor:
    return torch.tensor(numbers, dtype=F64, requires_grad=grad)


def test_policy_loss_and_gradient_by_hand() -> None:
    """Two tokens of a batch of 4: −(2·0.5·(−1) + 0.8·(−1)·(−2)) / 4 = −(−1 + 1.6)/4 = −0.15; gradient −w·A/N = (−0.25, 0.2)."""
    current = t(-1, -2, grad=True)
    loss = policy_loss(current, t(2, 0.8), t(0.5, -1), 4)
    assert loss.item() == pytest.approx(-0.15, abs=1e-12)
    loss.backward()
    assert current.grad is not None
    assert current.grad.tolist() == pytest.approx([-0.25, 0.2], abs=1e-12)


def test_no_gradient_flows_through_weights_or_advantages() -> None:
    """Were w = exp(current − behavior) not a constant, the gradient would hold w·A·current as well."""
    current = t(-1.0, -2.0, grad=True)
    behavior, advantages = t(-1.2, -1.9), t(0.5, -1.0, grad=True)
    weights = torch.exp(current - behavior)
    policy_loss(current, weights, advantages, 2).backward()
    assert current.grad is not None
    assert current.grad.tolist() == pytest.approx([-math.exp(0.2) * 0.5 / 2, math.exp(-0.1) / 2], abs=1e-12)
    assert advantages.grad is None


def test_a_positive_advantage_raises_the_logprob() -> None:
    current = t(-1, grad=True)
    policy_loss(current, t(1), t(1), 1).backward()
    assert current.grad is not None
    assert current.grad.item() < 0


def test_masked_tokens_stay_in_the_divisor() -> None:
    current = t(-1, -1, -1, -1, grad=True)
    behavior = t(-1, -1, -4, NAN)
    weights = dis(current, behavior, 0.3, 5.0).weights
    assert weights.tolist() == [1.0, 1.0, 0.0, 0.0]
    loss = policy_loss(current, weights, t(1, 1, 1, 1), 4)
    assert loss.item() == pytest.approx(2 / 4, abs=1e-12)
    loss.backward()
    assert current.grad is not None
    assert current.grad.tolist() == [-0.25, -0.25, 0.0, 0.0]


def test_all_masked_gives_zero_loss_and_zero_gradient() -> None:
    current = t(-1, -2, grad=True)
    weights = dis(current, t(-5, -9), 0.3, 5.0).weights
    loss = policy_loss(current, weights, t(1, 1), 2)
    loss.backward()
    assert loss.item() == 0.0
    assert current.grad is not None
    assert current.grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("broken", [NAN, INF, -INF])
@pytest.mark.parametrize("which", ["logprobs", "weights", "advantages"])
def test_policy_loss_drops_a_non_finite_token_and_nothing_else(broken: float, which: str) -> None:
    inputs = {"logprobs": t(-1, -2, -3), "weights": t(1, 1, 2), "advantages": t(1, 1, -1)}
    inputs[which][1] = broken
    current = inputs["logprobs"].requires_grad_()
    loss = policy_loss(current, inputs["weights"], inputs["advantages"], 3)
    loss.backward()
    assert loss.item() == pytest.approx((1 - 6) / 3, abs=1e-12)
    assert current.grad is not None
    assert current.grad.tolist() == pytest.approx([-1 / 3, 0.0, 2 / 3], abs=1e-12)


def test_policy_loss_in_float32_survives_products_that_overflow() -> None:
    current = torch.tensor([-1.0, -1.0], requires_grad=True)
    policy_loss(current, torch.tensor([5.0, 1.0]), torch.tensor([3e38, 1.0]), 2).backward()
    assert current.grad is not None
    assert current.grad.tolist() == [0.0, -0.5]


def test_value_loss_and_gradient_by_hand() -> None:
    """((0.5 − 1)² + (2 − (−1))²) / 4 = (0.25 + 9)/4; gradient 2(V − target)/N."""
    values = t(0.5, 2, grad=True)
    loss = value_loss(values, t(1, -1), 4)
    loss.backward()
    assert loss.item() == pytest.approx(9.25 / 4, abs=1e-12)
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([-0.25, 1.5], abs=1e-12)


def test_value_targets_are_constants() -> None:
    targets = t(1, grad=True)
    value_loss(t(0.5, grad=True), targets, 1).backward()
    assert targets.grad is None


@pytest.mark.parametrize("broken", [NAN, INF, -INF, 1e200])
@pytest.mark.parametrize("which", ["values", "targets"])
def test_value_loss_drops_a_non_finite_token_and_nothing_else(broken: float, which: str) -> None:
    inputs = {"values": t(0.5, 0, 2), "targets": t(1, 0, -1)}
    inputs[which][1] = broken
    values = inputs["values"].requires_grad_()
    loss = value_loss(values, inputs["targets"], 3)
    loss.backward()
    assert loss.item() == pytest.approx(9.25 / 3, abs=1e-12)
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([-1 / 3, 0.0, 2.0], abs=1e-12)


def anchor(current_logits: torch.Tensor, base_logits: torch.Tensor, temperatures: torch.Tensor, num_action_tokens: int) -> torch.Tensor:
    return anchor_loss(tempered_log_softmax(current_logits, temperatures), tempered_log_softmax(base_logits, temperatures), num_action_tokens)


def hand_kl(current: list[float], base: list[float], temperature: float) -> float:
    """KL over the full vocabulary in plain Python, from probabilities."""

    def softmax(logits: list[float]) -> list[float]:
        weights = [math.exp(logit / temperature) for logit in logits]
        return [weight / sum(weights) for weight in weights]

    return sum(p * math.log(p / q) for p, q in zip(softmax(current), softmax(base), strict=True))


def test_anchor_is_the_full_vocabulary_kl_from_current_to_base_at_the_tokens_own_temperatures() -> None:
    current = [[1.0, 2.0, -1.0, 0.5], [0.0, 0.3, 0.1, 3.0], [2.0, 2.0, 2.0, 0.0]]
    base = [[0.5, 0.0, 0.25, 1.0], [1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 2.0, 3.0]]
    temperatures = [0.7, 1.0, 1.6]
    expected = [hand_kl(c, b, tau) for c, b, tau in zip(current, base, temperatures, strict=True)]
    loss = anchor(torch.tensor(current, dtype=F64), torch.tensor(base, dtype=F64), t(*temperatures), 5)
    assert loss.item() == pytest.approx(sum(expected) / 5, abs=1e-12)


def test_anchor_by_hand_on_two_words() -> None:
    """p = (0.8, 0.2), q = (0.5, 0.5) at temperature 2, where the logits are 2·log p: KL = 0.8·log 1.6 + 0.2·log 0.4 = 0.1927445."""
    current = 2 * torch.log(torch.tensor([[0.8, 0.2]], dtype=F64))
    assert anchor(current, torch.zeros(1, 2, dtype=F64), t(2.0), 1).item() == pytest.approx(0.1927445, abs=1e-6)


def test_anchor_gradient_pulls_to_the_base_and_vanishes_there() -> None:
    base = torch.tensor([[1.0, 2.0, 3.0]], dtype=F64)
    at_base = base.clone().requires_grad_()
    anchor(at_base, base, t(0.7), 1).backward()
    assert at_base.grad is not None
    assert at_base.grad.abs().max().item() < 1e-12
    away = torch.tensor([[3.0, 2.0, 1.0]], dtype=F64, requires_grad=True)
    base_with_grad = base.clone().requires_grad_()
    anchor(away, base_with_grad, t(0.7), 1).backward()
    assert away.grad is not None
    assert away.grad[0, 0] > 0 > away.grad[0, 2]
    assert base_with_grad.grad is None


def test_anchor_gradient_is_right() -> None:
    torch.manual_seed(0)
    current, base = torch.randn(3, 5, dtype=F64, requires_grad=True), torch.randn(3, 5, dtype=F64)
    assert torch.autograd.gradcheck(lambda logits: anchor(logits, base, t(0.7, 1.0, 1.3), 3), (current,))


@pytest.mark.parametrize("broken", [NAN, INF, -INF])
@pytest.mark.parametrize("which", ["current", "base", "temperatures"])
def test_anchor_drops_a_non_finite_row_and_nothing_else(broken: float, which: str) -> None:
    inputs = {
        "current": torch.tensor([[1.0, 2.0], [1.0, 0.0], [0.0, 2.0]], dtype=F64),
        "base": torch.tensor([[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]], dtype=F64),
        "temperatures": t(1, 1, 0.5),
    }
    inputs[which][1] = broken
    current = inputs["current"].requires_grad_()
    loss = anchor(current, inputs["base"], inputs["temperatures"], 3)
    loss.backward()
    assert loss.item() == pytest.approx((hand_kl([1, 2], [0, 1], 1) + hand_kl([0, 2], [1, 0], 0.5)) / 3, abs=1e-12)
    assert current.grad is not None
    assert torch.isfinite(current.grad).all()
    assert current.grad[1].tolist() == [0.0, 0.0]
    assert current.grad[2].abs().min() > 0


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_anchor_drops_rows_of_impossible_temperature(temperature: float) -> None:
    assert anchor(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 0.0]]), torch.tensor([temperature]), 1).item() == 0.0


def test_anchor_in_float32_survives_extreme_logits() -> None:
    current = torch.tensor([[3e38, -3e38], [1e4, -1e4], [1.0, 0.0]], requires_grad=True)
    loss = anchor(current, torch.tensor([[0.0, 0.0], [-1e4, 1e4], [1.0, 0.0]]), torch.tensor([1.0, 0.5, 1.0]), 3)
    loss.backward()
    assert torch.isfinite(loss)
    assert current.grad is not None
    assert torch.isfinite(current.grad).all()


def test_half_precision_is_raised_to_float32() -> None:
    half = torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16)
    assert anchor(half, half, torch.ones(1), 1).dtype == torch.float32
    assert policy_loss(half[0], half[0], half[0], 2).dtype == torch.float32
    assert value_loss(half[0], half[0], 2).dtype == torch.float32


@given(st.lists(st.tuples(*[st.floats(-5, 5)] * 4), min_size=2, max_size=20), st.data())
@settings(max_examples=30, deadline=None, database=None)
def test_microbatches_add_up_to_the_batch(rows: list[tuple[float, float, float, float]], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(rows) - 1))
    table = torch.tensor(rows, dtype=F64)
    logprobs, behavior, advantages, targets = table.unbind(dim=1)
    weights, n = dis(logprobs, behavior, 0.3, 5.0).weights, len(rows)
    logits, base, temperatures = table, table.roll(1, dims=1), targets.abs() + 0.5
    parts = (slice(0, cut), slice(cut, n))
    for whole, split in (
        (policy_loss(logprobs, weights, advantages, n), [policy_loss(logprobs[s], weights[s], advantages[s], n) for s in parts]),
        (value_loss(logprobs, targets, n), [value_loss(logprobs[s], targets[s], n) for s in parts]),
        (anchor(logits, base, temperatures, n), [anchor(logits[s], base[s], temperatures[s], n) for s in parts]),
    ):
        torch.testing.assert_close(sum(split), whole, atol=1e-9, rtol=1e-9)


def test_a_batch_without_action_tokens_is_an_error() -> None:
    empty = t()
    for call in (
        lambda: policy_loss(empty, empty, empty, 0),
        lambda: value_loss(empty, empty, 0),
        lambda: anchor(torch.zeros(0, 3), torch.zeros(0, 3), empty, 0),
    ):
        with pytest.raises(ValueError, match="num_action_tokens"):
            call()
