"""Float safety: precision, and the softmax that survives broken rows."""

import math

import pytest
import torch

from online_sao.algorithm.numerics import compute_dtype, tempered_log_softmax

NAN, INF = math.nan, math.inf


def test_precision_is_the_widest_given_and_never_below_float32() -> None:
    half, single, double = (torch.zeros(1, dtype=dtype) for dtype in (torch.bfloat16, torch.float32, torch.float64))
    assert compute_dtype(half) == compute_dtype(half, single) == torch.float32
    assert compute_dtype(single, double) == torch.float64


def test_log_softmax_at_temperature_by_hand() -> None:
    """Logits (0, log 4) at temperature 2 are (0, log 2): probabilities 1/3 and 2/3."""
    logprobs, valid = tempered_log_softmax(torch.tensor([[0.0, math.log(4.0)]], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64))
    assert logprobs[0].tolist() == pytest.approx([math.log(1 / 3), math.log(2 / 3)], abs=1e-12)
    assert valid.tolist() == [True]


def test_a_row_does_not_depend_on_the_others_of_its_batch() -> None:
    """Alone nothing is divided by and nothing replaced; beside others everything is."""
    row = torch.tensor([[0.3, -1.0, 2.0]])
    alone, _ = tempered_log_softmax(row, torch.ones(1))
    beside, valid = tempered_log_softmax(torch.cat([row, row, torch.full((1, 3), NAN)]), torch.tensor([1.0, 0.5, 1.0]))
    assert valid.tolist() == [True, True, False]
    assert torch.equal(beside[0], alone[0])
    assert tempered_log_softmax(row, torch.ones(1)).of(torch.tensor([2])).tolist() == [alone[0, 2].item()]


@pytest.mark.parametrize(
    ("row", "temperature"),
    [([NAN, 1.0], 1.0), ([INF, 1.0], 1.0), ([-INF, 1.0], 1.0), ([3e38, -3e38], 1.0), ([1e38, 0.0], 1e-3)]
    + [([2.0, 1.0], bad) for bad in (0.0, -1.0, NAN, INF)],
)
def test_a_row_that_cannot_be_normalised_is_uniform_invalid_and_without_gradient(row: list[float], temperature: float) -> None:
    logits = torch.tensor([row, [0.0, 1.0]], requires_grad=True)
    logprobs, valid = tempered_log_softmax(logits, torch.tensor([temperature, 1.0]))
    assert valid.tolist() == [False, True]
    assert logprobs[0].tolist() == pytest.approx([-math.log(2)] * 2, abs=1e-6)
    logprobs[:, 0].sum().backward()
    assert logits.grad is not None
    assert logits.grad[0].tolist() == [0.0, 0.0]
    assert logits.grad[1].abs().min() > 0
