"""The wheel, installed apart from any checkout: it carries the migrations, and can go up and down."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from server_process import ROOT

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "online_sao", "api", "migrations")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prefix with the wheel alone in it; what it needs is this environment's."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)], check=True, timeout=300)
    shutil.rmtree(source)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--ignore-installed", "--prefix", str(folder / "prefix"), str(wheel)], check=True, timeout=300)
    return folder / "prefix"


def run(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    packages = sysconfig.get_path("purelib", vars={"base": str(installed)})
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("ONLINE_SAO_")}
    command = [sys.executable, "-m", "online_sao.cli", *arguments, "--data-dir", str(folder / "data")]
    environment = {**inherited, "PYTHONPATH": packages, "COLUMNS": "200"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_the_wheel_migrates_up_and_down(installed: Path, tmp_path: Path) -> None:
    where = [sys.executable, "-c", "import online_sao.storage.migrations as m; print(m._scripts())"]
    packages = sysconfig.get_path("purelib", vars={"base": str(installed)})
    told = subprocess.run(where, cwd=tmp_path, env={**os.environ, "PYTHONPATH": packages}, capture_output=True, text=True, timeout=300, check=True)
    assert Path(told.stdout.strip()) == (installed / "share" / "online-sao" / "migrations").resolve()
    assert run(installed, tmp_path, "db", "status").returncode == 2, "there is no database yet"
    up = run(installed, tmp_path, "db", "upgrade")
    assert up.returncode == 0, up.stderr
    assert run(installed, tmp_path, "db", "status").returncode == 0
    down = run(installed, tmp_path, "db", "downgrade", "0001", "--yes")
    assert "at revision 0001" in down.stdout, down.stderr
    assert run(installed, tmp_path, "db", "status").returncode == 1
