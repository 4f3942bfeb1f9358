"""Ridge regression with forgetting: by hand, against least squares written out, and where nothing can be fitted."""

import math

import pytest
import torch

from online_sao.algorithm.ridge import LEAST_VARIANCE, Sums


def examples(count=6, size=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    features = [torch.randn(2 + number % 3, size, generator=generator, dtype=torch.float64) for number in range(count)]
    returns = [torch.randn(len(x), generator=generator, dtype=torch.float64) for x in features]
    return features, returns


def test_one_feature_by_hand():
    """x = 0, 2 with G = 0, 1, one token each: mean 1, variance 1, covariance 1/2. The penalty is ridge · (s w)²: w = ½ / (1 + ridge / 2), s ≈ 1."""
    sums = Sums.nothing(1).after([torch.tensor([[0.0]]), torch.tensor([[2.0]])], [torch.tensor([0.0]), torch.tensor([1.0])], math.inf)
    variance = 1 + LEAST_VARIANCE
    fit = sums.fit(1.0)
    assert float(fit.weights) == pytest.approx((0.5 / variance) / (1 / variance + 1.0 / 2))
    assert fit(torch.tensor([[1.0]])).item() == pytest.approx(0.5)  # at the mean of x the value is the mean of G
    assert sums.fit(1e-9)(torch.tensor([[2.0]])).item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("half_life", [2.0, math.inf])
def test_it_is_the_minimum_of_what_it_says(half_life):
    features, returns = examples()
    sums = Sums.nothing(3).after(features[:4], returns[:4], half_life).after(features[4:], returns[4:], half_life)
    fit = sums.fit(0.3)
    ages = [2.0] * 4 + [0.0] * 2  # batch by batch, in trajectories
    weights = torch.cat([torch.full((len(x),), 0.5 ** (age / half_life) / len(x)).double() for x, age in zip(features, ages, strict=True)])
    x, g = torch.cat(features), torch.cat(returns)
    mean = (weights @ x) / weights.sum()
    variance = weights @ (x - mean) ** 2 / weights.sum()
    scale = (variance + LEAST_VARIANCE * variance.mean()).sqrt()

    def cost(w, c):
        return (weights * (g - c - x @ w) ** 2).sum() + 0.3 * 3 * ((scale * w) ** 2).sum()

    least = cost(fit.weights, fit.constant)
    for index in range(3):
        for step in (1e-3, -1e-3):
            moved = fit.weights.clone()
            moved[index] += step
            assert cost(moved, fit.constant) > least
    assert cost(fit.weights, fit.constant + 1e-3) > least
    assert cost(fit.weights, fit.constant - 1e-3) > least


def test_a_trajectory_counts_once_however_long_and_features_whatever_their_scale():
    features, returns = examples()
    longer = [torch.cat([x, x]) for x in features], [torch.cat([g, g]) for g in returns]
    scales = torch.tensor([1e-3, 1.0, 1e3], dtype=torch.float64)
    plain = Sums.nothing(3).after(features, returns, 64.0).fit(0.2)
    doubled = Sums.nothing(3).after(*longer, 64.0).fit(0.2)
    torch.testing.assert_close(doubled.weights, plain.weights)
    few = Sums.nothing(1).after([x[:, :1] for x in features], returns, 64.0).fit(0.2)
    rescaled = Sums.nothing(1).after([x[:, :1] * scales[2] for x in features], returns, 64.0).fit(0.2)
    torch.testing.assert_close(rescaled.weights * scales[2], few.weights)


def test_nothing_seen_is_zero_everywhere_and_alike_features_give_the_mean():
    assert Sums.nothing(2).fit(0.2)(torch.ones(3, 2)).tolist() == [0.0] * 3
    same = Sums.nothing(2).after([torch.ones(2, 2)] * 2, [torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1.0])], 64.0).fit(0.2)
    assert same(torch.full((1, 2), 5.0)).item() == pytest.approx(0.75)


def test_what_is_not_finite_is_left_out_and_the_rest_counts():
    features, returns = examples(2)
    broken = [torch.cat([features[0], torch.full((1, 3), math.inf, dtype=torch.float64)]), features[1], features[1]]
    unknown = [torch.cat([returns[0], torch.zeros(1, dtype=torch.float64)]), returns[1], torch.full_like(returns[1], math.nan)]
    found, expected = Sums.nothing(3).after(broken, unknown, math.inf), Sums.nothing(3).after(features, returns, math.inf)
    for name in Sums.__slots__:
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))


def test_numbers_that_cannot_work_are_refused():
    for half_life in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="half_life must be above 0"):
            Sums.nothing(1).after([], [], half_life)
    for ridge in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="ridge must be above 0"):
            Sums.nothing(1).fit(ridge)
