"""A chat model as a world of the adaptation lab: its answers, their logprobs, their judgement; the tiny random model stands for a real one."""

import pytest
import torch

from online_sao.benchmarks.adaptation_lab.bundled import BundledWorld, find
from online_sao.benchmarks.adaptation_lab.options import BundledOptions
from online_sao.benchmarks.adaptation_lab.training import run
from online_sao.benchmarks.adaptation_lab.world import answer_of
from online_sao.models.adapter import MergedWeights, read_adapter
from online_sao.models.catalog import load_model
from online_sao.simulation.plan import Plan
from tests.fakes.tiny_model import tiny_model, write_random_adapter


def a_world(schedule="plain-words:16,ornate-words:16", *, named=False, population="uniform"):
    return BundledWorld(tiny_model(), Plan(schedule, population=population, seed=1), named=named, max_tokens=6)


def rollout(world, numbers, adapters, version, seed=1):
    return world.rollout([world.instance(number) for number in numbers], adapters, version, torch.Generator().manual_seed(seed))


def test_an_answer_has_the_logprobs_of_the_version_that_gave_it(tmp_path):
    adapter = read_adapter(write_random_adapter(tiny_model(), tmp_path, seed=3))
    model = load_model(tiny_model())
    weights = MergedWeights(model)
    for version in (0, 1):
        found = rollout(a_world(), range(4), {0: None, 1: adapter}, version)
        weights.apply((None, adapter)[version])
        assert len({len(trajectory.token_ids) for trajectory in found}) > 1, "prompts of one length need no padding"
        for trajectory in found:
            ids, first = torch.tensor([trajectory.token_ids]), trajectory.loss_mask.index(True)
            with torch.no_grad():
                plain = torch.log_softmax(model(ids).logits[0, first - 1 : -1], -1).gather(1, ids[0, first:, None]).squeeze(1)
            torch.testing.assert_close(torch.tensor(trajectory.behavior_logprobs[first:]), plain, atol=1e-4, rtol=0)
            assert set(trajectory.policy_versions[first:]) == {version}
            assert 1 <= trajectory.num_action_tokens <= 6


def test_an_answer_ends_where_the_model_ends_it():
    world = a_world()
    first = rollout(world, [0], {0: None}, 0)[0]
    answer = answer_of(first)
    world._renderer.eos_token_ids = (answer[2], *world._renderer.eos_token_ids)
    again = rollout(world, [0], {0: None}, 0)[0]
    assert answer_of(again) == answer[: answer.index(answer[2]) + 1]
    assert not again.truncated
    assert first.truncated


def test_the_random_numbers_are_the_generators_and_nobody_elses():
    state = torch.get_rng_state()
    one, other, same = (rollout(a_world(), range(4), {0: None}, 0, seed) for seed in (1, 2, 1))
    assert one == same != other
    assert torch.equal(torch.get_rng_state(), state)


def test_a_judgement_is_the_phases_and_the_reward_says_the_same():
    world = a_world(population="mixed")
    plan = Plan("plain-words:16,ornate-words:16", population="mixed", seed=1)
    for number in (0, 1, 17):
        instance = world.instance(number)
        (trajectory,) = rollout(world, [number], {0: None}, 0)
        expected = plan.ask(number).score(plan.phases[number // 16], world._renderer.decode(answer_of(trajectory)))
        assert world.judge(instance, trajectory).score == expected
        assert trajectory.reward == pytest.approx(2 * expected - 1)


def test_named_styles_are_told_to_everybody_and_unnamed_ones_to_nobody():
    prompts = [a_world(named=named)._renderer.decode(a_world(named=named).instance(0).prompt) for named in (True, False)]
    assert "plain words, ornate words" in prompts[0]
    assert "plain words" not in prompts[1]


def test_a_run_of_a_chat_model_is_the_same_again_and_has_both_controls():
    model = str(tiny_model())
    assert find(model)[1]["parameters"] > 1e5
    options = BundledOptions(recipe="sao", population="uniform", seed=1, model=model, schedule="plain-words:16,ornate-words:16", max_tokens=4)
    first, again = (run(options, tiny_model(), lambda done, score: None) for _ in range(2))
    assert {**first, "seconds": None} == {**again, "seconds": None}
    assert (len(first["scores"]), len(first["frozen"]), len(first["anchor_only"])) == (32, 32, 16)
    assert first["series"]["data/trajectories"] == [8.0] * 4
