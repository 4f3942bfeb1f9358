"""Whole runs over HTTP against the stand-in: what is measured, counted and refused."""

import io
import json

import pytest
from rich.console import Console

from online_sao.errors import ConfigurationError
from online_sao.simulation import run as run_module
from online_sao.simulation.display import RichDisplay, print_summary
from online_sao.simulation.plan import Plan
from online_sao.simulation.prompts import HELD_OUT, training_prompt
from online_sao.simulation.run import SimulationOptions, simulate


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(run_module, "QUIET_SECONDS", 0.0)


async def run(stand_in, **options):
    with RichDisplay(Console(quiet=True)) as display:
        return await simulate(SimulationOptions(url=stand_in.url, **options), display)


async def test_a_run_measures_against_the_frozen_control_on_the_same_prompts(stand_in):
    result = await run(stand_in, users=4, schedule="first-person:40", scale="thumbs", window=16, max_backlog=8)
    control, (phase,) = result["controls"]["1"], result["phases"]
    assert (control["policy_versions"], control["mean"], control["scores"]) == ([0], 0.0, [0.0] * 16)
    assert phase["control_mean"] == 0.0
    assert phase["difference"] == phase["last_window_mean"] > 0.5
    assert phase["held_out"] == {"before": 0.0, "after": 1.0}
    assert [(w["first"], w["last"]) for w in phase["windows"]] == [(0, 15), (16, 31), (32, 39)]
    assert result["receipts"] == {"live": 40}
    assert result["http"]["non_2xx"] == 0
    assert result["kl_base_max"] == 0.05
    assert [update["number"] for update in result["updates"]] == [1, 2, 3, 4, 5]
    interactions = result["interactions"]
    assert [i["prompt"] for i in interactions] == [training_prompt(0, index) for index in range(40)]
    assert [i["streamed"] for i in interactions] == [False, True] * 20
    assert all((i["first_token_seconds"] is not None) == i["streamed"] for i in interactions)
    assert all(i["policy_lag"] == i["receipt"]["update"] - 1 - i["policy_version"] >= 0 for i in interactions)
    assert all(i["sent"] == i["score"] == i["receipt"]["value"] for i in interactions)
    # control and held-out answers are not stored, so nobody can score them
    assert len(stand_in.stored) == 40
    assert stand_in.chats == 40 + 16 + 2 * 2 * len(HELD_OUT)
    assert stand_in.most_queued <= 8
    json.dumps(result)


async def test_every_phase_of_a_schedule_has_its_own_rule_control_and_held_out_prompts(stand_in):
    result = await run(stand_in, users=4, schedule="first-person:24,second-person:16", scale="thumbs", window=8, max_backlog=8)
    first, second = result["phases"]
    assert [(p["name"], p["first"], p["last"]) for p in result["phases"]] == [("first-person", 0, 23), ("second-person", 24, 39)]
    assert first["last_window_mean"] > 0.3
    assert second["mean"] == second["last_window_mean"] == 0.0, "the stand-in never says you"
    assert first["held_out"]["before"] == 0.0 < first["held_out"]["after"]
    assert second["held_out"] == {"before": 0.0, "after": 0.0}
    assert [result["controls"][number]["policy_versions"] for number in ("1", "2")] == [[0], [0]], "both before anything was learned"
    assert set(stand_in.prompts[:8]) == {training_prompt(0, index) for index in range(16, 24)}, "the prompts of the first phase's last window"
    assert {i["phase"] for i in result["interactions"] if i["index"] < 24} == {1}
    output = io.StringIO()
    print_summary(Console(file=output, width=160), result)
    printed = output.getvalue()
    assert "second-person" in printed
    assert "0 not 2xx" in printed


async def test_a_schedule_run_in_two_parts_goes_on_where_it_was_left(stand_in):
    schedule = "first-person:16,second-person:16"
    before = await run(stand_in, users=2, schedule=schedule, last_phase=1, window=8)
    assert [p["number"] for p in before["phases"]] == [1]
    assert set(before["controls"]) == {"1", "2"}, "the second part can no longer ask the version that had learned nothing"
    after = await run(stand_in, users=2, schedule=schedule, first_phase=2, control=False, window=8)
    assert [p["number"] for p in after["phases"]] == [2]
    assert [i["index"] for i in after["interactions"]] == list(range(16, 32))
    assert after["controls"] == {}
    assert after["phases"][0]["held_out"]["before"] is not None
    assert [update["number"] for update in before["updates"] + after["updates"]] == [1, 2, 3, 4], "each part tells of its own updates"


