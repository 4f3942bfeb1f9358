"""The command line in this process, beside a service that is none."""

from __future__ import annotations

import os

import httpx
import pytest
from fake_service import FakeService
from typer.testing import CliRunner

from online_sao.cli import app


@pytest.fixture
def service(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("ONLINE_SAO_")]:
        monkeypatch.delenv(name)
    fake = FakeService()
    monkeypatch.setattr(httpx, "request", fake.request)
    return fake


@pytest.fixture
def run(service):
    """Run a command; an error of ours is in ``exception``."""
    return lambda *arguments, **given: CliRunner().invoke(app, list(arguments), **given)
