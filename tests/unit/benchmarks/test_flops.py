"""The account of an update's floating point operations: by hand on numbers small enough, and against what a real learner executes."""

from __future__ import annotations

import pytest
import tiny_learner
import torch

from online_sao.benchmarks import flops
from online_sao.benchmarks.flops import Executed, Matrix, Shape, Work, pairs

# One block of width 2: a query matrix 2x2 and an output matrix 2x2 in attention, 2x3 and 3x2 in the MLP; two of them; a vocabulary of 5.
BLOCK = ((2, 2, False, True), (2, 2, False, False), (2, 3, True, True), (3, 2, True, False))
SHAPE = Shape(tuple(Matrix(i, o, mlp, layer, reads) for layer in (0, 1) for i, o, mlp, reads in BLOCK), 2, 2, 2, 5)
WORK = Work(tokens=10, action_tokens=4, pairs=7)


def test_pairs_by_hand():
    assert pairs(torch.tensor([1, 1, 1])) == 6
    assert pairs(torch.tensor([1, 1, 2, 2, 2])) == 3 + 6
    # A prefix of 2 (3 pairs), then 2 tokens (2·2 + 3) and 1 token (2 + 1).
    assert pairs(torch.tensor([0, 0, 1, 1, 2])) == 3 + 7 + 3


def test_one_forward_by_hand():
    assert SHAPE.block_weights == 2 * (4 + 4 + 6 + 6)
    assert flops.forward(SHAPE, WORK) == 2 * 40 * 10 + 4 * 2 * 7 * 2
    assert flops.head(SHAPE, WORK) == 2 * 2 * 5 * 4
    # Rank 3: 2·3·(in + out) of each matrix.
    assert flops.low_rank_forward(SHAPE, WORK, 3, mlp_only=False) == 2 * 6 * (4 + 4 + 5 + 5) * 10
    assert flops.low_rank_forward(SHAPE, WORK, 3, mlp_only=True) == 2 * 6 * (5 + 5) * 10


def test_one_backward_by_hand():
    # The policy learns from the first matrix on: nothing needs the gradient of that one's own input.
    frozen = 2 * (40 - 4)
    low_rank = 2 * 3 * (2 * (2 + 2 + 3 + 2) * 2 + 2 * (2 + 2 + 2 + 3) * 2 - 2)
    assert flops.backward(SHAPE, WORK, 3, mlp_only=False) == (frozen + low_rank) * 10 + 8 * 2 * 7 * 2
    # The value model learns from the first MLP on: the first block's attention is not gone through, nor its first MLP matrix.
    frozen = 2 * (40 - 4 - 4 - 6)
    low_rank = 2 * 3 * (2 * (3 + 2) * 2 + 2 * (2 + 3) * 2 - 2)
    assert flops.backward(SHAPE, WORK, 3, mlp_only=True) == (frozen + low_rank) * 10 + 8 * 2 * 7 * 1


def test_an_update_is_its_parts(make_bench):
    recipe = make_bench(value_updates=3, fresh_values=False).learner.recipe
    parts = flops.update(SHAPE, WORK, recipe, 3)
    value = flops.forward(SHAPE, WORK) + flops.low_rank_forward(SHAPE, WORK, 3, mlp_only=True) + flops.backward(SHAPE, WORK, 3, mlp_only=True)
    assert parts["value updates"] == 3 * (value + 6 * 2 * 4)
    assert parts["fresh values"] == 0
    assert parts["base"] == flops.forward(SHAPE, WORK) + flops.head(SHAPE, WORK)


def test_the_account_is_what_a_learner_executes_but_for_one_head(make_bench):
    """Matrix products to the last one: the head that is met twice to learn every current logprob before the losses is not in the account."""
    bench = make_bench(lora_rank=4, value_updates=2)
    batch = bench.batch()
    shape, work = Shape.of(tiny_learner.tiny_llama()), Work.of(batch)
    without_attention = Work(work.tokens, work.action_tokens, 0)
    with Executed() as executed:
        bench.learner.update(batch)
    needed = sum(flops.update(shape, without_attention, bench.learner.recipe, 4).values())
    assert executed.flops["products"] == needed + flops.head(shape, work)
    attention = sum(flops.update(shape, work, bench.learner.recipe, 4).values()) - needed
    assert executed.flops["attention"] > attention


@pytest.fixture
def make_bench():
    return tiny_learner.make_bench
