"""The server against its own /openapi.json: whatever is sent, no 5xx, no answer that the document does not have, and nothing lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
from openai import OpenAI
from server_process import Server, user

SECONDS = 60
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
)


def test_the_service_keeps_to_its_own_document(own_server: Callable[..., Server], tmp_path: Path) -> None:
    server = own_server({"ONLINE_SAO_ENGINE__DEFAULT_MAX_TOKENS": "8", "ONLINE_SAO_ENGINE__MAX_CONTEXT_TOKENS": "512"}).start()
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        kept = client.chat.completions.create(model="tiny", messages=user("Kept?"), max_tokens=3)
        receipt = httpx.post(f"{server.url}/v1/feedback", json={"completion_id": kept.id, "value": 0.25}, trust_env=False).json()
        command = [str(Path(sys.executable).parent / "st"), "run", f"{server.url}/openapi.json", "--checks", ",".join(CHECKS), "--seed", "1"]
        # What would erase the kept completion is left out, and a budget: it goes on until that is spent. One worker: it parses its own source in
        # threads, and Python 3.11 counts the depth of all parsers in one place ("AST constructor recursion depth mismatch").
        command += ["--exclude-path-regex", r"^/v1/interactions$", "--max-time", str(SECONDS), "--workers", "1", "--max-examples", "10"]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS + 120)
        assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
        assert httpx.get(f"{server.url}/readyz", trust_env=False).json()["status"] == "ready"
        assert httpx.get(f"{server.url}/v1/feedback/{receipt['id']}", trust_env=False).json() == receipt
        assert server.interaction(kept.id)["text"] == kept.choices[0].message.content
        assert server.rows("SELECT COUNT(*) AS n FROM interactions WHERE status = 'generating'") == [{"n": 0}]
        assert server.rows("SELECT COUNT(*) AS n FROM interactions")[0]["n"] > 10, "no valid chat was among what was sent"
        assert client.chat.completions.create(model="tiny", messages=user(), max_tokens=3).choices
    assert "Traceback" not in server.log()


def test_every_route_has_an_answer_and_its_errors(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            responses = operation["responses"]
            assert "422" not in responses, f"{method} {path}: FastAPI's own error, which never comes"
            assert any(status.startswith("2") for status in responses)
            error = responses["500"]["content"]["application/json"]["schema"]
            assert error == {"$ref": "#/components/schemas/ErrorBody"}
    names = {schema for path in document["paths"].values() for schema in _references(path)}
    names |= set(_references(document["components"]))
    assert names <= set(document["components"]["schemas"])


def _references(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"].removeprefix("#/components/schemas/")] if isinstance(value.get("$ref"), str) else []
        return own + [name for item in value.values() for name in _references(item)]
    return [name for item in value for name in _references(item)] if isinstance(value, list) else []
