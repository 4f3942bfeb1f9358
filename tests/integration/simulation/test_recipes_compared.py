"""Recipes compared run by run against the stand-in: their order, what each is asked, what is skipped, and the report at the end."""

import json
from typing import ClassVar

import pytest

from online_sao.benchmarks import adaptation
from online_sao.benchmarks.local_server import ServerFailedError
from online_sao.simulation import run as run_module

SCHEDULE = "first-person:16,plain-words:16,ornate-words:16"


@pytest.fixture
def servers(stand_in, monkeypatch):
    """Every server that is started is the stand-in, as good as new, with what it was started with; ``failing``: those that do not start."""
    monkeypatch.setattr(run_module, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(run_module, "OPEN_RECEIPTS", ())

    class Local:
        started: ClassVar = []
        failing: ClassVar = set()

        def __init__(self, data_dir, settings):
            self.url = stand_in.url
            self.data_dir, self.settings = data_dir, settings

        def __enter__(self):
            stand_in.prompts = []
            self.started.append((self.settings, stand_in.prompts))
            if self.settings["learning.recipe"] in self.failing:
                raise ServerFailedError("it would not start")
            if not self.data_dir.exists():
                self.data_dir.mkdir(parents=True)
                stand_in.version = 0
            return self

        def __exit__(self, *error):
            for name in ("queued", "stored"):
                getattr(stand_in, name).clear()

    monkeypatch.setattr(adaptation, "LocalServer", Local)
    return Local


def command(out, *more):
    numbers = ["--users", "1", "--window", "8", "--held-out", "1", "--controls", "frozen", "--schedule", SCHEDULE]
    return ["--recipes", "sao", "running-mean", "--out", str(out), *numbers, *more]


def test_every_recipe_of_a_seed_is_asked_the_same_and_seeds_take_turns(servers, tmp_path):
    assert adaptation.main(command(tmp_path, "--seeds", "1", "2", "--engine", "vllm")) == 0
    started = [(settings["learning.seed"], settings["learning.recipe"]) for settings, _ in servers.started]
    assert started == [("1", "sao"), ("1", "running-mean"), ("2", "sao"), ("2", "running-mean")]
    assert all(settings["engine.kind"] == "vllm" and settings["learning.preset"] == "live" for settings, _ in servers.started)
    prompts = [asked for _, asked in servers.started]
    assert sorted(prompts[0]) == sorted(prompts[1]) != sorted(prompts[2])
    names = [f"{recipe}-seed-{seed}.json" for recipe in ("running-mean", "sao") for seed in (1, 2)]
    assert sorted(path.name for path in tmp_path.glob("*.json")) == names
    report = (tmp_path / "report.md").read_text()
    assert "### By seed, against `running-mean`" in report
    assert "| **the goal** | **undecided** |" in report
    assert not list((tmp_path / "data").iterdir())


def test_an_interrupted_comparison_goes_on_where_it_stopped(servers, tmp_path):
    servers.failing = {"running-mean"}
    assert adaptation.main(command(tmp_path, "--seeds", "1")) == 1
    kept = (tmp_path / "sao-seed-1.json").read_text()
    servers.failing = set()
    servers.started.clear()
    assert adaptation.main(command(tmp_path, "--seeds", "1")) == 0
    assert [settings["learning.recipe"] for settings, _ in servers.started] == ["running-mean"]
    assert (tmp_path / "sao-seed-1.json").read_text() == kept


def test_both_populations_stand_in_one_report(servers, tmp_path):
    assert adaptation.main(command(tmp_path, "--seeds", "1", "--population", "uniform", "mixed")) == 0
    mixed = json.loads((tmp_path / "sao-mixed-seed-1.json").read_text())
    assert [phase["name"] for phase in mixed["runs"]["real"]["phases"]][1:] == ["plain-words/ornate-words", "ornate-words/plain-words"]
    assert {interaction["context"] for interaction in mixed["runs"]["real"]["interactions"]} == {"parent", "poet"}
    report = (tmp_path / "report.md").read_text()
    assert "## Uniform population" in report
    assert "## Mixed population" in report
