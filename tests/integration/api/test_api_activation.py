"""Published versions are picked up by a running server, bad ones are set aside, and a killed server starts where it stood."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from openai import OpenAI
from server_process import START_SECONDS, Server, until, user
from tiny_model import tiny_model, write_random_adapter

from online_sao.models.adapter import MergedWeights, read_adapter
from online_sao.models.catalog import base_digest, load_model
from online_sao.models.fingerprint import fingerprint
from online_sao.publishing.policy_store import write_version

TOKEN = "s3cret"


def publish(server: Server, version: int, *, seed: int, digest_error: float = 0.0) -> None:
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
    stage(server, version, folder.name, digest)


def stage(server: Server, version: int, folder: str, digest: list[float]) -> None:
    """The row of a version, as a publisher leaves it."""
    columns = "version, parent, lineage_epoch, state, update_number, path, served_digest, created_at"
    values = (version, version - 1, 0, "staged", version, folder, json.dumps(digest), time.time())
    connection = sqlite3.connect(server.data_dir / "online_sao.db", timeout=30)
    with connection:
        connection.execute(f"INSERT INTO policy_versions ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
    connection.close()


def state(server: Server, version: int) -> dict[str, Any]:
    (row,) = server.rows("SELECT * FROM policy_versions WHERE version = ?", version)
    return row


def post(server: Server, path: str, body: dict[str, Any]) -> httpx.Response:
    headers = {"authorization": f"Bearer {TOKEN}"} if "ONLINE_SAO_SERVER__API_TOKEN" in server.environment else {}
    return httpx.post(f"{server.url}{path}", json=body, headers=headers, trust_env=False, timeout=60)


def chat(server: Server, **changes: Any) -> Any:
    answer = post(server, "/v1/chat/completions", {"model": "tiny", "messages": user(), "max_tokens": 8, "temperature": 0, **changes})
    answer.raise_for_status()
    return answer.json()


@contextmanager
def stream(server: Server, max_tokens: int) -> Iterator[tuple[str, Iterator[str]]]:
    """A stream under way: its completion id, and the lines after the first."""
    body = {"model": "tiny", "messages": user(), "max_tokens": max_tokens, "stream": True}
    headers = {"authorization": f"Bearer {TOKEN}"}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, headers=headers, trust_env=False, timeout=120) as response:
        lines = response.iter_lines()
        yield json.loads(next(lines)[6:])["id"], lines


def answers(server: Server) -> bool:
    try:
        return httpx.get(f"{server.url}/healthz", trust_env=False, timeout=60).is_success
    except httpx.HTTPError:
        return False


def same(answer: dict[str, Any]) -> dict[str, Any]:
    """What two equal answers have in common."""
    return {key: answer[key] for key in ("choices", "system_fingerprint", "usage", "online_sao")}


def test_the_life_of_versions_and_of_the_server(own_server: Callable[..., Server]) -> None:
    """One story, since every start of a server costs: swap in flight, bad versions, kill -9, restart with a token, a second server, shutdown."""
    server = own_server().start()
    before = chat(server)
    wait_for_probes(server, 0)
    a_version_is_picked_up_and_a_request_in_flight_goes_on(server)
    after = chat(server)
    assert after["system_fingerprint"] == "tiny@v1"
    assert after["choices"] != before["choices"]
    wait_for_probes(server, 1)
    bad_versions_are_set_aside(server)
    assert same(chat(server)) == same(after)

    scored = chat(server, temperature=1)
    receipt = post(server, "/v1/feedback", {"completion_id": scored["id"], "value": 1})
    assert receipt.status_code == 201
    with stream(server, 1900) as (cut, lines):
        server.kill()
        with pytest.raises(httpx.HTTPError):
            list(lines)
    assert server.interaction(cut)["status"] == "generating"

    server.environment |= {"ONLINE_SAO_SERVER__SHUTDOWN_GRACE_SECONDS": "1", "ONLINE_SAO_SERVER__API_TOKEN": TOKEN}
    server.launch()
    before_it_is_ready_it_says_so(server)
    server.wait_ready()
    row = server.interaction(cut)
    assert (row["status"], row["state"], row["reason"]) == ("interrupted", "not_trainable", "interrupted")
    with OpenAI(base_url=f"{server.url}/v1", api_key=TOKEN) as client:
        assert client.models.retrieve("tiny@v1").id == "tiny@v1"
    kept = httpx.get(
        f"{server.url}/v1/feedback/{receipt.json()['id']}", headers={"authorization": f"Bearer {TOKEN}"}, trust_env=False, timeout=60
    ).json()
    assert (kept["status"], kept["value"]) == ("queued", 1)
    assert same(chat(server)) == same(after)

    a_second_server_is_refused(server)
    with stream(server, 1900) as (identity, lines):
        assert server.stop() < 10
        *_, last = (line for line in lines if line.startswith("data: "))
    assert "shutting down" in json.loads(last[6:])["error"]["message"], "a stream that is cut says so"
    row = server.interaction(identity)
    assert (row["status"], row["reason"]) == ("abandoned", "abandoned")
    assert row["token_ids"]
    assert server.rows("SELECT * FROM leases") == []


def wait_for_probes(server: Server, version: int) -> None:
    query = "SELECT 1 FROM probes WHERE policy_version = ?"
    until(lambda: len(server.rows(query, version)) == 2, seconds=60, what=f"probes of version {version}")


def a_version_is_picked_up_and_a_request_in_flight_goes_on(server: Server) -> None:
    with stream(server, 600) as (identity, lines):
        publish(server, 1, seed=1)
        until(lambda: state(server, 1)["state"] == "active", seconds=60, what="activation")
        seen = {json.loads(line[6:])["system_fingerprint"] for line in lines if line.startswith("data: {")}
    row = server.interaction(identity)
    assert [span[2] for span in row["version_spans"]] == [0, 1]
    assert row["version_spans"][0][1] == row["version_spans"][1][0]
    assert row["version_spans"][1][1] == len(row["token_ids"])
    assert (row["policy_version"], row["oldest_policy_version"]) == (1, 0)
    assert "tiny@v1" in seen
    assert (state(server, 0)["state"], state(server, 1)["activated_at"] is not None) == ("retired", True)
    (swap,) = server.rows("SELECT * FROM swaps")
    assert swap["policy_version"] == 1
    assert swap["requests_in_flight"] >= 1, "the stream; the server's own measurements of version 0 may be under way beside it"


def bad_versions_are_set_aside(server: Server) -> None:
    publish(server, 2, seed=2, digest_error=1.0)
    until(lambda: state(server, 2)["state"] == "failed", seconds=60, what="the refusal of a wrong digest")
    assert "digest" in state(server, 2)["reason"]
    shutil.copytree(server.data_dir / "policy_store" / "v000001", server.data_dir / "policy_store" / "v000003")
    (server.data_dir / "policy_store" / "v000003" / "adapter_model.safetensors").write_bytes(b"damaged")
    stage(server, 3, "v000003", [])
    until(lambda: state(server, 3)["state"] == "failed", seconds=60, what="the refusal of a damaged file")
    assert "checksum" in state(server, 3)["reason"]
    assert state(server, 1)["state"] == "active"


def before_it_is_ready_it_says_so(server: Server) -> None:
    until(lambda: answers(server), seconds=START_SECONDS, what="a sign of life")
    body = {"model": "tiny", "messages": user(), "max_tokens": 1}
    assert httpx.post(f"{server.url}/v1/chat/completions", json=body, trust_env=False, timeout=60).status_code == 401
    early = post(server, "/v1/chat/completions", body)
    assert (early.status_code, early.json()["error"]["code"]) == (503, "not_ready")
    assert int(early.headers["retry-after"]) >= 1
    assert "engine" in httpx.get(f"{server.url}/readyz", trust_env=False, timeout=60).json()["missing"]


def a_second_server_is_refused(server: Server) -> None:
    second = Server(server.data_dir)
    second.launch()
    assert second.process is not None
    assert second.process.wait(timeout=START_SECONDS) == 2
    assert "already the serving process" in second.log()
    assert chat(server)["system_fingerprint"] == "tiny@v1"
