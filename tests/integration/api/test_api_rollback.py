"""Going back over HTTP and in the terminal, on a real server: under traffic, killed in between, and where the files are damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx
from server_process import ROOT, Server, until, user
from test_api_activation import publish, state


def request(server: Server, method: str, path: str, **given: Any) -> httpx.Response:
    return httpx.request(method, f"{server.url}{path}", trust_env=False, timeout=60, **given)


def command(server: Server, *arguments: str, url: str | None = None) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("ONLINE_SAO_")}
    where = () if url == "" else ("--url", url or server.url)
    run = [sys.executable, "-m", "online_sao.cli", *arguments, *where]
    environment = {**inherited, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    return subprocess.run(run, cwd=server.data_dir, env=environment, capture_output=True, text=True, timeout=120)


def served(server: Server, version: int) -> None:
    # The head is the learner's to move; there is none here.
    execute(server, "UPDATE learner SET head_version = ?, head_update = ?", version, version)
    until(lambda: state(server, version)["state"] == "active", seconds=60, what=f"activation of version {version}")


def execute(server: Server, statement: str, *values: Any) -> None:
    import sqlite3

    connection = sqlite3.connect(server.data_dir / "online_sao.db", timeout=30)
    with connection:
        connection.execute(statement, values)
    connection.close()


def test_the_operators_control(own_server: Callable[..., Server]) -> None:
    """One story, since every start of a server costs."""
    server = own_server().start()
    for version in (1, 2, 3):
        publish(server, version, seed=version)
        served(server, version)
    what_cannot_be_is_refused(server)
    a_stream_goes_on_through_a_rollback(server)
    damaged_files_are_refused_before_anything_changes(server)
    killed_between_the_transaction_and_the_swap(server)
    in_the_terminal(server)


def what_cannot_be_is_refused(server: Server) -> None:
    for path, status, words in (
        ("/admin/policies/9/activate", 404, "no policy version 9"),
        ("/admin/policies/3/activate", 409, "active already"),
    ):
        answer = request(server, "POST", path)
        assert (answer.status_code, words in answer.json()["error"]["message"]) == (status, True), answer.text
    assert request(server, "GET", "/admin/policies/9").status_code == 404
    assert request(server, "POST", "/admin/policies/x/activate").status_code in (400, 404, 422)
    assert request(server, "POST", "/admin/policies/1/activate", json={"resume": "yes"}).status_code == 400


def a_stream_goes_on_through_a_rollback(server: Server) -> None:
    body = {"model": "tiny", "messages": user(), "max_tokens": 500, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, trust_env=False, timeout=120) as response:
        lines = response.iter_lines()
        identity = json.loads(next(lines)[6:])["id"]
        answer = request(server, "POST", "/admin/policies/1/activate", json={"reason": "it rambles"})
        assert answer.status_code == 202
        policy = answer.json()
        assert (policy["object"], policy["version"], policy["active_version"]) == ("policy", 1, 3)
        assert (policy["rollback"]["state"], policy["rollback"]["from_version"]) == ("pending", 3)
        until(lambda: request(server, "GET", "/admin/policies/1").json()["rollback"]["state"] == "done", seconds=60, what="the swap")
        last = [line for line in lines if line.startswith("data: ")][-1]
    assert last == "data: [DONE]", "no request is dropped"
    row = server.interaction(identity)
    assert [span[2] for span in row["version_spans"]] == [3, 1]
    assert (row["state"], row["reason"]) == ("not_trainable", "policy version 3 was rolled back")
    assert state(server, 3)["state"] == "retired"
    learner = request(server, "GET", "/admin/learner").json()
    assert (learner["paused"], learner["pause_reason"], learner["head_version"]) == (True, "rolled back to version 1: it rambles", 1)


def damaged_files_are_refused_before_anything_changes(server: Server) -> None:
    weights = server.data_dir / "policy_store" / "v000002" / "adapter_model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(b"torn")
    answer = request(server, "POST", "/admin/policies/2/activate")
    assert (answer.status_code, "damaged" in answer.json()["error"]["message"]) == (409, True)
    assert server.rows("SELECT lineage_epoch FROM learner") == [{"lineage_epoch": 1}]
    weights.write_bytes(content)


def killed_between_the_transaction_and_the_swap(server: Server) -> None:
    assert request(server, "POST", "/admin/policies/2/activate", json={"resume": True}).status_code == 202
    server.kill()
    (learner,) = server.rows("SELECT head_version, lineage_epoch, paused FROM learner")
    assert learner == {"head_version": 2, "lineage_epoch": 2, "paused": 0}
    server.start()
    until(lambda: state(server, 2)["state"] == "active", seconds=60, what="the rollback taken up again")
    assert [row["state"] for row in server.rows("SELECT state FROM policy_versions ORDER BY version")] == ["retired", "retired", "active", "retired"]


def in_the_terminal(server: Server) -> None:
    listed = command(server, "policies", "list", "--limit", "1")
    assert listed.returncode == 0, listed.stderr
    assert "active" in listed.stdout, "the newest version is not the one that serves, which is listed all the same"
    shown = command(server, "policies", "show", "3")
    assert "policies rollback 3" in shown.stdout
    assert "not on the learner's lineage" in shown.stdout
    compared = json.loads(command(server, "policies", "diff", "1", "3", "--json").stdout)
    assert compared["lineage"] == {"relation": "ancestor", "common_ancestor": 1, "updates_from": 0, "updates_to": 2}
    assert compared["weights"]["difference"] > 0
    assert list(compared["evaluation_problems"]) == [version for version in ("1", "3") if version not in compared["evaluations"]]
    assert "‖weights of 3 − weights of 1‖" in command(server, "policies", "diff", "1", "3").stdout
    assert "`online-sao policies list` shows" in command(server, "policies", "diff", "1", "9").stderr
    back = command(server, "policies", "rollback", "1", "--reason", "once more")
    assert back.returncode == 0, back.stderr
    assert "it serves since" in back.stdout
    assert state(server, 1)["state"] == "active"
    again = command(server, "policies", "rollback", "1")
    assert (again.returncode, "active already" in again.stderr) == (2, True)
    assert "It is paused: rolled back to version 1: once more" in command(server, "learner", "status").stdout
    assert "It stands on version 1" in command(server, "learner", "resume").stdout
    assert json.loads(command(server, "learner", "status", "--json").stdout)["batch_size"] > 0
    assert command(server, "alarms", "--json").returncode == 0
    (server.data_dir / "here.toml").write_text(f"[server]\nport = {server.port}\n")
    assert "It stands on version 1" in command(server, "learner", "status", "--config", "here.toml", url="").stdout
    encrypted = command(server, "learner", "status", url=server.url.replace("http:", "https:"))
    assert (encrypted.returncode, f"try --url {server.url}" in encrypted.stderr) == (2, True), encrypted.stderr
    in_the_terminal_erased(server)
    nowhere = command(server, "policies", "rollback", "0", url="http://127.0.0.1:9")
    assert nowhere.returncode == 2
    assert "Nothing has been changed" in nowhere.stderr.replace("\n", " ")


def in_the_terminal_erased(server: Server) -> None:
    body = {"model": "tiny", "messages": user(), "max_tokens": 2, "user": "eve"}
    identity = request(server, "POST", "/v1/chat/completions", json=body).json()["id"]
    for arguments, code in ((("--user", "Eve"), 1), (("--user", "eve"), 0), (("--user", "eve"), 1), (("--interaction", "chatcmpl-0"), 1)):
        done = command(server, "erase", *arguments, "--yes")
        assert done.returncode == code, (arguments, done.stderr)
    assert server.interaction(identity)["text"] is None


def test_an_empty_user_erases_nothing_by_accident(server: Server) -> None:
    body = {"model": "tiny", "messages": user(), "max_tokens": 2, "user": ""}
    identity = request(server, "POST", "/v1/chat/completions", json=body).json()["id"]
    assert server.interaction(identity)["text"] is not None
    refused = request(server, "DELETE", "/v1/interactions", params={"user": ""})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "user")
    assert server.interaction(identity)["text"] is not None
    assert request(server, "DELETE", f"/v1/interactions/{identity}").json()["deleted"] is True
    assert server.interaction(identity)["text"] is None
    assert request(server, "DELETE", "/v1/interactions").status_code == 400
