"""A value model that is a head on the frozen base's states: what it learns, and that the base is asked once for all who read it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from tiny_learner import Bench, make_bench, moved

from online_sao.algorithm.recipes import calibrated_critic_advantages
from online_sao.learner import base_states
from online_sao.learner.learner import UpdateCancelledError
from online_sao.learner.ranks import Ranks
from online_sao.learner.threads import Threads


def a_bench(**numbers: Any) -> Bench:
    return make_bench(**{"value_adapter": "none", "anchor_coefficient": 0.1, **numbers})


def passes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The adapters that forward passes are made under from now on."""
    made: list[str | None] = []
    hidden = bench.learner._backbone.hidden

    def spy(adapter: Any, *inputs: Any) -> torch.Tensor:
        made.append(adapter)
        return hidden(adapter, *inputs)

    monkeypatch.setattr(bench.learner._backbone, "hidden", spy)
    return made


def test_a_value_is_the_head_of_the_bases_state() -> None:
    bench = a_bench(value_updates=3)
    bench.learner.update(bench.batch())
    (row,) = bench.batch(first_id=20).microbatches
    inputs = (row.input_ids, row.position_ids, row.segment_ids)
    weight, bias = bench.value()["value_head.weight"], bench.value()["value_head.bias"]
    with torch.no_grad():
        by_hand = bench.learner._backbone.hidden(None, *inputs)[row.state_positions] @ weight[0] + bias
        assert float(by_hand.abs().max()) > 0
        torch.testing.assert_close(bench.learner.value.values(*inputs, row.state_positions), by_hand, atol=1e-6, rtol=0)


def test_its_updates_move_the_head_alone_and_fit_the_targets() -> None:
    bench = a_bench(value_updates=50, value_learning_rate=3e-2)
    assert set(bench.value()) == {"value_head.weight", "value_head.bias"}
    frozen = {name: weight.detach().clone() for name, weight in bench.learner._backbone.module.named_parameters()}
    batch = bench.batch()
    rows = tuple(dataclasses.replace(row, behavior_logprobs=row.behavior_logprobs + 1e3) for row in batch.microbatches)
    masked = dataclasses.replace(batch, microbatches=rows)
    first, second = (bench.learner.update(masked).metrics["value/loss"] for _ in range(2))
    assert second < 0.5 * first
    for name, weight in bench.learner._backbone.module.named_parameters():
        assert torch.equal(weight, frozen[name]), name


@pytest.mark.parametrize("ranks", [Ranks(), Threads(2)])
def test_an_update_asks_the_base_once_a_microbatch_and_keeps_nothing(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = a_bench(ranks=ranks, fresh_values=True, value_updates=3)
    made = passes(bench, monkeypatch)
    batch = bench.batch(max_tokens=12)
    made.clear()
    bench.learner.update(batch)
    count = len(batch.microbatches)
    assert count > 2
    assert sorted(made, key=str) == [None] * count + ["policy"] * count
    assert not bench.learner._base._states


def test_pretraining_asks_once_for_all_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = a_bench()
    logged = [bench.sample(number, reward=float(number % 3) - 1) for number in range(10)]
    made = passes(bench, monkeypatch)
    report = bench.learner.pretrain_value(logged, max_tokens=30, max_epochs=3)
    once = len(made)
    made.clear()
    bench.learner.pretrain_value(logged, max_tokens=30, max_epochs=1)
    assert len(made) == once
    assert report.trained == 8
    assert not bench.learner._base._states


def test_a_cancelled_update_keeps_nothing_either() -> None:
    bench, answers = a_bench(), iter([False] * 5 + [True])
    with pytest.raises(UpdateCancelledError):
        bench.learner.update(bench.batch(max_tokens=12), cancelled=lambda: next(answers))
    assert not bench.learner._base._states


@pytest.mark.parametrize("numbers", [{}, {"observation_values": True}, {"credit": calibrated_critic_advantages, "fresh_values": False}])
def test_what_there_is_no_room_for_is_computed_again_to_the_same_end(numbers: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def end() -> dict[str, torch.Tensor]:
        bench = a_bench(**numbers)
        for first in (0, 20):
            bench.learner.update(bench.conversations(first_id=first))
        return bench.policy() | bench.value()

    kept = end()
    monkeypatch.setattr(base_states, "MOST_KEPT_BYTES", 0)
    assert not moved(kept, end())


def test_where_values_have_an_adapter_or_nobody_looks_at_them_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for bench in (make_bench(), a_bench(uses_values=False, value_updates=0)):
        made = passes(bench, monkeypatch)
        (row,) = bench.batch().microbatches
        made.clear()
        with bench.learner._base.kept():
            bench.learner._base.of(row)
            bench.learner._base.of(row)
        assert made == [None, None]
