"""Every command of docs/operations.md and its pages, in their order, on a service that has been used: versions, answers, scores."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from server_process import ROOT, Server, user
from test_api_activation import publish
from test_api_rollback import served
from tiny_model import tiny_model

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STANDS_FOR = {"12": "1", "15": "2"}
"""Versions of the page, and those that the service here has."""
TALKS_TO_THE_SERVICE = ("policies", "learner", "alarms", "erase", "scores")
NEEDS_THE_SERVICE_STOPPED = "pretrain-value"
OTHER_PROGRAMS = ("tensorboard", "make", "cp", "mkdir", "docker", "pg_dump", "pg_restore")
"""Not installed with it, or not its own. The backup of PostgreSQL has a test of its own, in integration/postgresql."""
CLUSTERS = ROOT / "docs" / "operations" / "clusters.md"
"""Its commands start services, and are those of other programs."""
PAGES = (ROOT / "docs" / "operations.md", *(page for page in sorted((ROOT / "docs" / "operations").glob("*.md")) if page != CLUSTERS))


def documented() -> list[list[str]]:
    blocks = [block for page in PAGES for kind, block in BLOCK.findall(page.read_text()) if kind in ("", "sh")]
    lines = [line for block in blocks for line in block.splitlines()]
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words and words[0] not in OTHER_PROGRAMS]


def run(folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("ONLINE_SAO_")}
    environment = {**inherited, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "-m", "online_sao.cli", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def chat(server: Server, question: str, person: str) -> str:
    body = {"model": "tiny", "messages": user(question), "max_tokens": 8, "user": person}
    return str(httpx.post(f"{server.url}/v1/chat/completions", json=body, trust_env=False, timeout=60).raise_for_status().json()["id"])


def used(server: Server) -> None:
    for version in (1, 2):
        publish(server, version, seed=version)
        served(server, version)
        for number in range(8):
            score = {"completion_id": chat(server, f"What is {number}?", "ada"), "value": number / 8}
            httpx.post(f"{server.url}/v1/feedback", json=score, trust_env=False, timeout=60).raise_for_status()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "data", {"ONLINE_SAO_POLICY__LORA_RANK": "4"}).start()  # that of the versions published below
    yield server
    if server.process is not None and server.process.poll() is None:
        server.stop()


def test_the_commands_run_as_written(server: Server, tmp_path: Path) -> None:
    commands = documented()
    assert {words[1] for words in commands} == {*TALKS_TO_THE_SERVICE, "doctor", "export", "replay", "db", NEEDS_THE_SERVICE_STOPPED}
    (tmp_path / "online-sao.toml").write_text(f'[policy]\nmodel = "{tiny_model()}"\nname = "tiny"\nlora_rank = 4\n[server]\nport = {server.port}\n')
    used(server)
    chat(server, "Who am I?", "eve")
    stands_for = {**STANDS_FOR, "chatcmpl-…": chat(server, "And I?", "bob")}
    for program, *arguments in commands:
        assert program == "online-sao"
        if arguments[0] in TALKS_TO_THE_SERVICE:
            arguments = [stands_for.get(word, word) for word in arguments] + ["--url", server.url]
        if arguments[0] == "erase":
            arguments.append("--yes")
        if arguments[0] == NEEDS_THE_SERVICE_STOPPED:
            server.stop()
        done = run(tmp_path, arguments)
        assert done.returncode == 0, f"{arguments}:\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip() or (arguments[0] == "export" and (tmp_path / "scores.jsonl").is_file()), arguments
    assert (tmp_path / "replay-1" / "updates.jsonl").read_text().strip()


def test_a_copy_of_the_stopped_service_serves_what_it_did(server: Server, tmp_path: Path) -> None:
    used(server)
    completion = chat(server, "Who am I?", "eve")
    score = {"completion_id": completion, "value": 1.0}
    receipt = httpx.post(f"{server.url}/v1/feedback", json=score, trust_env=False, timeout=60).raise_for_status().json()["id"]
    server.stop()
    shutil.copytree(server.data_dir, tmp_path / "copy")
    shutil.rmtree(server.data_dir)
    settings = f'[policy]\nmodel = "{tiny_model()}"\nname = "tiny"\nlora_rank = 4\n[server]\nport = 0\n'
    (tmp_path / "online-sao.toml").write_text(settings)
    checked = run(tmp_path, ["doctor", "--data-dir", str(tmp_path / "copy"), "--no-self-check"])
    assert checked.returncode == 0, checked.stdout
    restored = Server(tmp_path / "copy", server.environment).start()
    try:
        answer = httpx.post(
            f"{restored.url}/v1/chat/completions",
            json={"model": "tiny", "messages": user("Still there?"), "max_tokens": 4},
            trust_env=False,
            timeout=60,
        )
        assert answer.json()["system_fingerprint"] == "tiny@v2"
        assert httpx.get(f"{restored.url}/v1/feedback/{receipt}", trust_env=False, timeout=60).json()["completion_id"] == completion
    finally:
        restored.stop()


def test_links_between_the_pages_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text()):
            there = (page.parent / target).resolve() if target else page
            assert there.exists(), (page, target)
            if anchor and there.suffix == ".md":
                headings = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
                anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in anchors, (page, target, anchor)
