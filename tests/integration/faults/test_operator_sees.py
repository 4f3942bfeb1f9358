"""Alarms and evaluations of a real server, over HTTP."""

from __future__ import annotations

import math

import httpx
from server_process import Server, until

from online_sao.service.evaluation_material import PROMPTS


def test_alarms_and_evaluations_over_http(tmp_path):
    server = Server(tmp_path / "data", {"ONLINE_SAO_ALARMS__DISK_FREE_MEGABYTES": "1e12", "ONLINE_SAO_ALARMS__POLL_SECONDS": "0.5"}).start()
    try:

        def get(path: str) -> dict[str, object]:
            return httpx.get(f"{server.url}{path}", trust_env=False, timeout=30).raise_for_status().json()

        (alarm,) = until(lambda: get("/admin/alarms?open=true")["data"], seconds=60, what="the alarm")
        assert (alarm["object"], alarm["kind"], alarm["severity"], alarm["cleared_at"]) == ("alarm", "disk_nearly_full", "critical", None)
        assert alarm["advice"]
        assert [found["kind"] for found in get("/admin/status")["alarms"]] == ["disk_nearly_full"]

        (evaluation,) = until(lambda: get("/admin/evaluations")["data"], seconds=240, what="the evaluation of the base")
        assert (evaluation["object"], evaluation["policy_version"]) == ("evaluation", 0)
        assert [sample["prompt"] for sample in evaluation["samples"]] == list(PROMPTS)
        assert 1 < evaluation["perplexity"] < math.inf
        assert evaluation["perplexity_tokens"] > 200
        assert 0 < evaluation["distinct_2"] <= 1
        assert len(server.rows("SELECT 1 FROM probes")) == 2

        metrics = httpx.get(f"{server.url}/metrics", trust_env=False).text
        assert 'online_sao_alarm{kind="disk_nearly_full"} 1.0' in metrics
        assert 'online_sao_evaluation{measure="policy_version"} 0.0' in metrics
    finally:
        server.stop()
