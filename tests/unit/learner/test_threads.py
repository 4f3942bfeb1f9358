"""Microbatches side by side: whoever is first, the same bits come out, and an error or a cancellation of one leaves the others whole."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import torch
from tiny_learner import Bench, make_bench, moved
from torch import nn

from online_sao.learner.learner import UpdateCancelledError
from online_sao.learner.threads import Threads

SECONDS = 20.0


def no_check() -> None:
    """Nobody cancels."""


@pytest.fixture
def trained() -> nn.Parameter:
    return nn.Parameter(torch.zeros(1))


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_gradients_are_added_in_the_order_of_the_microbatches(trained: nn.Parameter, slow: int) -> None:
    # In float32, (1 + 1e8) - 1e8 is 0 and (1e8 - 1e8) + 1 is 1.
    parts = [1.0, 1e8, -1e8]
    threads = Threads(3)

    def work(number: int) -> int:
        if number == slow:
            time.sleep(0.1)
        threads.backward((trained * parts[number]).sum())
        return number

    assert threads.each(3, work, no_check, [trained]) == [0, 1, 2]
    assert trained.grad is not None
    assert trained.grad.item() == 0.0


def test_they_run_at_the_same_time_each_with_its_share_of_the_threads(trained: nn.Parameter) -> None:
    together = threading.Barrier(2)
    before = torch.get_num_threads()

    def work(number: int) -> int:
        together.wait(SECONDS)
        return torch.get_num_threads()

    assert Threads(2).each(4, work, no_check, [trained]) == [1, 1, 1, 1]
    assert Threads(6).each(2, work, no_check, [trained]) == [3, 3]
    assert torch.get_num_threads() == before


def test_one_microbatch_has_all_threads_and_leaves_its_gradient_as_ever(trained: nn.Parameter) -> None:
    threads = Threads(2)

    def work(number: int) -> int:
        threads.backward((trained * 3).sum())
        return threading.get_ident()

    assert threads.each(1, work, no_check, [trained]) == [threading.get_ident()]
    assert trained.grad is not None
    assert trained.grad.item() == 3.0


def test_an_error_in_one_waits_for_the_others_and_is_raised(trained: nn.Parameter) -> None:
    ended = []

    def work(number: int) -> None:
        if number == 0:
            raise ArithmeticError("of the first")
        time.sleep(0.1)
        ended.append(number)

    threads = Threads(2)
    with pytest.raises(ArithmeticError, match="of the first"):
        threads.each(2, work, no_check, [trained])
    assert ended == [1]
    assert threads.each(2, lambda number: number, no_check, [trained]) == [0, 1], "and goes on afterwards"


def test_a_cancelled_update_can_be_taken_back() -> None:
    bench, answers = make_bench(ranks=Threads(2)), iter([False, True])
    batch = bench.batch(max_tokens=12)
    assert len(batch.microbatches) == 4
    before, weights = bench.learner.snapshot(), bench.value()
    with pytest.raises(UpdateCancelledError):
        bench.learner.update(batch, cancelled=lambda: next(answers))
    bench.learner.restore(before)
    assert not moved(weights, bench.value())


def test_an_update_gives_the_same_bits_every_time() -> None:
    def end(bench: Bench) -> dict[str, torch.Tensor]:
        for first in (0, 20):
            bench.learner.update(bench.batch(max_tokens=12, first_id=first))
        return {**bench.policy(), **bench.value()}

    first, second = (end(make_bench(ranks=Threads(2), anchor_coefficient=0.1)) for _ in range(2))
    assert not moved(first, second)


@pytest.mark.parametrize("threads", [2, 3])
def test_an_update_is_that_of_one_microbatch_after_the_other(threads: int) -> None:
    numbers = {"anchor_coefficient": 0.1, "anchor_gain": 30.0, "policy_minibatches": 2}
    alone, together = make_bench(**numbers), make_bench(ranks=Threads(threads), **numbers)
    for first in (0, 20):
        batch = alone.batch(rewards=(1.0, -1.0, 0.5, -0.5, 0.3, -0.2, 0.9), max_tokens=12, first_id=first)
        assert len(batch.microbatches) > 3
        one, several = (bench.learner.update(batch) for bench in (alone, together))
        assert several.masked_fraction == one.masked_fraction
        timeless = {name: value for name, value in one.metrics.items() if not name.endswith("/seconds")}
        assert {name: several.metrics[name] for name in timeless} == pytest.approx(timeless, rel=1e-4, abs=1e-5)
    for name, weight in (alone.policy() | alone.value()).items():
        torch.testing.assert_close((together.policy() | together.value())[name], weight, rtol=1e-4, atol=1e-5)


def test_who_wants_another_adapter_waits_until_the_backward_pass_is_through() -> None:
    learner, inputs = make_bench().learner, (torch.tensor([1, 2]), torch.arange(2), torch.zeros(2, dtype=torch.long), torch.tensor([1]))
    policy, backbone = learner.policy, learner._backbone
    began, ended = threading.Event(), []

    def base() -> None:
        began.set()
        backbone.hidden(None, *inputs[:3])
        ended.append("base")

    def beside(work: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    with policy.active():
        states = policy.states(*inputs)
        other = beside(base)
        assert began.wait(SECONDS)
        same = beside(lambda: (policy.states(*inputs), ended.append("policy")))
        same.join(SECONDS)
        states.sum().backward()  # type: ignore[no-untyped-call]
        assert ended == ["policy"], "who wants the same computes beside it, who wants another waits"
    other.join(SECONDS)
    assert ended == ["policy", "base"]
    assert all(parameter.grad is not None for parameter in policy.parameters().values())
