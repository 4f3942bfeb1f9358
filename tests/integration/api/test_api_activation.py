"""Published versions are picked up by a running server, bad ones are set aside, and a killed server starts where it stood."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import torch
from openai import OpenAI
from server_process import START_SECONDS, Server, until, user
from tiny_model import tiny_model, write_random_adapter

from online_sao.models.adapter import MergedWeights, read_adapter
from online_sao.models.catalog import base_digest, load_model
from online_sao.models.fingerprint import fingerprint
from online_sao.publishing.policy_store import write_version


def publish(server: Server, version: int, *, seed: int, digest_error: float = 0.0) -> Path:
    """What a publisher does: the version's files, then its row."""
    torch.set_num_threads(1)
    model = load_model(tiny_model())
    weights = MergedWeights(model)

    def write(folder: Path) -> None:
        write_random_adapter(tiny_model(), folder, seed=seed)
        weights.apply(read_adapter(folder))

    scratch = server.data_dir / f"scratch-{version}"
    scratch.mkdir()
    write(scratch)
    digest = list(fingerprint(weights.served))
    digest[0] += digest_error
    folder = write_version(
        server.data_dir / "policy_store",
        version=version,
        parent=version - 1,
        lineage_epoch=0,
        update=version,
        served_digest=tuple(digest),
        base_digest=base_digest(tiny_model()),
        write_files=write,
    )
    connection = sqlite3.connect(server.data_dir / "online_sao.db", timeout=30)
    columns = "version, parent, lineage_epoch, state, update_number, path, served_digest, created_at"
    values = (version, version - 1, 0, "staged", version, folder.name, json.dumps(digest), time.time())
    with connection:
        connection.execute(f"INSERT INTO policy_versions ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
    connection.close()
    return folder


def state(server: Server, version: int) -> dict[str, Any]:
    (row,) = server.rows("SELECT * FROM policy_versions WHERE version = ?", version)
    return row


def chat(server: Server, **changes: Any) -> Any:
    body = {"model": "tiny", "messages": user(), "max_tokens": 8, "temperature": 0, **changes}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, trust_env=False, timeout=60)
    answer.raise_for_status()
    return answer.json()


def answers(server: Server) -> bool:
    try:
        return httpx.get(f"{server.url}/healthz", trust_env=False, timeout=60).is_success
    except httpx.HTTPError:
        return False