async def test_neutral_scores_are_sent_while_the_true_ones_are_measured(stand_in):
    result = await run(stand_in, users=2, schedule="first-person:8,first-person:8", scale="thumbs", neutral_from_phase=2, control=False, window=8)
    sent = [i["sent"] for i in result["interactions"]]
    assert set(sent[:8]) <= {0.0, 1.0}
    assert sent[8:] == [0.5] * 8
    assert {i["score"] for i in result["interactions"]} <= {0.0, 1.0}
    assert [p["neutral"] for p in result["phases"]] == [False, True]


async def test_missing_wrong_and_late_scores(stand_in):
    mishaps = {"users": 1, "schedule": "first-person:40", "scale": "thumbs", "noise": 0.3, "missing": 0.25}
    result = await run(stand_in, **mishaps, late="5", control=False, settle_seconds=0)
    unscored = [i for i in result["interactions"] if i["receipt"] is None]
    wrong = [i for i in result["interactions"] if i["sent"] is not None and i["sent"] != i["score"]]
    assert 3 <= len(unscored) <= 17
    assert 3 <= len(wrong) <= 20
    assert all(i["sent"] is None for i in unscored)
    assert len(stand_in.scores) == 40 - len(unscored), "what is late comes at the end of the phase at last"
    again = await run(stand_in, **mishaps, control=False, settle_seconds=0)
    assert [i["index"] for i in again["interactions"] if i["receipt"] is None] == [i["index"] for i in unscored], "the same seed, the same mishaps"


async def test_late_by_seconds(stand_in):
    result = await run(stand_in, users=4, schedule="first-person:8", late="0.2s", control=False, held_out_repeats=0)
    assert result["receipts"] == {"live": 8}
    assert result["seconds"] > 0.2


async def test_in_a_mixed_population_the_prompt_shows_who_wants_what(stand_in):
    schedule = "first-person/second-person:32"
    result = await run(stand_in, users=2, schedule=schedule, population="mixed", scale="thumbs", control=False, window=32)
    plan = Plan(schedule, population="mixed", scale="thumbs")
    for interaction in result["interactions"]:
        ask = plan.ask(interaction["index"])
        assert (interaction["prompt"], interaction["context"]) == (ask.prompt, ask.context)
        assert interaction["score"] == ask.wanted[0].score(interaction["text"])
    by_context = result["phases"][0]["by_context"]
    assert by_context["poet"] == 0.0, "the stand-in never says you"
    assert by_context["parent"] > 0.0
    assert {user.split("-")[0] for user in stand_in.users} == {"parent", "poet", "control"}


async def test_every_failed_call_is_counted_with_its_body_and_the_run_goes_on(stand_in):
    stand_in.fail_every = 10
    result = await run(stand_in, users=2, schedule="first-person:30", control=False, held_out_repeats=0, settle_seconds=0.0)
    assert result["http"]["non_2xx"] == 3
    assert {(f["method"], f["path"], f["status"]) for f in result["http"]["failures"]} == {("POST", "/v1/chat/completions", 503)}
    assert all("engine broke" in f["body"] for f in result["http"]["failures"])
    assert len(result["interactions"]) == 27
    assert result["controls"] == {}
    assert result["phases"][0]["difference"] is None
    assert result["phases"][0]["held_out"] is None


async def test_a_control_that_is_not_frozen_is_refused(stand_in):
    stand_in.change_version_on_chat = True
    with pytest.raises(ConfigurationError, match="The policy changed while the frozen control was sampled"):
        await run(stand_in, users=2, schedule="first-person:4", window=4)


async def test_users_are_told_apart(stand_in):
    await run(stand_in, users=3, schedule="first-person:24", control=False, held_out_repeats=0)
    assert stand_in.users == {"user-0", "user-1", "user-2"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"first_phase": 2}, "There are phases 1 to 1"),
        ({"noise": 1.5}, "probabilities"),
        ({"late": "soon"}, "--late 'soon'"),
    ],
)
async def test_options_that_cannot_work_are_refused_before_anything_is_asked(stand_in, options, message):
    with pytest.raises(ConfigurationError, match=message):
        await run(stand_in, **options)
    assert stand_in.chats == 0
