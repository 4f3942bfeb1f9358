"""The command line as a person meets it: real processes, what they print and their exit codes. No model is loaded."""

import os
import socket
import subprocess
import sys

import pytest

from online_sao.commands.common import load_settings
from online_sao.errors import ConfigurationError


def run_cli(*arguments, cwd, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ONLINE_SAO_")}
    clean["PYTHONPATH"] = os.getcwd()
    return subprocess.run(
        [sys.executable, "-m", "online_sao.cli", *arguments],
        cwd=cwd,
        env=clean | {"COLUMNS": "400"} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_lists_the_commands_without_importing_torch(tmp_path):
    script = "import sys; sys.argv = ['online-sao', '--help']\nfrom online_sao.cli import main\ntry: main()\nexcept SystemExit: pass\n"
    script += "sys.exit('torch' in sys.modules or 'fastapi' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for command in ("serve", "learn", "simulate", "db", "bench"):
        assert command in done.stdout


def test_version(tmp_path):
    done = run_cli("--version", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("online-sao ")


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (("serve", "--config", "nowhere.toml"), {}, "There is no settings file nowhere.toml"),
        (("serve", "--port", "70000"), {}, "server.port: Input should be less than or equal to 65535"),
        (("db", "upgrade"), {"ONLINE_SAO_REWARD__SCORE_MIN": "2"}, "reward.score_min (2.0) must be below"),
        (("db", "upgrade"), {"ONLINE_SAO_SERVER__PROT": "1"}, "server.prot"),
        (("db", "upgrade"), {"ONLINE_SAO_SERVER_PORT": "8799"}, "ONLINE_SAO_SERVER_PORT is no setting"),
        (("db", "upgrade"), {"ONLINE_SAO_CONFIG": "nowhere.toml"}, "there is no such file"),
        (("db", "upgrade"), {"ONLINE_SAO_REWARD__DEFAULT_SCORE": "7"}, "reward.default_score (7.0) must be from 0 to 1"),
        (("serve", "--ray-address", "10.0.0.1:6379"), {}, "say how many engines (--replicas)"),
        (("db", "upgrade"), {"ONLINE_SAO_REWARD__SCORE_MAX": "inf"}, "reward.score_max"),
        (("db", "upgrade"), {"ONLINE_SAO_STORAGE__DATABASE_URL": "sqlite+aiosqlite:////sys/kernel/x.db"}, "The database cannot be opened"),
        (("simulate", "--preference", "rude"), {}, "There is no preference 'rude'"),
        (("simulate", "--url", "http://127.0.0.1:9"), {}, "No service answers at http://127.0.0.1:9"),
    ],
)
def test_what_cannot_work_is_one_line_of_advice(tmp_path, arguments, environment, message):
    done = run_cli(*arguments, cwd=tmp_path, **environment)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_port_in_use_is_said_before_anything_slow(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run_cli("serve", "--port", str(taken.getsockname()[1]), cwd=tmp_path)
    assert done.returncode == 2
    assert "already in use" in done.stderr
    assert "--port" in done.stderr
    assert list(tmp_path.iterdir()) == [], "nothing was made on the way"


def test_a_broken_settings_file_is_one_line(tmp_path):
    (tmp_path / "online-sao.toml").write_text("[server\n")
    done = run_cli("db", "upgrade", cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_db_upgrade_makes_the_database(tmp_path):
    done = run_cli("db", "upgrade", "--data-dir", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "here" / "online_sao.db").is_file()


def test_flags_win_over_environment_over_file(tmp_path, monkeypatch):
    file = tmp_path / "settings.toml"
    file.write_text("[server]\nport = 1111\nhost = '127.0.0.2'\nmax_body_bytes = 77\n")
    monkeypatch.setenv("ONLINE_SAO_CONFIG", str(file))
    monkeypatch.setenv("ONLINE_SAO_SERVER__PORT", "2222")
    monkeypatch.setenv("ONLINE_SAO_SERVER__HOST", "127.0.0.3")
    settings = load_settings(None, server={"host": None, "port": 3333})
    assert (settings.server.port, settings.server.host, settings.server.max_body_bytes) == (3333, "127.0.0.3", 77)


def test_every_settings_fault_is_named():
    with pytest.raises(ConfigurationError, match=r"server\.port.*; engine\.threads"):
        load_settings(None, server={"port": -1}, engine={"threads": -1})
