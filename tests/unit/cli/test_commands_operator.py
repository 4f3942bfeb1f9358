"""What an operator reads: the learner's state, alarms, versions side by side, and what was erased."""

from __future__ import annotations

import json

import httpx
import pytest
from fake_service import ALARM, STATUS


def with_learner(**changes):
    return {**STATUS, "learner": {**STATUS["learner"], **changes}}


UPDATE = {"number": 51, "accepted": True, "reason": None, "policy_version": 51, "finished_at": STATUS["as_of"] - 200}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (STATUS, ["waiting: 1 of 8 scored answers", "no update yet", "Last sign of life 1 s ago", "No alarm is open"]),
        ({**STATUS, "last_update": UPDATE}, ["Last update: 51, 3 min ago; it made version 51"]),
        ({**STATUS, "last_update": {**UPDATE, "accepted": False, "reason": "gate"}}, ["Last update: 51, 3 min ago; it was discarded: gate"]),
        (
            {**STATUS, "alarms": [ALARM]},
            ["Open alarms: 1", "score_drop (critical): open since 2023-11-14 22:11 UTC (2 min)", "Compare the versions."],
        ),
        (with_learner(paused=True, pause_reason="looking", phase="paused"), ["paused. Waiting: 1 of 8", "It is paused: looking"]),
        (
            with_learner(paused=True, pause_reason="looking", phase="updating", detail="8 trajectories on version 3"),
            ["It is paused: looking", "An update is still under way (updating: 8 trajectories on version 3)"],
        ),
        (with_learner(paused=False, phase="paused", detail="looking"), ["goes on within seconds. Waiting: 1 of 8"]),
        (with_learner(presence="silent", silence=90.0, heartbeat_age=5789.0), ["no sign of life for 2 min", "Last sign of life 2 h ago"]),
        (with_learner(presence="starting", heartbeat_age=5789.0), ["The learner is starting.", "Last sign of life 2 h ago"]),
        (with_learner(presence="ended"), ["has ended, and is started again by itself", "Waiting: 1 of 8"]),
        (with_learner(presence="off", phase="stopped", heartbeat_age=None), ["is stopped.", "online-sao learn", "never given a sign of life"]),
        (with_learner(presence="stopped", detail="checkpoints of another model"), ["is stopped: checkpoints of another model"]),
    ],
)
def test_learner_status_says_what_it_waits_for_and_since_when(service, run, status, words):
    service.answers["GET /admin/status"] = (200, status)
    shown = run("learner", "status").output
    for word in words:
        assert word in shown


def test_learner_status_as_json(service, run):
    answer = json.loads(run("learner", "status", "--json").output)
    assert (answer["learner"], answer["batch_size"], answer["pipeline"]) == (STATUS["learner"], 8, {"ready": 1})


def test_alarms_open_and_past_with_times_numbers_and_advice(service, run):
    past = {**ALARM, "cleared_at": ALARM["raised_at"] + 60, "action": "rolled back to version 2"}
    service.answers["GET /admin/alarms"] = (200, {"data": [ALARM, past]})
    shown = run("alarms").output
    for word in ("open since 2023-11-14 22:11 UTC", "cleared 2023-11-14 22:12 UTC (after 60 s)", "value 0.45, threshold 0.1, version 3"):
        assert word in shown
    assert shown.count("What to do: Compare the versions.") == 2
    assert "Done by itself: rolled back to version 2" in shown
    assert json.loads(run("alarms", "--json").output)["data"] == [ALARM, past]


def test_no_alarm_is_said_and_the_filter_is_sent(service, run):
    service.answers["GET /admin/alarms"] = (200, {"data": []})
    assert "No alarm is open" in run("alarms", "--open").output
    assert service.asked[-1][2] == {"open": True, "limit": 20}


WITHOUT_EFFECT = {
    "data": [
        {
            "reason": "greedy_sampling",
            "words": "sampled greedily",
            "advice": "Send a temperature above 0.",
            "trajectory": "not_trainable",
            "scores": 2,
        },
        {"reason": None, "words": None, "advice": None, "trajectory": "rejected", "scores": 1},
    ],
    "since": 5.0,
    "scores": 3,
}


