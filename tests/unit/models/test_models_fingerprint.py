"""Fingerprints tell the smallest training step apart and forgive rounding, at the sizes of the bundled model."""

import pytest
import torch

from online_sao.models.adapter import Adapter, MergedView
from online_sao.models.fingerprint import TOLERANCE, fingerprint, fingerprint_of_products, matches, signs

SHAPES = {"q_proj": (576, 576), "k_proj": (192, 576), "gate_proj": (1536, 576), "down_proj": (576, 1536)}


@pytest.fixture(scope="module")
def pristine():
    generator = torch.Generator().manual_seed(0)
    return {f"model.layers.{i}.{name}": torch.randn(shape, generator=generator) * 0.1 for i in range(2) for name, shape in SHAPES.items()}


def first_step(pristine, b_element, names=None):
    """An adapter after one update: A as PEFT initialises it, every element of B moved by the learning rate. Scale 2, rank 16."""
    generator = torch.Generator().manual_seed(1)
    matrices = {}
    for name, weight in pristine.items():
        if names is None or name in names:
            a = (torch.rand(16, weight.shape[1], generator=generator) * 2 - 1) / weight.shape[1] ** 0.5
            b = (torch.randint(0, 2, (weight.shape[0], 16), generator=generator) * 2 - 1) * b_element
            matrices[name] = (a, b)
    return Adapter(matrices, scale=2.0)


def test_the_projection_by_hand():
    weight = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    shifted = weight.clone()
    shifted[1, 2] += 0.5
    (before,), (after,) = fingerprint({"m": weight}), fingerprint({"m": shifted})
    assert abs(after - before) == 0.5
    assert fingerprint({"m": weight * 2}) == (2 * before,)


def test_products_give_the_same_as_the_weights(pristine):
    """What an engine finds that can only apply its weights, in fp32."""
    products = [(name, (pristine[name].float() @ signs(f"{name}:v", pristine[name].shape[1]).float())) for name in sorted(pristine)]
    assert matches(fingerprint(pristine), fingerprint_of_products(products))


def test_the_order_is_that_of_the_names(pristine):
    backwards = dict(reversed(pristine.items()))
    assert fingerprint(backwards) == fingerprint(pristine)
    assert len(fingerprint(pristine)) == len(pristine)


def test_one_update_is_told_apart(pristine):
    """Elements of the change are about 1e-5 here; the smallest step anyone trains with (learning rate 1e-6) is told apart too."""
    base = fingerprint(pristine)
    change = MergedView(pristine, first_step(pristine, 5e-5))
    elements = torch.cat([(change[name] - pristine[name]).abs().flatten() for name in pristine])
    assert 3e-6 < elements.mean() < 3e-5
    assert not matches(base, fingerprint(change))
    assert not matches(base, fingerprint(MergedView(pristine, first_step(pristine, 1e-6))))


def test_one_changed_matrix_is_enough(pristine):
    one = first_step(pristine, 5e-5, names={"model.layers.1.k_proj"})
    assert not matches(fingerprint(pristine), fingerprint(MergedView(pristine, one)))


def test_rounding_is_forgiven(pristine):
    """The same weights reached by another order of summation, as another process or thread count would."""
    adapter = first_step(pristine, 1e-2)
    direct = fingerprint(MergedView(pristine, adapter))
    halves = {}
    for name, (a, b) in adapter.matrices.items():
        halves[name] = pristine[name] + 2.0 * (b[:, 8:] @ a[8:]) + 2.0 * (b[:, :8] @ a[:8])
    other = fingerprint(halves)
    assert any(not torch.equal(halves[name], MergedView(pristine, adapter)[name]) for name in halves), "the two sums round alike: no test"
    assert matches(direct, other)
    assert max(abs(x - y) for x, y in zip(direct, other, strict=True)) < TOLERANCE / 2


def test_another_thread_count_matches(pristine):
    adapter, before = first_step(pristine, 1e-2), torch.get_num_threads()
    values = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            values.append(fingerprint(MergedView(pristine, adapter)))
    finally:
        torch.set_num_threads(before)
    assert matches(*values)


@pytest.mark.parametrize(
    ("expected", "served", "same"),
    [
        ((1.0, 2.0), (1.0, 2.0), True),
        ((1.0, 2.0), (1.0, 2.0 + TOLERANCE * 2), False),
        ((1.0,), (1.0, 2.0), False),
        ((), (1.0,), False),
        ((float("nan"),), (float("nan"),), False),
        ((float("inf"),), (float("inf"),), False),
    ],
)
def test_matches(expected, served, same):
    assert matches(expected, served) is same
