"""Every command of docs/adaptation.md: simulated runs against the stand-in, in their order and a tenth as long; the benchmarks' arguments as read."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from online_sao.benchmarks import adaptation, base_rates
from online_sao.cli import app
from online_sao.simulation import run as run_module
from online_sao.simulation.preferences import PREFERENCES

DOCUMENT = Path(__file__).parents[3] / "docs" / "adaptation.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(start):
    lines = [line for block in BLOCK.findall(DOCUMENT.read_text()) for line in block.splitlines()]
    return [shlex.split(line)[len(start.split()) :] for line in lines if line.startswith(start)]


def test_simulations_run_as_documented(stand_in, tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(run_module, "OPEN_RECEIPTS", ())  # the stand-in never takes a batch that is not full
    monkeypatch.chdir(tmp_path)
    documented = commands("online-sao simulate")
    assert len(documented) == 5
    for arguments in documented:
        stand_in.version = 0
        for name in ("queued", "stored"):
            getattr(stand_in, name).clear()
        where = [] if "--compare" in arguments else ["--url", stand_in.url]
        arguments = [argument.replace(":160", ":16") for argument in arguments]
        if "--preference" in arguments:
            arguments += ["--scores", "16"]
        done = CliRunner().invoke(app, ["simulate", *arguments, *where])
        assert done.exit_code == 0, (arguments, done.output, done.exception)
    assert (tmp_path / "shift.json").is_file()
    assert (tmp_path / "compared.png").read_bytes().startswith(b"\x89PNG")


def test_the_benchmarks_take_the_documented_arguments():
    documented = [adaptation._arguments(arguments) for arguments in commands("online-sao bench adaptation")]
    phases = [len(adaptation._options(arguments, 1).plan().phases) for arguments in documented]
    assert sorted(phases) == [1, *[3] * (len(documented) - 1)]  # one long phase, and the experiment in its variants
    assert len(documented) > 1
    (rates,) = re.findall(r"`online-sao bench base-rates (.*?)`", DOCUMENT.read_text())
    assert base_rates._arguments(shlex.split(rates)).samples == 384


@pytest.mark.parametrize("name", PREFERENCES)
def test_the_table_says_what_the_rules_say(name):
    (line,) = [line for line in DOCUMENT.read_text().splitlines() if line.startswith(f"| `{name}` |")]
    rule = PREFERENCES[name]
    assert [float(cell) for cell in line.strip("| ").split(" | ")[-2:]] == [rule.base_rate, rule.thumbs_rate]
