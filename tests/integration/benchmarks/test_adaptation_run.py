"""One seed of the adaptation benchmark and the demo, as processes, with real servers and learners on the tiny model."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading

import httpx
import psutil
import pytest
from server_process import ROOT
from tiny_model import tiny_model

SECONDS = 1200
"""Four processes that import torch, on a machine that may be busy with other tests."""


def environment():
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ONLINE_SAO_")}
    tiny = {"ONLINE_SAO_POLICY__MODEL": str(tiny_model()), "ONLINE_SAO_POLICY__NAME": "tiny", "ONLINE_SAO_ENGINE__THREADS": "1"}
    learner = {"ONLINE_SAO_LEARNING__THREADS": "1", "ONLINE_SAO_LEARNING__BATCH_SIZE": "8"}
    return {**inherited, **tiny, **learner, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def test_a_seed_is_branched_at_the_shift_and_both_branches_go_on_from_what_was_learned(tmp_path):
    command = [sys.executable, "-m", "online_sao.cli", "bench", "adaptation", "--seeds", "5", "--out", str(tmp_path / "out")]
    command += ["--schedule", "short-sentences,no-commas", "--scores-per-phase", "16", "--window", "8", "--held-out", "1", "--set", "learning.seed=3"]
    done = subprocess.run(command, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out" / "seed-5.json").read_text())
    before, real, anchor_only = (result["runs"][name] for name in ("before", "real", "anchor-only"))
    assert [update["number"] for update in before["updates"]] == [1, 2]
    assert [update["number"] for update in real["updates"]] == [update["number"] for update in anchor_only["updates"]] == [3, 4]
    assert {i["policy_version"] for i in before["interactions"]} <= {0, 1, 2}
    assert min(i["policy_version"] for i in real["interactions"] + anchor_only["interactions"]) == 2
    assert all(i["receipt"]["reward"] == 0.0 for i in anchor_only["interactions"])
    assert [i["receipt"]["reward"] for i in real["interactions"]] == [pytest.approx(2 * i["score"] - 1) for i in real["interactions"]]
    assert result["summary"]["non_2xx"] == 0
    assert result["settings"]["learning.seed"] == "3"
    assert "| 2 no-commas |" in (tmp_path / "out" / "report.md").read_text()
    assert not list((tmp_path / "out" / "data").iterdir()), "the servers' data is removed"


def test_the_demo_serves_simulates_and_ends_both_on_ctrl_c(tmp_path):
    command = [sys.executable, "-m", "online_sao.cli", "demo", "--port", "0", "--schedule", "first-person:8", "--data-dir", str(tmp_path / "data")]
    process = subprocess.Popen(command, env=environment(), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    watchdog = threading.Timer(SECONDS, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "until Ctrl-C" in line:
                break
        printed = "".join(lines)
        assert "until Ctrl-C" in printed, printed
        assert "0 not 2xx" in printed
        url = printed.split("Watch it learn: ")[1].split("/dashboard")[0]
        assert httpx.get(f"{url}/healthz", trust_env=False).is_success
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2, "the server and its learner"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=90) == 0
        assert psutil.wait_procs(children, timeout=60)[1] == []
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_port_in_use_is_never_taken_for_the_demos_own_server(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        command = [sys.executable, "-m", "online_sao.cli", "demo", "--port", str(port)]
        done = subprocess.run(command, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert f"Port {port} cannot be had" in done.stderr