def test_the_life_of_versions_and_a_killed_server(own_server: Callable[..., Server]) -> None:
    server = own_server().start()
    before = chat(server)
    until(lambda: len(server.rows("SELECT 1 FROM probes WHERE policy_version = 0")) == 2, seconds=60, what="probes of the base")

    # A version is picked up, and a request in flight goes on across the swap.
    with httpx.stream(
        "POST",
        f"{server.url}/v1/chat/completions",
        json={"model": "tiny", "messages": user(), "max_tokens": 400, "stream": True},
        trust_env=False,
        timeout=120,
    ) as response:
        lines = response.iter_lines()
        identity = json.loads(next(lines)[6:])["id"]
        publish(server, 1, seed=1)
        until(lambda: state(server, 1)["state"] == "active", seconds=60, what="activation")
        seen = {json.loads(line[6:])["system_fingerprint"] for line in lines if line.startswith("data: {")}
    row = server.interaction(identity)
    spans = row["version_spans"]
    assert [span[2] for span in spans] == [0, 1]
    assert spans[0][1] == spans[1][0]
    assert spans[1][1] == len(row["token_ids"])
    assert (row["policy_version"], row["oldest_policy_version"]) == (1, 0)
    assert "tiny@v1" in seen
    assert (state(server, 0)["state"], state(server, 1)["activated_at"] is not None) == ("retired", True)
    after = chat(server)
    assert after["system_fingerprint"] == "tiny@v1"
    assert after["choices"][0]["message"]["content"] != before["choices"][0]["message"]["content"]
    (swap,) = server.rows("SELECT * FROM swaps")
    assert (swap["policy_version"], swap["requests_in_flight"]) == (1, 1)
    until(lambda: len(server.rows("SELECT 1 FROM probes WHERE policy_version = 1")) == 2, seconds=60, what="probes of version 1")

    # A wrong digest and a damaged file: set aside with the reason, version 1 serves on, unharmed.
    publish(server, 2, seed=2, digest_error=1.0)
    until(lambda: state(server, 2)["state"] == "failed", seconds=60, what="the refusal")
    assert "digest" in state(server, 2)["reason"]
    assert chat(server) | {"id": 0, "created": 0} == after | {"id": 0, "created": 0}
    damaged = server.data_dir / "policy_store" / "v000003"
    (server.data_dir / "policy_store" / "v000003").mkdir()
    connection = sqlite3.connect(server.data_dir / "online_sao.db", timeout=30)
    with connection:
        connection.execute(
            "INSERT INTO policy_versions (version, parent, lineage_epoch, state, update_number, path, served_digest, created_at) "
            "VALUES (3, 1, 0, 'staged', 3, ?, '[]', 0)",
            (damaged.name,),
        )
    connection.close()
    until(lambda: state(server, 3)["state"] == "failed", seconds=60, what="the refusal")
    assert "manifest" in state(server, 3)["reason"]
    assert state(server, 1)["state"] == "active"

    # kill -9 in the middle of a stream; a score acknowledged before it.
    scored = chat(server, temperature=1)
    receipt = httpx.post(f"{server.url}/v1/feedback", json={"completion_id": scored["id"], "value": 1}, trust_env=False, timeout=60)
    assert receipt.status_code == 201
    body = {"model": "tiny", "messages": user(), "max_tokens": 1900, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, trust_env=False, timeout=60) as response:
        cut = json.loads(next(response.iter_lines())[6:])["id"]
        server.kill()
    assert server.interaction(cut)["status"] == "generating"
    server.start()
    row = server.interaction(cut)
    assert (row["status"], row["state"], row["reason"]) == ("interrupted", "not_trainable", "interrupted")
    kept = httpx.get(f"{server.url}/v1/feedback/{receipt.json()['id']}", trust_env=False, timeout=60).json()
    assert (kept["status"], kept["value"]) == ("queued", 1)
    assert chat(server) | {"id": 0, "created": 0} == after | {"id": 0, "created": 0}

    # A second server on the same database is refused, and says who is there.
    second = Server(server.data_dir)
    second.launch()
    assert second.process is not None
    assert second.process.wait(timeout=START_SECONDS) == 2
    assert "already the serving process" in second.log()
    assert chat(server)["system_fingerprint"] == "tiny@v1"
    assert server.stop() < 10


def test_a_token_and_a_shutdown_that_abandons_what_takes_too_long(own_server: Callable[..., Server]) -> None:
    server = own_server({"ONLINE_SAO_SERVER__SHUTDOWN_GRACE_SECONDS": "1", "ONLINE_SAO_SERVER__API_TOKEN": "s3cret"})
    server.launch()
    until(lambda: answers(server), seconds=START_SECONDS, what="a sign of life")
    chat_url = f"{server.url}/v1/chat/completions"
    body = {"model": "tiny", "messages": user(), "max_tokens": 1900, "stream": True}
    assert httpx.post(chat_url, json=body, trust_env=False, timeout=60).status_code == 401
    early = httpx.post(chat_url, json=body, headers={"authorization": "Bearer s3cret"}, trust_env=False, timeout=60)
    assert (early.status_code, early.json()["error"]["code"]) == (503, "not_ready")
    assert int(early.headers["retry-after"]) >= 1
    assert "engine" in httpx.get(f"{server.url}/readyz", trust_env=False, timeout=60).json()["missing"]
    server.wait_ready()
    with OpenAI(base_url=f"{server.url}/v1", api_key="s3cret") as client:
        assert client.models.retrieve("tiny").id == "tiny"
    with httpx.stream("POST", chat_url, json=body, headers={"authorization": "Bearer s3cret"}, trust_env=False, timeout=60) as response:
        identity = json.loads(next(response.iter_lines())[6:])["id"]
        assert server.stop() < 10
    row = server.interaction(identity)
    assert (row["status"], row["reason"]) == ("abandoned", "abandoned")
    assert row["token_ids"]
    assert server.rows("SELECT * FROM leases") == []
