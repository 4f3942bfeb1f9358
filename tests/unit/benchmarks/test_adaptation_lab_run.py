"""The adaptation lab itself, a few updates long: real answers, learner, files and report; the same again from the same seed."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from online_sao.algorithm.recipes import CreditInputs
from online_sao.benchmarks import trl_grpo
from online_sao.benchmarks.adaptation_lab.answers import ANSWERS, user_of
from online_sao.benchmarks.adaptation_lab.command import LAB, _arguments
from online_sao.benchmarks.adaptation_lab.kto import _balanced
from online_sao.benchmarks.adaptation_lab.options import LIVE, BundledOptions, RunOptions
from online_sao.benchmarks.adaptation_lab.oracle import OracleStudent
from online_sao.benchmarks.adaptation_lab.students import RecipeStudent
from online_sao.benchmarks.adaptation_lab.training import Play, Record, interactions_of, run
from online_sao.benchmarks.tiny_policy import warm_start
from online_sao.benchmarks.tiny_policy.warm_start import WarmStart

SMALL = WarmStart(hidden_size=32, intermediate_size=64, layers=2, heads=2, max_steps=50, steps_between_looks=50, looked_at=16, learning_rate=3e-3)
"""Made in a second; its answers are in some style, and never right."""


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return warm_start.obtain(ANSWERS, 1, SMALL, tmp_path_factory.mktemp("warm"), lambda step, most, right: None)[0]


def options(**changes):
    return RunOptions(
        **{"recipe": "sao", "population": "mixed", "seed": 1, "scale": "dense", "phase_interactions": 16, "warm_start": SMALL, **changes}
    )


def test_equal_options_give_equal_results_and_every_interaction_is_used_once(base):
    seen = []
    first = run(options(), base, lambda done, score: seen.append(done))
    again = run(options(), base, lambda done, score: None)
    assert {**first, "seconds": None} == {**again, "seconds": None}
    assert seen[-1] == interactions_of(options()) == 64
    assert len(first["scores"]) == len(first["frozen"]) == 48
    assert len(first["anchor_only"]) == 16
    assert {len(values) for values in first["series"].values()} == {6}
    assert first["series"]["data/trajectories"] == [8.0] * 6
    assert len(set(first["style"])) > 1
    other = run(options(seed=2), base, lambda done, score: None)
    assert other["style"] != first["style"]


def test_a_recipe_may_have_numbers_of_its_own():
    chosen = options(recipe="sao/paper:adam_beta1=0.2:value_updates=3:uses_values=0").build_recipe()
    assert (chosen.preset, chosen.adam_beta1, chosen.value_updates, chosen.uses_values) == ("paper", 0.2, 3, False)
    assert chosen.policy_learning_rate == LIVE.policy_learning_rate
    assert LAB.run_file(Path("out"), options(recipe="sao/paper:adam_beta1=0.2")).name == "mixed-unnamed-dense-sao-paper-adam_beta1-0.2-seed1.json"
    for wrong, told in (("sao:speed=1", "changes no number"), ("sao:batch_size=4", "changes no number"), ("sao:value_updates=1.5", "a whole number")):
        with pytest.raises(ValueError, match=told):
            options(recipe=wrong)


def test_a_neutral_branch_meets_the_same_and_learns_from_nothing(base):
    """With steps too small to matter both branches are answered in the same way; their judgement is true in both, the reward 0 in one."""
    chosen = options(recipe="running-mean", anchor=0.0, policy_learning_rate=1e-12)
    world = chosen.world(base)
    play = Play(chosen, world)
    student = RecipeStudent(world, chosen.build_recipe(), lora_rank=4, lag=0, seed=1)
    real, neutral = Record(), Record()
    branch = student.snapshot()
    play.on(student, range(32, 48), real, lambda done, score: None)
    student.restore(branch)
    play.on(student, range(32, 48), neutral, lambda done, score: None, neutral=True)
    assert len({found.style for found in real.judgements}) > 1
    assert neutral.judgements == real.judgements
    assert real.series["data/reward_mean"] == [-1.0, -1.0]
    assert neutral.series["data/reward_mean"] == neutral.series["policy/advantage_abs_mean"] == [0.0, 0.0]


def test_an_oracle_takes_what_a_prompt_gets_on_average_from_what_an_answer_got(base):
    chosen = options(recipe="oracle", population="raters", anchor=0.0)
    assert chosen.build_recipe() == options(recipe="running-mean", anchor=0.0).build_recipe()
    world = chosen.world(base)
    student = OracleStudent(world, chosen.build_recipe(), lora_rank=4, lag=0, seed=1)
    harsh = [found for found in map(world.instance, range(16)) if user_of(found) == 3]
    trajectories = world.rollout(harsh, student.adapters, 0, torch.Generator().manual_seed(1))
    lesson = student.learn(trajectories, harsh)
    assert student._expected == [-1.0] * len(harsh)
    assert lesson.metrics["policy/advantage_abs_mean"] == lesson.metrics["policy/grad_norm"] == 0.0
    student._expected = [0.5, -1.0]
    ends = CreditInputs(torch.tensor([0.0, 0.0, 1.0]), torch.zeros(3), torch.tensor([False, True, True]))
    one, other = student._credit(chosen.build_recipe(), [ends, ends])
    assert (one[2].item(), other[2].item()) == (0.5, 2.0)


@pytest.mark.parametrize("lag", [0, 2])
def test_what_answers_is_as_far_behind_as_asked_for(base, lag):
    world = options().world(base)
    student = RecipeStudent(world, options().build_recipe(), lora_rank=4, lag=lag, seed=1)
    answered_by = []
    for update in range(4):
        answered_by.append(student.answering())
        branch = student.snapshot()
        instances = [world.instance(8 * update + number) for number in range(8)]
        trajectories = world.rollout(instances, student.adapters, student.answering(), torch.Generator().manual_seed(update))
        assert {trajectory.oldest_policy_version for trajectory in trajectories} == {answered_by[-1]}
        lesson = student.learn(trajectories, instances)
        student.restore(branch)
        assert student.answering() == answered_by[-1]
        assert {**student.learn(trajectories, instances).metrics, "policy/seconds": 0, "value/seconds": 0} == {
            **lesson.metrics,
            "policy/seconds": 0,
            "value/seconds": 0,
        }
    assert answered_by == ([0, 1, 2, 3] if lag == 0 else [0, 0, 0, 1])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"lag": 33}, "max_policy_lag"),
        ({"recipe": "nothing"}, "no recipe"),
        ({"recipe": "ema/paper"}, "no recipe ema/paper"),
        ({"recipe": "grpo"}, "every prompt is answered once"),
        ({"phase_interactions": 20}, "multiple of the batch"),
        ({"kto_every": 12}, "multiple of the batch"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_is(wrong, said):
    with pytest.raises(ValueError, match=said):
        options(**wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"population": "raters"}, "the tiny model's alone"),
        ({"recipe": "kto"}, "the tiny model alone"),
        ({"schedule": "plain-words:12,ornate-words:16"}, "plain-words:12 must be a multiple of the batch of 8"),
        ({"schedule": "nothing:16"}, "nothing"),
        ({"schedule": "plain-words:16"}, "two preferences at least"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"schedule": "past-tense:16", "population": "mixed"}, "has no opposite"),
        ({"max_tokens": 0}, "at least 1"),
        ({"recipe": "grpo"}, "every prompt is answered once"),
    ],
)
def test_what_a_chat_model_cannot_do_is_said_too(wrong, said):
    with pytest.raises(ValueError, match=said):
        BundledOptions(**{"recipe": "sao", "population": "uniform", "seed": 1, **wrong})


def test_a_preset_brings_its_pieces_and_everybody_the_same_rates():
    paper, live = options(recipe="sao/paper").build_recipe(), options(recipe="sao").build_recipe()
    assert (paper.preset, paper.anchor_coefficient, paper.fresh_values) == ("paper", 0, True)
    assert (live.preset, live.anchor_coefficient, live.fresh_values) == ("live", LIVE.anchor_coefficient, False)
    rates = [(r.policy_learning_rate, r.value_learning_rate, r.batch_size) for r in (paper, live, options(recipe="batch-mean").build_recipe())]
    assert rates == [(LIVE.policy_learning_rate, LIVE.value_learning_rate, 8)] * 3
    assert options(recipe="sao/paper", anchor=0.2).build_recipe().anchor_coefficient == 0.2


def test_the_documented_commands_can_be_run_and_kto_only_with_trl(capsys, monkeypatch):
    tiny, chat = re.findall(
        r"^online-sao bench adaptation-lab (.*--out .*)$", (Path(__file__).parents[3] / "docs" / "benchmarks.md").read_text(), re.MULTILINE
    )
    assert len(_arguments(shlex.split(tiny)).planned) == 5 * 3 * 5
    kept = Path(__file__).parents[3] / "docs" / "data" / "adaptation-lab" / "chat"
    assert sorted((kept / "runs").iterdir()) == sorted(LAB.run_file(kept, run) for run in _arguments(shlex.split(chat)).planned)
    defaults = _arguments(["--model", "bundled", "--seeds", "1", "--max-tokens", "8"]).planned
    assert {(run.population, run.max_tokens) for run in defaults} == {("uniform", 8), ("mixed", 8)}
    for wrong, said in (
        (["--model", "bundled", "--kto-every", "8"], "has no --kto-every"),
        (["--model", "bundled", "--warm-start-steps", "8"], "has no --warm-start-steps"),
        (["--schedule", "plain-words:8,ornate-words:8"], "has no --schedule"),
        (["--no-anchor-only"], "has no --no-anchor-only"),
        (["--model", "/nowhere"], "--model: "),
    ):
        with pytest.raises(SystemExit):
            _arguments(wrong)
        assert said in capsys.readouterr().err
    monkeypatch.setattr(trl_grpo, "available", lambda: False)
    with pytest.raises(SystemExit):
        _arguments(["--recipes", "kto"])
    assert "online-sao[bench]" in capsys.readouterr().err


def test_uneven_thumbs_are_weighed_as_the_authors_of_kto_advise():
    """From 1 to 4/3: weight · number of the desirable over that of the others."""
    assert _balanced(10, 40)["desirable_weight"] * 10 / 40 == pytest.approx(7 / 6)
    assert 30 / (_balanced(30, 10)["undesirable_weight"] * 10) == pytest.approx(7 / 6)


@pytest.mark.skipif(not trl_grpo.available(), reason="TRL is not installed (extra bench)")
def test_kto_trains_on_the_thumbs_logged_so_far_and_answers_with_what_comes_out(base):
    result = run(options(recipe="kto", kto_every=16, phase_interactions=32, names="named"), base, lambda done, score: None)
    assert result["anchor_only"] is None
    assert len(result["scores"]) == 96
    assert result["series"] == {}
