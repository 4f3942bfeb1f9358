"""The benchmark itself, a few updates long: real rollouts, learner, files and report; the same again from the same seed."""

import re
import shlex
from pathlib import Path

import pytest

from online_sao.benchmarks.stability.claims import RECIPES
from online_sao.benchmarks.stability.command import LAB, _arguments
from online_sao.benchmarks.stability.tasks import TASKS
from online_sao.benchmarks.stability.training import RunOptions, run
from online_sao.benchmarks.tiny_policy import warm_start
from online_sao.benchmarks.tiny_policy.warm_start import WarmStart

SMALL = WarmStart(hidden_size=32, intermediate_size=64, layers=2, heads=2, max_steps=20, steps_between_looks=20, looked_at=16)


def a_short_run(tmp_path, **changes):
    options = RunOptions(
        **{"task": "lookup", "recipe": "sao", "lag": 1, "seed": 1, "updates": 4, "batch_size": 8, "held_out": 16, "mixed": 1.0, **changes}
    )
    base, _ = warm_start.obtain(TASKS[options.task], options.seed, options.warm_start, tmp_path, lambda step, most, right: None)
    return run(options, base, lambda update, right: None)


def test_equal_options_give_equal_results_and_another_seed_gives_others(tmp_path):
    first, again = a_short_run(tmp_path, warm_start=SMALL), a_short_run(tmp_path, warm_start=SMALL)
    assert {**first, "seconds": None} == {**again, "seconds": None}
    assert a_short_run(tmp_path, warm_start=SMALL, seed=2)["series"] != first["series"]


def test_on_policy_nothing_is_masked_and_every_ratio_is_one(tmp_path):
    series = a_short_run(tmp_path, warm_start=SMALL, lag=0)["series"]
    assert not any(series["policy/masked_fraction"])
    assert max(series["policy/abs_log_ratio_unmasked"]) < 1e-4
    assert not any(series["data/policy_lag_max"])
    assert not any(series["data/mixed_fraction"])


def test_rollouts_are_as_old_as_asked_for_and_meet_swaps(tmp_path):
    series = a_short_run(tmp_path, warm_start=SMALL, lag=2, policy_learning_rate=1e-2)["series"]
    assert series["data/policy_lag_max"] == [0, 1, 2, 2]
    assert max(series["data/mixed_fraction"]) > 0
    assert series["policy/abs_log_ratio_unmasked"][0] < 1e-4
    assert min(series["policy/abs_log_ratio_unmasked"][1:]) > 1e-3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"lag": 33}, "max_policy_lag"), ({"group_size": 3}, "groups of 3"), ({"recipe": "nothing"}, "no recipe"), ({"updates": 0}, "updates")],
)
def test_what_cannot_be_run_is_said_before_anything_is(wrong, said):
    with pytest.raises(ValueError, match=said):
        RunOptions(**{"task": "sort", "recipe": "sao", "lag": 0, "seed": 1, **wrong})


DOCS = Path(__file__).parents[3] / "docs"


def test_the_documented_commands_and_the_defaults_can_be_run():
    usual, *others = re.findall(r"^online-sao bench stability (.*)$", (DOCS / "benchmarks.md").read_text(), re.MULTILINE)
    assert len(_arguments(shlex.split(usual)).planned) == 2 * 4 * 4 * 3
    assert {options.recipe for options in _arguments([]).planned} == set(RECIPES)
    documented: dict[str, set[str]] = {}
    for arguments in (_arguments(shlex.split(command)) for command in others):
        files = {LAB.run_file(arguments.out, options).name for options in arguments.planned}
        documented[arguments.out.name] = documented.get(arguments.out.name, set()) | files
    for out, folder in (("stability", "step-1e-3"), ("stability-2e-3", "step-2e-3")):  # what the figures on the page are made of
        assert {path.name for path in (DOCS / "data" / "stability" / folder / "runs").iterdir()} == documented[out]
