"""/metrics and the log of a service that has learned: every metric that the documentation and the Grafana dashboard name, and lines that are JSON,
know their request and hold nothing that users wrote."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from server_process import ROOT, Server, until

BATCH = 4
SECRET = "xyzzy-plugh"
TOKEN = "token-of-the-test"
MONITORING = ROOT / "docs" / "operations" / "monitoring.md"
NAME = re.compile(r"\b(?:online_sao|http|process|vllm)_\w+")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    environment = {
        "ONLINE_SAO_SERVER__LOG_FORMAT": "json",
        "ONLINE_SAO_SERVER__API_TOKEN": TOKEN,
        "ONLINE_SAO_LEARNING__BATCH_SIZE": str(BATCH),
        "ONLINE_SAO_LEARNING__THREADS": "1",
        "ONLINE_SAO_POLICY__LORA_RANK": "4",
        "ONLINE_SAO_EVALUATION__MIN_INTERVAL_SECONDS": "0",
    }
    server = Server(tmp_path_factory.mktemp("metrics") / "data", environment, learner=True).start()
    yield server
    if server.process is not None and server.process.poll() is None:
        server.stop()


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=server.url, trust_env=False, timeout=120, headers=headers) as http:
        yield http


def chat(http: httpx.Client, **more: Any) -> httpx.Response:
    messages = [{"role": "user", "content": f"What does {SECRET} mean?"}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 8, "user": SECRET, "metadata": {"topic": SECRET}, **more}
    return http.post("/v1/chat/completions", json=body)


@pytest.fixture(scope="module")
def used(http: httpx.Client) -> str:
    """A service with an update, a swap and an evaluation. Its /metrics."""
    receipts = []
    for _ in range(BATCH):
        completion = chat(http).raise_for_status().json()["id"]
        score = {"completion_id": completion, "value": 1.0, "comment": SECRET, "idempotency_key": f"{SECRET}-{len(receipts)}"}
        receipts.append(http.post("/v1/feedback", json=score).raise_for_status().json()["id"])
    until(lambda: {http.get(f"/v1/feedback/{receipt}").json()["status"] for receipt in receipts} == {"live"}, seconds=400, what="every score live")
    until(lambda: "online_sao_evaluation{" in http.get("/metrics").text, seconds=200, what="an evaluation")
    return http.get("/metrics").text


def families(text: str) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_the_counts_are_those_of_what_was_done(used: str, http: httpx.Client) -> None:
    samples = {(sample.name, *sorted(sample.labels.values())): sample.value for family in families(used).values() for sample in family.samples}
    ended = sum(value for (name, *_), value in samples.items() if name == "online_sao_completions_total")
    assert ended == BATCH
    assert samples["online_sao_time_to_first_token_seconds_count",] == BATCH
    assert samples["online_sao_generation_tokens_total",] <= 8 * BATCH
    assert samples["online_sao_receipts", "live"] == BATCH
    assert samples["online_sao_updates_total", "accepted"] == 1
    assert samples["online_sao_learner_up",] == 1
    assert samples["online_sao_serve_swap_seconds_count",] == 1
    assert samples["http_requests_total", "/v1/chat/completions", "200", "POST"] == BATCH
    assert ("http_requests_total", "/v1/feedback/{feedback_id}", "200", "GET") in samples


def test_what_no_route_knows_makes_no_labels_of_its_own(used: str, http: httpx.Client) -> None:
    for number in range(3):
        assert http.get(f"/nowhere/{number}").status_code == 404
        assert httpx.get(f"{http.base_url}/v1/nowhere/{number}", trust_env=False).status_code == 401
    handlers = {sample.labels["handler"] for sample in families(http.get("/metrics").text)["http_requests"].samples}
    assert "none" in handlers
    assert not [handler for handler in handlers if "nowhere" in handler]


def test_the_documented_metrics_are_those_that_there_are(used: str) -> None:
    ours = {name: family.type for name, family in families(used).items() if name.startswith(("online_sao_", "http_"))}
    documented = dict(re.findall(r"^\| `(\w+?)(?:_total)?(?:\{[^`]*\})?` \| (\w+) \|", MONITORING.read_text(), re.MULTILINE))
    assert documented == ours, set(documented.items()) ^ set(ours.items())


def test_the_dashboard_asks_for_nothing_that_is_not_exported(used: str) -> None:
    exported = {sample.name for family in families(used).values() for sample in family.samples}
    (path,) = (ROOT / "docker" / "grafana" / "dashboards").glob("*.json")
    dashboard = json.loads(path.read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(expressions) > 30
    for expression in (*expressions, *(annotation["expr"] for annotation in dashboard["annotations"]["list"])):
        names = NAME.findall(expression)
        assert names, expression
        assert set(names) <= exported, expression


def lines(server: Server) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.log().splitlines()]


def test_every_line_is_json_and_knows_its_request(used: str, server: Server, http: httpx.Client) -> None:
    answer = http.get("/v1/interactions", params={"user": SECRET}, headers={"x-request-id": "mine-7"})
    assert answer.status_code == 200
    found = until(lambda: [line for line in lines(server) if line.get("request_id") == "mine-7"], what="its line")
    (line,) = found
    assert line.items() >= {"level": "INFO", "logger": "uvicorn.access", "path": "/v1/interactions", "method": "GET", "status": 200}.items()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", line["timestamp"])
    loggers = {line["logger"] for line in lines(server)}
    assert {"online_sao.runtime.learning", "online_sao.runtime.serving"} <= loggers, "the learner's too"
    assert not [line for line in lines(server) if line.get("path") == "/metrics"]


def test_nothing_that_users_wrote_is_logged_not_even_by_what_fails(used: str, server: Server, http: httpx.Client) -> None:
    assert chat(http, temperature=SECRET).status_code == 400
    assert chat(http, stream=True).status_code == 200
    database = sqlite3.connect(server.data_dir / "online_sao.db", timeout=60)
    completion = chat(http).json()["id"]
    for table in ("feedback", "interactions"):
        database.execute(f"ALTER TABLE {table} RENAME TO {table}_away")
    database.commit()
    failed = [
        http.post("/v1/feedback", json={"completion_id": completion, "value": 0.5, "comment": SECRET, "idempotency_key": SECRET}),
        chat(http),
    ]
    for table in ("feedback", "interactions"):
        database.execute(f"ALTER TABLE {table}_away RENAME TO {table}")
    database.commit()
    database.close()
    for answer in failed:
        assert answer.status_code == 500
        identity = answer.headers["x-request-id"]
        told = [line for line in lines(server) if line.get("request_id") == identity and line["level"] == "ERROR"]
        assert "no such table" in told[0]["exception"], told
    assert SECRET not in server.log()
