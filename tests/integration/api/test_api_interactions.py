"""/v1/interactions, /admin, health and /metrics: what was logged can be paged, read, erased, and the state of things seen."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from openai import OpenAI
from server_process import Server, user


def test_one_completion_with_everything_known_of_it(http: httpx.Client, client: OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=user("What is logged?"), max_tokens=5, n=2, user="reader")
    receipt = http.post("/v1/feedback", json={"completion_id": answer.id, "choice": 1, "value": 1, "comment": "good"}).json()
    found = http.get(f"/v1/interactions/{answer.id}").json()
    assert (found["id"], found["object"], len(found["choices"])) == (answer.id, "interaction", 2)
    first, second = found["choices"]
    assert (first["choice"], first["scores"], first["trajectory"]["state"]) == (0, [], "pending")
    assert second["scores"] == [receipt]
    assert (receipt["comment"], receipt["advice"]) == ("good", None)
    assert (second["trajectory"]["state"], second["trajectory"]["reward"]) == ("ready", 1.0)
    assert second["text"] == answer.choices[1].message.content
    assert second["messages"] == user("What is logged?")
    assert len(second["token_ids"]) == len(second["behavior_logprobs"]) == second["completion_tokens"]
    assert second["version_spans"] == [[0, second["completion_tokens"], 0]]
    assert len(second["prompt_ids"]) == second["prompt_tokens"]
    assert http.get("/v1/interactions/chatcmpl-none").json()["error"]["code"] == "completion_not_found"


def test_pages_and_filters(http: httpx.Client, client: OpenAI) -> None:
    ids = [client.chat.completions.create(model="tiny", messages=user(), max_tokens=1, user="pager").id for _ in range(5)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = http.get("/v1/interactions", params={"user": "pager", "limit": 2, **({"after": cursor} if cursor else {})}).json()
        seen += [choice["id"] for choice in page["data"]]
        assert page["has_more"] == (page["next_cursor"] is not None)
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == ids[::-1]
    assert "token_ids" not in page["data"][0]
    assert http.get("/v1/interactions", params={"user": "pager", "status": "abandoned"}).json()["data"] == []
    assert len(http.get("/v1/interactions", params={"policy_version": 0, "limit": 3}).json()["data"]) == 3


def test_what_became_of_scores_can_be_asked_for(http: httpx.Client, client: OpenAI) -> None:
    queued, greedy = (
        client.chat.completions.create(model="tiny", messages=user(), max_tokens=1, user="filtered", temperature=temperature).id
        for temperature in (1, 0)
    )
    for id_ in (queued, greedy):
        assert http.post("/v1/feedback", json={"completion_id": id_, "value": 1}).status_code == 201

    def found(**filters: str) -> list[str]:
        return [choice["id"] for choice in http.get("/v1/interactions", params={"user": "filtered", **filters}).json()["data"]]

    assert found(receipt="queued") == found(trajectory="ready") == [queued]
    assert found(receipt="not_trainable") == found(reason="greedy_sampling") == [greedy]
    assert found(receipt="live") == found(reason="store_false") == found(learned_into="1") == []
    assert found(without_effect="true") == [greedy]
    counted = http.get("/admin/scores/without-effect", params={"hours": 1}).json()
    reasons = {one["reason"]: one for one in counted["data"]}
    assert reasons["greedy_sampling"]["scores"] >= 1
    assert "temperature above 0" in reasons["greedy_sampling"]["advice"]
    assert counted["scores"] == sum(one["scores"] for one in counted["data"])
    assert http.get("/admin/scores/without-effect", params={"hours": 0}).status_code == 400
    (choice,) = http.get(f"/v1/interactions/{greedy}").json()["choices"]
    assert "temperature above 0" in choice["trajectory"]["advice"]
    assert choice["scores"][0]["advice"] == choice["trajectory"]["advice"]


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"score_status": "queued"}, "score_status"),
        ({"receipt": "happy"}, "receipt"),
        ({"trajectory": "happy"}, "trajectory"),
        ({"reason": "happy"}, "reason"),
        ({"limit": 0}, "limit"),
        ({"limit": 201}, "limit"),
        ({"limit": "many"}, "limit"),
        ({"after": "x"}, "after"),
        ({"status": "happy"}, "status"),
        ({"policy_version": 10**30}, "policy_version"),
        ({"since": "nan"}, "since"),
        ({"user": "a\x00"}, None),
    ],
    ids=str,
)
def test_queries_that_are_refused(http: httpx.Client, params: dict[str, Any], param: str | None) -> None:
    answer = http.get("/v1/interactions", params=params)
    assert answer.status_code == 400, answer.text
    if param is not None:
        assert answer.json()["error"]["param"] == param


def test_erasing(http: httpx.Client, client: OpenAI, server: Server) -> None:
    kept, one, two = (client.chat.completions.create(model="tiny", messages=user(), max_tokens=1, user=name).id for name in ("stays", "goes", "goes"))
    assert http.post("/v1/feedback", json={"completion_id": one, "value": 1, "comment": "mine"}).status_code == 201
    assert http.delete(f"/v1/interactions/{one}").json() == {"id": one, "object": "interaction.deleted", "deleted": True, "choices": 1}
    row = server.interaction(one)
    assert (row["text"], row["token_ids"], row["messages"], row["user"], row["completion_tokens"]) == (None, None, None, None, 1)
    assert row["state"] == "expired"
    assert http.delete("/v1/interactions", params={"user": "goes"}).json()["choices"] == 1
    assert server.interaction(two)["text"] is None
    assert server.interaction(kept)["text"] is not None
    assert http.delete("/v1/interactions").status_code == 400
    assert http.delete("/v1/interactions", params={"user": ""}).json()["error"]["param"] == "user"
    nobody = http.delete("/v1/interactions", params={"user": "nobody"}).json()
    assert (nobody["deleted"], nobody["choices"]) == (False, 0)
    assert "Nothing was erased" in nobody["message"]
    assert http.delete("/v1/interactions/chatcmpl-none").status_code == 404


def test_status_and_policies(http: httpx.Client) -> None:
    status = http.get("/admin/status").json()
    assert (status["ready"], status["active_version"], status["engine"]["policy_version"], status["engine"]["healthy"]) == (True, 0, 0, True)
    assert set(status["pipeline"]) == {"pending", "ready", "claimed", "trained", "rejected", "expired", "not_trainable"}
    assert status["learner"]["phase"] == "stopped"
    (base,) = http.get("/admin/policies").json()["data"]
    assert (base["version"], base["state"], base["parent"]) == (0, "active", None)
    assert http.get("/admin/policies", params={"limit": 0}).status_code == 400


def test_the_learner_is_paused_and_resumed(http: httpx.Client) -> None:
    paused = http.post("/admin/learner/pause", json={"reason": "looking into it"}).json()
    assert (paused["paused"], paused["pause_reason"]) == (True, "looking into it")
    assert http.get("/admin/status").json()["learner"]["paused"] is True
    assert http.post("/admin/learner/resume").json()["paused"] is False
    assert http.post("/admin/learner/pause").json()["pause_reason"]
    assert http.post("/admin/learner/resume").json()["pause_reason"] is None
    assert http.post("/admin/learner/pause", json={"reason": 3}).status_code == 400


def test_health_metrics_and_pages(http: httpx.Client, completion: Any) -> None:
    assert http.get("/healthz").json() == {"status": "alive"}
    assert http.head("/healthz").status_code == 200
    assert http.get("/").headers["location"] == "/dashboard"
    assert http.get("/readyz").json()["missing"] == {}
    metrics = http.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    for name in (
        "online_sao_completions_total{finish_reason=",
        "online_sao_time_to_first_token_seconds_bucket",
        'trajectories_by_state{state="pending"}',
    ):
        assert name in metrics.text
    assert "online_sao_serve_policy_version 0.0" in metrics.text
    assert http.get("/dashboard/").status_code == 200
    assert "/v1/chat/completions" in http.get("/openapi.json").json()["paths"]
    assert http.get("/v1/models", headers={"host": "evil.com"}).status_code == 403
    assert http.post("/v1/feedback", json={}, headers={"origin": "http://evil.com"}).status_code == 403
