"""/v1/feedback over HTTP: what is accepted, what is refused and how, and that no acknowledged score is lost."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from openai import OpenAI
from server_process import Server, user


def test_a_score_gets_a_receipt_that_can_be_read_again(http: httpx.Client, completion: Any, server: Server) -> None:
    answer = http.post("/v1/feedback", json={"completion_id": completion.id, "value": 0.75, "comment": "fine"})
    assert answer.status_code == 201
    receipt = answer.json()
    assert receipt["id"].startswith("fb-")
    expected = {
        "object": "feedback",
        "completion_id": completion.id,
        "choice": 0,
        "metric": "score",
        "value": 0.75,
        "status": "queued",
        "reason": None,
    }
    assert {key: receipt[key] for key in expected} == expected
    assert set(receipt) - set(expected) == {
        "id",
        "reward",
        "update",
        "policy_version",
        "masked_fraction",
        "created",
        "updated",
        "advice",
        "comment",
    }
    assert http.get(f"/v1/feedback/{receipt['id']}").json() == receipt
    row = server.interaction(completion.id)
    assert (row["state"], row["reward"]) == ("ready", 0.5)


def test_the_same_again_is_200_and_another_replaces(http: httpx.Client, completion: Any, server: Server) -> None:
    body = {"completion_id": completion.id, "value": 1}
    first = http.post("/v1/feedback", json=body)
    again = http.post("/v1/feedback", json={**body, "value": True})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    other = http.post("/v1/feedback", json={**body, "value": 0})
    assert other.status_code == 201
    old = http.get(f"/v1/feedback/{first.json()['id']}").json()
    assert (old["status"], other.json()["id"] in old["reason"]) == ("superseded", True)
    assert server.interaction(completion.id)["reward"] == -1


def test_idempotency_keys(http: httpx.Client, completion: Any) -> None:
    body = {"completion_id": completion.id, "value": 0.5, "idempotency_key": f"key-{completion.id}"}
    first, again = http.post("/v1/feedback", json=body), http.post("/v1/feedback", json=body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    conflict = http.post("/v1/feedback", json={**body, "value": 0.6})
    assert conflict.status_code == 409
    assert conflict.headers["x-should-retry"] == "false"
    assert conflict.json()["error"]["code"] == "idempotency_conflict"


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"completion_id": "chatcmpl-none"}, 404, "completion_not_found"),
        ({"completion_id": None}, 400, None),
        ({"completion_id": 3}, 400, None),
        ({"completion_id": "x" * 65}, 400, None),
        ({"episode_id": "e-1", "completion_id": None}, 400, "unsupported_feature"),
        ({"episode_id": "e-1"}, 400, None),
        ({"value": None}, 400, "invalid_score"),
        ({"value": "0.7"}, 400, "invalid_score"),
        ({"value": 1.01}, 400, "invalid_score"),
        ({"value": -0.01}, 400, "invalid_score"),
        ({"value": [1]}, 400, "invalid_score"),
        ({"value": 10**300}, 400, "invalid_score"),
        ({"choice": 1}, 400, None),
        ({"choice": -1}, 400, None),
        ({"choice": 10**30}, 400, None),
        ({"choice": True}, 400, None),
        ({"choice": "0"}, 400, None),
        ({"metric": ""}, 400, None),
        ({"metric": "x" * 65}, 400, None),
        ({"metric": 3}, 400, None),
        ({"comment": "x" * 10_001}, 400, None),
        ({"comment": 3}, 400, None),
        ({"idempotency_key": ""}, 400, None),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
def test_scores_that_are_refused(http: httpx.Client, completion: Any, changes: dict[str, Any], status: int, code: str | None) -> None:
    answer = http.post("/v1/feedback", json={"completion_id": completion.id, "value": 0.5, **changes})
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["message"]
    if code is not None:
        assert error["code"] == code


def test_a_missing_value_and_numbers_that_json_does_not_have(http: httpx.Client, completion: Any, server: Server) -> None:
    missing = http.post("/v1/feedback", json={"completion_id": completion.id})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "value")
    for number in ("NaN", "Infinity", "-Infinity", "1e999"):
        raw = f'{{"completion_id": "{completion.id}", "value": {number}}}'
        assert http.post("/v1/feedback", content=raw, headers={"content-type": "application/json"}).status_code == 400
    assert server.interaction(completion.id)["state"] == "pending"


def test_receipts_that_are_not_there(http: httpx.Client) -> None:
    for identity in ("fb-none", "x" * 300, "%00"):
        answer = http.get(f"/v1/feedback/{identity}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "feedback_not_found")


def test_a_score_that_cannot_train_says_why(http: httpx.Client, client: OpenAI) -> None:
    for changes, reason in (({"temperature": 0}, "greedy_sampling"), ({"top_p": 0.5}, "truncated_distribution"), ({"store": False}, "store_false")):
        answer = client.chat.completions.create(model="tiny", messages=user(), max_tokens=2, **changes)
        receipt = http.post("/v1/feedback", json={"completion_id": answer.id, "value": 1}).json()
        assert (receipt["status"], receipt["reason"]) == ("not_trainable", reason)


def test_scoring_within_a_millisecond_of_the_answer(http: httpx.Client, client: OpenAI) -> None:
    """Also before it has ended: the id is known from the first chunk on."""
    for _ in range(5):
        answer = client.chat.completions.create(model="tiny", messages=user(), max_tokens=2)
        sent = time.perf_counter()
        assert http.post("/v1/feedback", json={"completion_id": answer.id, "value": 1}).status_code == 201
        assert time.perf_counter() - sent < 1.0
    chunks = iter(client.chat.completions.create(model="tiny", messages=user(), max_tokens=200, stream=True))
    identity = next(chunks).id
    early = http.post("/v1/feedback", json={"completion_id": identity, "value": 1}).json()
    assert early["status"] in ("received", "queued")
    for _ in chunks:
        pass
    assert http.get(f"/v1/feedback/{early['id']}").json()["status"] == "queued"


def test_a_thousand_parallel_scores(server: Server, client: OpenAI) -> None:
    ids = [client.chat.completions.create(model="tiny", messages=user(), max_tokens=1, n=8).id for _ in range(5)]
    started = time.monotonic()
    with (
        httpx.Client(base_url=server.url, trust_env=False, timeout=120, limits=httpx.Limits(max_connections=64)) as many,
        ThreadPoolExecutor(64) as pool,
    ):

        def score(i: int) -> tuple[int, str]:
            body = {"completion_id": ids[i % 5], "choice": i // 5 % 8, "metric": f"m{i // 40}", "value": i % 2}
            answer = many.post("/v1/feedback", json=body)
            return answer.status_code, answer.json().get("id", answer.text)

        answers = list(pool.map(score, range(1000)))
    seconds = time.monotonic() - started
    assert {status for status, _ in answers} == {201}
    marks = ",".join("?" * len(ids))
    query = f"SELECT f.id FROM feedback f JOIN interactions i ON i.id = f.interaction_id WHERE i.completion_id IN ({marks})"
    assert {row["id"] for row in server.rows(query, *ids)} == {identity for _, identity in answers}
    print(f"1,000 scores in {seconds:.1f} s")


def test_null_means_absent(http: httpx.Client, completion: Any) -> None:
    answer = http.post("/v1/feedback", json={"completion_id": completion.id, "value": 1, "choice": None, "metric": None, "comment": None})
    assert (answer.status_code, answer.json()["choice"], answer.json()["metric"]) == (201, 0, "score")
