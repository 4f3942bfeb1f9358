"""Export and replay: what cannot work is said at once, and nothing is touched; and what a misspelt setting was meant to be."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

from online_sao.commands.common import load_settings
from online_sao.commands.export import _time
from online_sao.errors import ConfigurationError
from online_sao.storage.migrations import upgrade
from online_sao.wording import did_you_mean


@pytest.mark.parametrize("text", ["-5", "2026", "1769882400000", "nan", "inf", "yesterday", "1e300"])
def test_what_is_no_date_is_refused(text):
    with pytest.raises(ConfigurationError, match="is no time"):
        _time(text, "--since")


@pytest.mark.parametrize("text", ["2026-01-31T18:00", "2026-01-31T19:00+01:00", "1769882400", "20260131T18"])
def test_a_time_in_every_form_that_the_message_names(text):
    assert _time(text, "--since") == 1769882400.0


def test_reversed_dates_are_refused(run):
    done = run("export", "--out", "x.jsonl", "--since", "2026-12-01", "--until", "2026-11-01")
    assert "--since 2026-12-01 is not before --until 2026-11-01" in done.exception.message


def test_where_nothing_matches_no_file_is_replaced_or_made(run, tmp_path):
    asyncio.run(upgrade(f"sqlite+aiosqlite:///{tmp_path / 'data' / 'online_sao.db'}"))
    old = tmp_path / "old.jsonl"
    old.write_text("precious")
    for out in (old, tmp_path / "new" / "x.jsonl"):
        done = run("export", "--data-dir", "data", "--out", str(out), "--user", "nobody")
        assert done.exit_code == 1
        assert "No logged interaction matches" in done.stderr
        assert done.stdout == ""
    assert old.read_text() == "precious"
    assert not (tmp_path / "new").exists()


def test_a_data_folder_without_a_database_is_probably_the_wrong_one(run, tmp_path):
    message = run("export", "--data-dir", str(tmp_path / "typo"), "--out", "x.jsonl").exception.message
    assert message.index("--data-dir") < message.index("db upgrade")


@pytest.fixture
def light(monkeypatch):
    """A replay that is refused while the engine of its work has not been imported."""
    monkeypatch.setitem(sys.modules, "online_sao.runtime.replay", None)


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        ("", (), "is empty"),
        ('{"object": "something"}', (), "no export"),
        ("not JSON", (), "no file of JSON lines"),
        (None, (), "cannot be read"),
        ("export", ("--out", "done"), "holds a replay already"),
        ("export", ("--out", "export.jsonl"), "is a file"),
        ("header", (), "holds no scored interaction"),
        ("export", ("--recipe", "sso"), "known: batch-mean/live, batch-mean/paper, ema/live, "),
        ("export", ("--preset", "dead"), "known: batch-mean/live, batch-mean/paper, ema/live, "),
        ("export", ("--set", "policy_learning=1"), "Did you mean policy_learning_rate? It has epsilon_low, "),
        ("export", ("--set", "weigh=1"), "no such number"),
        ("export", ("--set", "batch_size=1.5"), "is a whole number"),
        ("export", ("--set", "batch_size=0"), "must be above 0"),
    ],
)
def test_a_replay_that_cannot_work_is_refused_before_any_model(run, light, tmp_path, content, arguments, words):
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "updates.jsonl").touch()
    if content is not None:
        whole = {"header": [HEADER], "export": [HEADER, LINE]}.get(content)
        (tmp_path / "export.jsonl").write_text(content if whole is None else "".join(json.dumps(line) + "\n" for line in whole))
    done = run("replay", "export.jsonl", "--out", "out", *arguments)
    assert words in done.exception.message
    assert not (tmp_path / "out").exists()


HEADER = {"object": "online_sao.export", "format": 1, "reward": {"score_min": 0.0, "score_max": 1.0, "metric_weights": {"score": 1.0}}}
LINE = {
    "object": "interaction",
    "completion_id": "c1",
    "choice": 0,
    "stored": True,
    "status": "completed",
    "finish_reason": "stop",
    "text": "",
    "prompt_ids": [1, 2],
    "token_ids": [3],
    "behavior_logprobs": [-0.5],
    "version_spans": [[0, 1, 0]],
    "sampling": {"max_tokens": 8, "temperature": 1.0, "top_p": 1.0},
    "scores": [{"metric": "score", "value": 1.0, "created": 1.0, "counts": True}],
}


def test_reading_an_export_imports_no_torch():
    script = "import sys, online_sao.runtime.replay_input; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=300, check=False).returncode == 0


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("[server]\ncors_origin = []\n", "there is no setting server.cors_origin. Did you mean server.cors_origins?"),
        ("[servers]\nport = 1\n", r"there is no group \[servers\]. Did you mean server?"),
        ("port = 1\n", r"there is no group \[port\]. Did you mean server.port?"),
        ("[server]\nxyzzy = 1\n", "there is no setting server.xyzzy. docs/configuration.md"),
    ],
)
def test_a_misspelt_setting_is_said_in_plain_words(service, tmp_path, file, words):
    (tmp_path / "online-sao.toml").write_text(file)
    with pytest.raises(ConfigurationError, match=words.replace("?", r"\?")) as raised:
        load_settings(None)
    assert "Extra inputs" not in raised.value.message


def test_a_misspelt_variable_too(service, monkeypatch):
    monkeypatch.setenv("ONLINE_SAO_SERVER_PORT", "1")
    with pytest.raises(ConfigurationError, match=r"Did you mean ONLINE_SAO_SERVER__PORT\?"):
        load_settings(None)


def test_nothing_near_is_no_hint():
    assert did_you_mean("zebra", ["server.port"]) == ""


def test_defaults_told_in_help_are_not_taken_for_markup(run):
    assert "[default: 8000]" in run("serve", "--help", env={"COLUMNS": "200"}).output
