"""A value model that is linear in the frozen base's states: what it sees, what it learns, and that the base is asked once for all who read it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_learner import Bench, make_bench, moved

from online_sao.algorithm.recipes import calibrated_critic_advantages, critic_advantages
from online_sao.errors import ConfigurationError
from online_sao.learner import base_states
from online_sao.learner.learner import UpdateCancelledError
from online_sao.learner.ranks import Ranks
from online_sao.learner.threads import Threads
from online_sao.models import pooled
from online_sao.models.backbone import BaseViews


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


def remembered(bench: Bench) -> dict[str, torch.Tensor]:
    return {name: part.clone() for name, part in bench.learner.value.parameters().items()}


@pytest.mark.parametrize("kind", ["batch", "conversations"])
def test_a_feature_is_the_last_state_or_a_mean_over_the_answer_so_far(kind: str) -> None:
    """By hand, of trajectories that stand in a row with others: neither the prompt's states nor an observation's are in a mean, and no token is in
    its own features."""
    bench = a_bench()
    batch = getattr(bench, kind)(max_tokens=200)
    assert len(batch.microbatches) == 1
    features = bench.learner._value_trainer._features(batch, lambda: None)
    for trajectory, found in zip(batch.trajectories, features, strict=True):
        actions = [place for place, action in enumerate(trajectory.loss_mask) if action]
        ids = torch.tensor(trajectory.token_ids)
        with torch.no_grad():
            alone = bench.learner._backbone.base_views(ids, torch.arange(len(ids)), torch.ones_like(ids))
        assert len(found) == trajectory.num_action_tokens
        width = found.shape[1] // 3
        for number, row in enumerate(found):
            torch.testing.assert_close(row[:width], alone.final[actions[number] - 1], atol=1e-5, rtol=0)
            for part, states in ((row[width : 2 * width], alone.embedded), (row[2 * width :], alone.middle)):
                expected = states[actions[:number]].mean(0) if number else torch.zeros(width)
                torch.testing.assert_close(part, expected, atol=1e-5, rtol=0)


def test_views_are_of_the_base_two_thirds_of_the_way_up() -> None:
    bench = a_bench()
    for number in range(2):
        bench.learner.update(bench.batch(first_id=10 * number))  # a policy that has moved is not what is seen
    ids = torch.tensor(bench.sample(0).token_ids)
    backbone = bench.learner._backbone
    views = backbone.base_views(ids, torch.arange(len(ids)), torch.ones_like(ids))
    with torch.no_grad(), backbone.under(None):
        output = backbone._causal_model.base_model(input_ids=ids[None], output_hidden_states=True, use_cache=False)
    torch.testing.assert_close(views.embedded, output.hidden_states[0][0])
    torch.testing.assert_close(views.middle, output.hidden_states[1][0], atol=1e-5, rtol=0)
    torch.testing.assert_close(views.final, output.last_hidden_state[0], atol=1e-5, rtol=0)


def test_a_wide_model_is_seen_through_projections_that_are_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooled, "MOST_FEATURES", 24)
    one, other = (pooled.Pooled(16) for _ in range(2))
    views = BaseViews(*(torch.randn(5, 16, generator=torch.Generator().manual_seed(number)) for number in range(3)))
    assert one.size == 24
    own = torch.tensor([False, True, True, False, True])
    assert one.of(views, own).shape == (5, 24)
    assert torch.equal(one.of(views, own), other.of(views, own))
    assert pooled.Pooled(8)._projections == ()


def test_what_is_not_finite_is_said_and_not_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = a_bench()
    bench.learner.update(bench.batch())
    before = remembered(bench)
    of = bench.learner.value.features.of
    monkeypatch.setattr(bench.learner.value.features, "of", lambda views, own: of(views, own) * float("nan"))
    report = bench.learner.update(bench.batch(first_id=20))
    assert report.problem == "the value model's states or its fit are not finite"
    assert not moved(before, remembered(bench))


def test_a_state_made_of_other_parts_is_refused_before_anything_is_taken(tmp_path: Path) -> None:
    bench = a_bench()
    bench.learner.save(tmp_path)
    save_file({"value_head.weight": torch.zeros(1, 32), "value_head.bias": torch.zeros(1)}, tmp_path / "value.safetensors")
    bench.learner.update(bench.batch())
    before = bench.policy() | remembered(bench)
    for load in (bench.learner.load, bench.learner.load_value):
        with pytest.raises(ConfigurationError, match=r"of another release.*Set learning\.recipe"):
            load(tmp_path)
    assert not moved(before, bench.policy() | remembered(bench))


def test_an_update_moves_no_weight_but_the_policys_and_fits_what_it_met() -> None:
    bench = a_bench(value_ridge=1e-3)
    frozen = {name: weight.detach().clone() for name, weight in bench.learner._backbone.module.named_parameters()}
    batch = bench.batch()
    rows = tuple(dataclasses.replace(row, behavior_logprobs=row.behavior_logprobs + 1e3) for row in batch.microbatches)
    masked = dataclasses.replace(batch, microbatches=rows)
    first, second = (bench.learner.update(masked).metrics for _ in range(2))
    assert first["value/mean"] == 0.0
    assert second["value/loss"] < 0.05 * first["value/loss"]
    assert first["value/updates"] == 1
    for name, weight in bench.learner._backbone.module.named_parameters():
        assert torch.equal(weight, frozen[name]), name


def test_its_credit_looks_at_values_from_before_or_after_as_the_recipe_says() -> None:
    means = {}
    for fresh in (False, True):
        seen: list[Any] = []

        def spy(recipe: Any, trajectories: Any, history: Any, seen: list[Any] = seen) -> Any:
            seen.append([trajectory.values for trajectory in trajectories])
            return critic_advantages(recipe, trajectories, history)

        bench = a_bench(fresh_values=fresh, credit=spy)
        bench.learner.update(bench.batch())
        means[fresh] = float(torch.cat(seen[0]).abs().mean())
    assert means[False] == 0.0 < means[True]


def test_older_trajectories_weigh_less_by_the_recipes_half_life() -> None:
    bench = a_bench(value_half_life=4.0)
    for number in range(2):
        bench.learner.update(bench.batch(first_id=10 * number))
    count = len(bench.batch().trajectories)
    assert float(remembered(bench)["weight"]) == pytest.approx(count * (1 + 0.5 ** (count / 4.0)))


def test_it_goes_on_exactly_from_a_saved_state(tmp_path: Path) -> None:
    bench, other = a_bench(), a_bench()
    bench.learner.update(bench.batch())
    bench.learner.save(tmp_path)
    other.learner.load(tmp_path)
    ends = []
    for each in (bench, other):
        each.learner.update(each.batch(first_id=20))
        ends.append(each.policy() | remembered(each))
    assert not moved(*ends)
    bench.learner.reset()
    assert not any(part.any() for part in remembered(bench).values())


@pytest.mark.parametrize("ranks", [Ranks(), Threads(2)])
def test_an_update_asks_the_base_once_a_microbatch_and_keeps_nothing(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = a_bench(ranks=ranks, fresh_values=True)
    made = passes(bench, monkeypatch)
    batch = bench.batch(max_tokens=12)
    made.clear()
    bench.learner.update(batch)
    count = len(batch.microbatches)
    assert count > 2
    assert sorted(made, key=str) == [None] * count + ["policy"] * count
    assert not bench.learner._base._known


def test_pretraining_meets_each_once_and_is_undone_where_it_explains_no_more() -> None:
    bench = a_bench(value_half_life=1.0)
    teachable = [bench.sample(number % 3, reward=float(number % 3) - 1) for number in range(40)]
    report = bench.learner.pretrain_value(teachable, max_tokens=30)
    assert (report.trained, report.held_out, report.epochs) == (32, 8, 1)
    assert report.explained_variance_after > 0.9
    assert float(remembered(bench)["weight"]) == pytest.approx(32.0)  # none has aged
    assert not bench.learner.value_is_untrained
    before = remembered(bench)
    misleading = [bench.sample(number % 3, reward=1 - float(number % 3)) for number in range(10)]
    worse = bench.learner.pretrain_value(misleading[:5] + teachable[5:10], max_tokens=30, seed=3)
    assert worse.epochs == 0
    assert not moved(before, remembered(bench))
    assert not bench.learner._base._known


def test_a_cancelled_update_keeps_nothing_either() -> None:
    bench, answers = a_bench(), iter([False] * 5 + [True])
    with pytest.raises(UpdateCancelledError):
        bench.learner.update(bench.batch(max_tokens=12), cancelled=lambda: next(answers))
    assert not bench.learner._base._known


@pytest.mark.parametrize("numbers", [{}, {"credit": calibrated_critic_advantages, "fresh_values": False}])
def test_what_there_is_no_room_for_is_computed_again_to_the_same_end(numbers: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def end() -> dict[str, torch.Tensor]:
        bench = a_bench(**numbers)
        for first in (0, 20):
            bench.learner.update(bench.conversations(first_id=first))
        return bench.policy() | remembered(bench)

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
