"""A tiny policy: logprobs are the model's own, observations are not trained on, a swap shows at its token and not before; its warm starts."""

from random import Random

import pytest
import torch
from transformers import LlamaForCausalLM

from online_sao.benchmarks.stability.tasks import TASKS, number
from online_sao.benchmarks.tiny_policy import warm_start
from online_sao.benchmarks.tiny_policy.sampling import Sampler, Swap
from online_sao.benchmarks.tiny_policy.warm_start import CooledWarmStart, WarmStart
from online_sao.models.adapter import Adapter, adapted_matrices

SMALL = WarmStart(hidden_size=32, intermediate_size=64, layers=2, heads=2, max_steps=60, steps_between_looks=60, learning_rate=3e-3, looked_at=16)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Taught the form of a lookup, and no more: random tokens would never ask."""
    folder, _ = warm_start.obtain(TASKS["lookup"], 1, SMALL, tmp_path_factory.mktemp("warm"), lambda step, most, right: None)
    return folder


@pytest.fixture
def model(base) -> LlamaForCausalLM:
    return warm_start.load(TASKS["lookup"], base, SMALL)


def an_adapter(model, seed):
    generator = torch.Generator().manual_seed(seed)
    return Adapter(
        {
            name: (0.3 * torch.randn(2, weight.shape[1], generator=generator), 0.3 * torch.randn(weight.shape[0], 2, generator=generator))
            for name, weight in adapted_matrices(model).items()
        },
        1.0,
    )


def rollout(model, adapters, version, **options):
    random = Random(5)
    questions = [TASKS["lookup"].instance(random) for _ in range(24)]
    return Sampler(model).rollout(TASKS["lookup"], questions, adapters, version, torch.Generator().manual_seed(3), **options)


@torch.no_grad()
def recomputed(model, trajectory):
    logits = model(input_ids=torch.tensor([trajectory.token_ids])).logits[0, :-1]
    ids = torch.tensor(trajectory.token_ids[1:])
    return torch.log_softmax(logits, -1).gather(1, ids[:, None]).squeeze(1)


def test_logprobs_are_those_of_the_version_that_sampled(base, model):
    adapters = {0: None, 7: an_adapter(model, 1)}
    served = warm_start.load(TASKS["lookup"], base, SMALL)
    sampled = rollout(served, adapters, 7)  # leaves the adapter merged into it
    for trajectory in sampled:
        mask = torch.tensor(trajectory.loss_mask[1:])
        expected, found = recomputed(served, trajectory)[mask], torch.tensor(trajectory.behavior_logprobs[1:])[mask]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        assert (recomputed(model, trajectory)[mask] - found).abs().max() > 1e-3  # the base's are others
        assert {v for v, m in zip(trajectory.policy_versions, trajectory.loss_mask, strict=True) if m} == {7}


def test_observations_stand_between_actions_and_only_the_last_token_is_rewarded(model):
    sampled = rollout(model, {0: None}, 0, group_ids=[number // 4 for number in range(24)])
    assert [trajectory.group_id for trajectory in sampled] == [number // 4 for number in range(24)]
    several = 0
    for trajectory in sampled:
        observed = [token for token, mask in zip(trajectory.token_ids[3:], trajectory.loss_mask[3:], strict=True) if not mask]
        assert all(token >= number(0) for token in observed)
        several += bool(observed)
        assert trajectory.loss_mask[-1]
        assert trajectory.rewards[-1] in (1.0, -1.0)
        assert not any(trajectory.rewards[:-1])
    assert several > 3


def test_a_swap_changes_version_and_distribution_from_its_token_on_and_nothing_before(model):
    adapters = {4: None, 5: an_adapter(model, 2)}
    plain = rollout(model, adapters, 4)
    swapped = rollout(model, adapters, 4, swap=Swap(2, 5))
    prompt = 3
    for before, after in zip(plain, swapped, strict=True):
        assert after.token_ids[: prompt + 2] == before.token_ids[: prompt + 2]
        assert after.behavior_logprobs[: prompt + 2] == before.behavior_logprobs[: prompt + 2]
        of_action = [(place, v) for place, (v, m) in enumerate(zip(after.policy_versions, after.loss_mask, strict=True)) if m]
        assert all(v == (4 if place < prompt + 2 else 5) for place, v in of_action)
        assert len(after.token_ids) == prompt + 1 or after.oldest_policy_version == 4
    both = [(b, a) for b, a in zip(plain, swapped, strict=True) if min(len(b.token_ids), len(a.token_ids)) > prompt + 2]
    third = [(b.behavior_logprobs[prompt + 2], a.behavior_logprobs[prompt + 2]) for b, a in both]
    assert third
    assert all(one != other for one, other in third)


def test_the_same_generator_gives_the_same_rollouts(model):
    assert rollout(model, {0: None}, 0) == rollout(model, {0: None}, 0)


def test_a_warm_start_is_made_once_and_again_when_something_of_it_changes(base, tmp_path):
    def unwanted(step, most, right):
        raise AssertionError("it was made again")

    folder, about = warm_start.obtain(TASKS["lookup"], 1, SMALL, base.parent, unwanted)
    assert folder == base
    assert about["steps"] == 60
    looks = []
    other = WarmStart(**{**about["numbers"], "max_steps": 1, "steps_between_looks": 1})
    changed, _ = warm_start.obtain(TASKS["lookup"], 1, other, base.parent, lambda *look: looks.append(look))
    assert changed != base
    assert len(looks) == 1


def test_a_cooled_warm_start_ends_at_a_rate_of_nothing():
    cooled = CooledWarmStart(learning_rate=1e-3, max_steps=400, cooling_steps=150)
    assert [cooled.rate(step) for step in (0, 250, 325, 400)] == pytest.approx([1e-3, 1e-3, 5e-4, 0])
    assert WarmStart(learning_rate=1e-3, max_steps=400).rate(399) == 1e-3