def test_scores_without_effect_by_reason_with_advice_and_their_answers(service, run):
    service.answers["GET /admin/scores/without-effect"] = (200, WITHOUT_EFFECT)
    scored = {"value": 1.0, "status": "not_trainable", "reason": "greedy_sampling"}
    page = {"data": [{"id": "chatcmpl-1", "created": 1.0, "policy_version": 3, "scores": [scored]}], "has_more": True}
    service.answers["GET /v1/interactions"] = (200, page)
    shown = run("scores", "--hours", "2", "--limit", "1").output
    for word in ("3 scores of the last 2 h", "2  sampled greedily", "What to do: Send a temperature", "1  for a reason of their own", "1 shown"):
        assert word in shown
    assert "version 3, 1 not_trainable: greedy_sampling" in shown
    assert [asked[2] for asked in service.asked] == [{"hours": 2.0}, {"without_effect": True, "since": 5.0, "limit": 1}]


def test_no_score_without_effect_asks_for_no_answers(service, run):
    service.answers["GET /admin/scores/without-effect"] = (200, {"data": [], "since": 5.0, "scores": 0})
    assert "0 scores of the last 24 h had no effect" in run("scores").output
    assert len(service.asked) == 1


@pytest.mark.parametrize("arguments", [(), ("--user", "eve", "--interaction", "c1")])
def test_erase_wants_one_thing_named(service, run, arguments):
    assert "one of the two" in run("erase", *arguments).exception.message
    assert service.asked == []


def test_erase_asks_first_and_says_how_many(service, run):
    service.answers["DELETE /v1/interactions"] = (200, {"deleted": True, "choices": 7})
    kept = run("erase", "--user", "eve", input="n\n")
    assert (kept.exit_code, service.asked) == (1, [])
    assert "answered" in run("erase", "--user", "eve").exception.message, "nobody there to ask"
    assert service.asked == []
    for arguments, answer in ((("--yes",), None), ((), "y\n")):
        done = run("erase", "--user", "eve", *arguments, input=answer)
        assert done.exit_code == 0
        assert "7 answers erased" in done.output
    assert service.asked[0][2] == {"user": "eve"}


def test_erasing_nothing_is_no_success(service, run):
    service.answers["DELETE /v1/interactions"] = (200, {"deleted": False, "choices": 0})
    service.answers["DELETE /v1/interactions/a/b"] = (404, {"error": {"message": "There is no completion 'a/b'."}})
    for arguments in (("--user", "nobody"), ("--interaction", "a/b")):
        done = run("erase", *arguments, "--yes")
        assert done.exit_code == 1
        assert "GET /v1/interactions" in done.output
    assert service.asked[-1][1].endswith("/v1/interactions/a%2Fb"), "an id is one part of the path"


def version(number, **changes):
    row = {
        "version": number,
        "parent": number - 1 if number else None,
        "state": "retired",
        "reason": None,
        "activated_at": 1_700_000_000.0,
        "retired_at": 1_700_000_004.0,
        "files_removed_at": None,
        "mean_score": 0.367,
        "scores": 3,
        "score_interval": [-0.392, 1.126],
    }
    return {**row, **changes}


def test_versions_fit_80_columns_with_intervals_where_scores_can_be_and_utc(service, run):
    rows = [version(51), version(50, parent=35), version(49, files_removed_at=1.0), version(3, state="active", retired_at=None)]
    service.answers["GET /admin/policies"] = (200, {"data": rows})
    shown = run("policies", "list", env={"COLUMNS": "80"}).output
    lines = [line for line in shown.splitlines() if line.strip()]
    assert max(map(len, shown.splitlines())) <= 80
    assert len(lines) == 2 + len(rows), "one line each, below a head"
    assert "served since UTC" in lines[0]
    assert "0.367 (0.000–1.000)" in lines[2]
    assert "2023-11-14 22:13" in lines[2]
    assert ("from 35" in lines[3], "files removed" in lines[4]) == (True, True)


