"""How the commands find the service, and what they say where there is none."""

from __future__ import annotations

import ssl

import httpx
import pytest

from online_sao.commands.service import find_service


@pytest.mark.parametrize(
    ("file", "environment", "flags", "url", "token"),
    [
        ("", {}, (), "http://127.0.0.1:8000", None),
        ("[server]\nport = 8123\napi_token = 'from file'\n", {}, (), "http://127.0.0.1:8123", "Bearer from file"),
        ("[server]\nport = 8123\n", {"PORT": "8124", "API_TOKEN": "secret"}, (), "http://127.0.0.1:8124", "Bearer secret"),
        ("[server]\nhost = '0.0.0.0'\n", {}, (), "http://127.0.0.1:8000", None),
        ("[server]\nhost = '::1'\n", {}, (), "http://[::1]:8000", None),
        ("[server]\nport = 8123\napi_token = 'x'\n", {}, ("--url", "http://box:9/", "--api-key", "flag"), "http://box:9", "Bearer flag"),
    ],
)
def test_it_is_found_by_the_settings_and_flags_win(service, run, tmp_path, monkeypatch, file, environment, flags, url, token):
    (tmp_path / "online-sao.toml").write_text(file)
    for name, value in environment.items():
        monkeypatch.setenv(f"ONLINE_SAO_SERVER__{name}", value)
    done = run("learner", "status", *flags)
    assert done.exit_code == 0, done.exception
    assert service.asked == [("GET", f"{url}/admin/status", {}, token)]


@pytest.mark.parametrize(
    "command",
    [
        ("learner", "status"),
        ("learner", "pause"),
        ("learner", "resume"),
        ("policies", "list"),
        ("policies", "show", "1"),
        ("policies", "diff", "1", "2"),
        ("policies", "rollback", "1"),
        ("alarms",),
        ("erase", "--user", "eve", "--yes"),
        ("simulate",),
    ],
)
def test_every_command_takes_a_settings_file(service, run, tmp_path, command):
    (tmp_path / "there.toml").write_text("[server]\nport = 0\n")
    done = run(*command, "--config", str(tmp_path / "there.toml"))
    assert "server.port is 0" in done.exception.message
    assert service.asked == []


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("127.0.0.1:8123", "has no scheme. Write http://127.0.0.1:8123"),
        ("localhost", "has no scheme. Write http://localhost"),
        ("ftp://box:1", "not ftp. Write http://box:1"),
        ("http://", "names no host"),
        ("http://box:port", "is no address"),
    ],
)
def test_an_address_that_is_none_is_said_before_anything_is_asked(service, run, url, words):
    for command in (("learner", "status"), ("simulate",)):
        message = run(*command, "--url", url).exception.message
        assert words in message
        assert "serve" not in message, "starting a service would not help"
    assert service.asked == []


def failing(error, cause=None):
    def request(*_args, **_kwargs):
        raise error from cause

    return request


@pytest.mark.parametrize(
    ("method", "error", "cause", "words", "not_said"),
    [
        ("GET", httpx.ConnectError("refused"), None, "Nothing answers at", "took the request"),
        ("GET", httpx.ConnectError("wrong version"), ssl.SSLError("wrong version"), "try --url http://box:1", "online-sao serve"),
        ("POST", httpx.ReadTimeout("timed out"), None, "Whether it did what was asked is not known", "Nothing has been changed"),
        ("GET", httpx.ReadTimeout("timed out"), None, "gave no answer", "not known"),
    ],
)
def test_no_answer_is_told_as_what_it_is(service, monkeypatch, method, error, cause, words, not_said):
    monkeypatch.setattr(httpx, "request", failing(error, cause))
    with pytest.raises(Exception, match=words) as raised:
        find_service("https://box:1", "key", None).call(method, "/admin/status")
    assert not_said not in raised.value.message


def test_a_missing_token_is_said_with_where_to_set_it(service, run):
    service.answers["GET /admin/status"] = (401, {"error": {"message": "This server needs its token"}})
    assert "server.api_token" in run("learner", "status").exception.message
