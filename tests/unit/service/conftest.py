"""Settings that no file of the working directory can change."""

from pathlib import Path

import pytest

from online_sao.config import Settings


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    return Settings()