def test_the_serving_version_is_always_listed(service, run, monkeypatch):
    pages = {(2, None): [version(51), version(50)], (1, 4): [version(3, state="active")]}
    request = service.request

    def paged(method, url, *, params=None, **given):
        if params:
            service.answers["GET /admin/policies"] = (200, {"data": pages[params["limit"], params.get("before")]})
        return request(method, url, params=params, **given)

    monkeypatch.setattr(httpx, "request", paged)
    listed = json.loads(run("policies", "list", "--limit", "2", "--json").output)["data"]
    assert [row["version"] for row in listed] == [51, 50, 3]


def unknown(service, path):
    service.answers[path] = (404, {"error": {"message": "There is no policy version 9999. `GET /admin/policies` lists them."}})


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("GET /admin/policies/9999", ("show", "9999")),
        ("GET /admin/policies/diff", ("diff", "1", "9999")),
        ("POST /admin/policies/9999/activate", ("rollback", "9999")),
    ],
)
def test_an_unknown_version_names_the_command_that_lists_them(service, run, path, command):
    unknown(service, path)
    message = run("policies", *command).exception.message
    assert message == "There is no policy version 9999. `online-sao policies list` shows those there are."


METRICS = {
    "policy/kl_base": 0.000123456,
    "policy/entropy": 1.23456789e-05,
    "policy/masked_fraction": 0.123456,
    "data/reward_mean": -0.123456,
    "data/response_length_mean": 23.456,
}


def difference(first, second, relation="ancestor", **changes):
    updates = [{"side": "to", "number": number, "policy_version": number, "metrics": METRICS} for number in range(first + 1, second + 1)]
    found = {
        "from": version(first),
        "to": version(second),
        "lineage": {"relation": relation, "common_ancestor": first, "updates_from": 0, "updates_to": second - first},
        "updates": updates,
        "evaluations": {},
        "evaluation_problems": {},
        "samples": [],
        "weights": {"from_base": 1.0, "to_base": 2.0, "difference": 1.5},
        "weights_problem": None,
    }
    return {**found, **changes}


def test_a_diff_says_why_there_is_no_evaluation_and_shows_the_one_there_is(service, run):
    evaluation = {"perplexity": 21.5, "distinct_2": 0.87654, "response_tokens": 23.0}
    found = difference(47, 48, evaluations={"47": evaluation}, evaluation_problems={"48": "it served 4 s"})
    service.answers["GET /admin/policies/diff"] = (200, found)
    shown = run("policies", "diff", "47", "48").output
    assert "Version 48 has no evaluation (perplexity, distinct-2, samples): it served 4 s." in shown
    assert any(line.split()[:3] == ["perplexity", "21.5", "–"] for line in shown.splitlines())
    assert any(line.split()[:3] == ["distinct-2", "0.8765", "–"] for line in shown.splitlines())


def test_a_diff_fits_80_columns(service, run):
    service.answers["GET /admin/policies/diff"] = (200, difference(1047, 1052))
    shown = run("policies", "diff", "1047", "1052", env={"COLUMNS": "80"}).output
    assert "…" not in shown
    (row,) = [line for line in shown.splitlines() if line.split()[:2] == ["1050", "1050"]]
    assert row.split()[2:] == ["0.000123", "1.23e-05", "0.123", "-0.123", "23.5"]
    for name in METRICS:
        assert name in shown, "the full names are said too"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (difference(3, 5), "Version 3 is an ancestor of version 5, 2 updates apart."),
        (difference(3, 4), "Version 3 is an ancestor of version 4, 1 update apart."),
        (
            difference(4, 3, lineage={"relation": "descendant", "common_ancestor": 3, "updates_from": 1, "updates_to": 0}),
            "Version 4 is a descendant of version 3, 1 update apart.",
        ),
        (difference(3, 3, "same"), "Version 3 beside itself"),
        (
            difference(4, 5, lineage={"relation": "diverged", "common_ancestor": 3, "updates_from": 1, "updates_to": 1}),
            "from their common ancestor, version 3, 1 update led to 4 and 1 to 5.",
        ),
    ],
)
def test_a_diff_says_how_the_two_are_related(service, run, found, words):
    service.answers["GET /admin/policies/diff"] = (200, found)
    assert words in run("policies", "diff", "1", "2").output
