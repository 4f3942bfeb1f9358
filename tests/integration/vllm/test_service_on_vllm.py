"""The whole service on vLLM, by real processes: from a score to an answer of the new weights, the self-check between engine and learner, a rollback,
a version asked for by its number, a core that is killed, an end that leaves nothing. Run with --engine vllm or vllm-adapter."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import httpx
import psutil
import pytest
import service_calls
from prometheus_client.parser import text_string_to_metric_families
from server_process import Server, until, user

BATCH = 4


@pytest.fixture(scope="module")
def publish(pytestconfig: pytest.Config) -> str:
    engine = pytestconfig.getoption("--engine")
    if not engine.startswith("vllm"):
        pytest.skip("of the vLLM engine alone: --engine vllm or vllm-adapter")
    return "adapter" if engine == "vllm-adapter" else "weights"


@pytest.fixture(scope="module")
def server(publish: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    environment = {
        "ONLINE_SAO_ENGINE__KIND": "vllm",
        "ONLINE_SAO_ENGINE__PUBLISH": publish,
        "ONLINE_SAO_POLICY__LORA_RANK": "4",
        "ONLINE_SAO_LEARNING__THREADS": "1",
        "ONLINE_SAO_LEARNING__BATCH_SIZE": str(BATCH),
        "ONLINE_SAO_SERVER__LOG_FORMAT": "json",
    }
    server = Server(tmp_path_factory.mktemp("vllm") / "data", environment, learner=True).start()
    yield server
    if server.process is not None and server.process.poll() is None:
        server.stop()


call = partial(service_calls.call, timeout=120)


def chat(server: Server, model: str = "tiny") -> httpx.Response:
    return call(server, "POST", "/v1/chat/completions", json={"model": model, "messages": user(), "max_tokens": 8})


def fingerprint(server: Server) -> str:
    return str(chat(server).raise_for_status().json()["system_fingerprint"])


def cores(server: Server) -> list[psutil.Process]:
    assert server.process is not None
    return [child for child in psutil.Process(server.process.pid).children(recursive=True) if child.name().startswith("VLLM")]


def test_from_a_score_to_live_checked_and_back(server: Server) -> None:
    completions = [chat(server).raise_for_status().json()["id"] for _ in range(BATCH)]
    receipts = []
    for completion in completions:
        scored = call(server, "POST", "/v1/feedback", json={"completion_id": completion, "value": 1.0}).raise_for_status()
        receipts.append(scored.json()["id"])

    def statuses() -> set[str]:
        return {str(call(server, "GET", f"/v1/feedback/{receipt}").json()["status"]) for receipt in receipts}

    until(lambda: statuses() == {"live"}, seconds=300, what="every score live")
    assert fingerprint(server) == "tiny@v1"
    (update,) = server.rows("SELECT * FROM updates")
    assert '"policy/masked_fraction": 0.0' in update["metrics"], "vLLM's logprobs are those of the learner's own policy"

    # The learner compares the probes of version 1 with its own logprobs before it takes up anything more.
    for _ in range(BATCH):
        answered = chat(server).raise_for_status().json()["id"]
        call(server, "POST", "/v1/feedback", json={"completion_id": answered, "value": 0.0}).raise_for_status()
    until(lambda: fingerprint(server) == "tiny@v2", seconds=300, what="the second version")
    checked = server.rows("SELECT mean_abs_difference AS d FROM probes WHERE policy_version = 1 AND mean_abs_difference IS NOT NULL")
    assert checked
    assert max(row["d"] for row in checked) < 1e-3

    assert call(server, "POST", "/admin/policies/0/activate", json={"reason": "back"}).status_code == 202
    until(lambda: fingerprint(server) == "tiny@v0", seconds=60, what="the rollback")


def test_a_version_asked_for_by_its_number(server: Server, publish: str) -> None:
    """Beside the one being served where adapters are, and otherwise said not to be loaded."""
    listed = {model["id"] for model in call(server, "GET", "/v1/models").json()["data"]}
    answer = chat(server, "tiny@v1")
    if publish == "adapter":
        assert {"tiny", "tiny@v0", "tiny@v1", "tiny@v2"} <= listed
        assert answer.raise_for_status().json()["system_fingerprint"] == "tiny@v1"
        (row,) = server.rows(f"SELECT policy_version AS v FROM interactions WHERE completion_id = '{answer.json()['id']}'")
        assert row["v"] == 1
    else:
        assert listed == {"tiny", "tiny@v0"}
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "version_not_loaded")
    for unknown in ("tiny@v3", "tiny@v99"):
        refused = chat(server, unknown)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "version_not_loaded")
    assert fingerprint(server) == "tiny@v0"


def vllm_metrics(server: Server) -> dict[str, float]:
    found = text_string_to_metric_families(call(server, "GET", "/metrics").text)
    return {sample.name: sample.value for family in found for sample in family.samples if sample.name.startswith("vllm:")}


def test_its_metrics_are_on_the_page_and_start_anew_with_a_new_core(server: Server) -> None:
    before = vllm_metrics(server)
    chat(server).raise_for_status()
    after = vllm_metrics(server)
    assert after["vllm:generation_tokens_total"] > before["vllm:generation_tokens_total"] > 0
    assert {"vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:time_to_first_token_seconds_bucket"} <= set(after)


def test_a_killed_core_is_said_and_comes_back_without_a_restart(server: Server) -> None:
    before = fingerprint(server)
    next(process for process in cores(server) if process.name() == "VLLM::EngineCore").kill()
    until(lambda: call(server, "GET", "/readyz").status_code == 503, seconds=10, what="not ready")
    refused = chat(server)
    assert refused.status_code == 503
    assert "engine" in refused.json()["error"]["message"]
    until(lambda: call(server, "GET", "/readyz").status_code == 200, seconds=180, what="ready again")
    assert fingerprint(server) == before
    assert len(cores(server)) == 2, "of the dead core nothing is left"
    assert vllm_metrics(server)["vllm:generation_tokens_total"] > 0, "counted once, by the new core"


def test_it_ends_in_seconds_and_leaves_nothing(server: Server) -> None:
    left = cores(server)
    assert server.stop() < 15
    assert not [process for process in left if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
