"""Whole runs over HTTP against the stand-in: what is measured, counted and refused."""

import json

import pytest
from rich.console import Console

from online_sao.errors import ConfigurationError
from online_sao.simulation.display import RichDisplay, print_summary
from online_sao.simulation.prompts import HELD_OUT, training_prompt
from online_sao.simulation.run import SimulationOptions, simulate


async def run(stand_in, **options):
    with RichDisplay(Console(quiet=True)) as display:
        return await simulate(SimulationOptions(url=stand_in.url, **options), display)


async def test_a_run_measures_against_the_frozen_control_on_the_same_prompts(stand_in):
    result = await run(stand_in, users=4, scores=40, window=16, max_backlog=8)
    assert result["control"] == {"policy_versions": [0], "mean": 0.0, "scores": [0.0] * 16}
    assert result["difference"] == result["last_window_mean"] > 0.5
    assert result["held_out"]["before"]["mean"] == 0.0
    assert result["held_out"]["after"]["mean"] == 1.0
    assert result["held_out"]["after"]["policy_versions"] == [5]
    assert [window["mean"] is not None for window in result["windows"]] == [True] * 3
    assert result["receipts"] == {"live": 40}
    assert result["http"]["non_2xx"] == 0
    interactions = result["interactions"]
    assert [i["prompt"] for i in interactions] == [training_prompt(0, index) for index in range(40)]
    assert [i["streamed"] for i in interactions] == [False, True] * 20
    assert all((i["first_token_seconds"] is not None) == i["streamed"] for i in interactions)
    assert all(i["policy_lag"] == i["receipt"]["update"] - 1 - i["policy_version"] >= 0 for i in interactions)
    # control and held-out answers are not stored, so nobody can score them
    assert len(stand_in.stored) == 40
    assert stand_in.chats == 40 + 16 + 2 * len(HELD_OUT)
    assert stand_in.most_queued <= 8
    json.dumps(result)
    output = Console(record=True, width=120, quiet=True)
    print_summary(output, result)


async def test_every_failed_call_is_counted_with_its_body_and_the_run_goes_on(stand_in):
    stand_in.fail_every = 10
    result = await run(stand_in, users=2, scores=30, control=False, settle_seconds=0.0)
    assert result["http"]["non_2xx"] == 3
    assert {(f["method"], f["path"], f["status"]) for f in result["http"]["failures"]} == {("POST", "/v1/chat/completions", 503)}
    assert all("engine broke" in f["body"] for f in result["http"]["failures"])
    assert len(result["interactions"]) == 27
    assert result["control"] is None
    assert result["difference"] is None


async def test_a_control_that_is_not_frozen_is_refused(stand_in):
    stand_in.change_version_on_chat = True
    with pytest.raises(ConfigurationError, match="The policy changed while the frozen control was sampled"):
        await run(stand_in, users=2, scores=4, window=4)


async def test_users_are_told_apart(stand_in):
    await run(stand_in, users=3, scores=24, control=False)
    assert stand_in.users == {"user-0", "user-1", "user-2"}
