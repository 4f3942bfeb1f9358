"""The ingest benchmark on both databases, small: real servers, scores over HTTP, readings, and figures that are kept."""

import json
import os
import tempfile
from pathlib import Path

import pytest

from online_sao.benchmarks.ingest import main
from online_sao.errors import ConfigurationError

SMALL = ["--interactions", "300", "--connections", "4", "--scores", "40", "--rates", "50", "--seconds", "1", "--warmup", "10", "--repetitions", "2"]


@pytest.fixture
def out():
    # Started by root, PostgreSQL runs as another user, who may not enter pytest's own folders.
    with tempfile.TemporaryDirectory(prefix="ingest-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user only where root starts it")
def test_a_folder_that_postgresql_may_not_enter_is_named(tmp_path):
    tmp_path.chmod(0o700)
    with pytest.raises(ConfigurationError, match="may not enter"):
        main([*SMALL, "--databases", "postgresql", "--out", str(tmp_path)])


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_scores_are_sent_and_readings_made(database, out):
    command = ["--databases", database, "--out", str(out)]
    assert main([*SMALL, *command]) == 0
    result = json.loads((out / f"{database}.json").read_text())
    assert result["interactions"] == 300 + 10 + 40 + 50
    assert [burst["name"] for burst in result["bursts"]] == ["4 clients", "50/s"]
    assert all(burst["failed"] == 0 and burst["p99"] > 0 for burst in result["bursts"])
    assert result["bursts"][1]["rate"] <= 80
    assert {"snapshot", "unused answers"} <= set(result["readings"])
    assert f"**{database}**" in (out / "report.md").read_text()
    (out / f"{database}.json").unlink()
    assert main([*SMALL, *command]) == 0
    again = json.loads((out / f"{database}.json").read_text())
    assert again["interactions"] == 300 + 2 * (10 + 40 + 50), "the database is used again; what was scored is made up for"
