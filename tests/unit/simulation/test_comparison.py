"""Results side by side, and files that are none."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from simulated_results import simulated_result

from online_sao.errors import ConfigurationError
from online_sao.simulation.comparison import comparison_table, labels, load_results
from online_sao.simulation.run import SimulationOptions


@pytest.fixture
def files(tmp_path):
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.write_text(json.dumps(simulated_result(SimulationOptions(schedule="first-person:40,plain-words:40", window=20), [(0.1, 0.8), (0.1, 0.6)])))
    two.write_text(json.dumps(simulated_result(SimulationOptions(schedule="first-person:40", window=20, control=False), [(0.1, 0.5)], failures=3)))
    return [one, two]


def test_runs_stand_side_by_side(files):
    results = load_results(files)
    printed = io.StringIO()
    Console(file=printed, width=100).print(comparison_table(results, labels(files)))
    lines = [line.split() for line in printed.getvalue().splitlines()]
    assert ["one", "two"] in lines
    assert ["phase", "2", "plain-words", "–"] in lines
    first, second = results[0]["phases"]
    assert ["difference", f"{first['difference']:+.3f}", "–"] in lines
    assert ["difference", f"{second['difference']:+.3f}", "–"] in lines
    assert ["calls", "not", "2xx", "0", "3"] in lines


def test_labels_tell_files_apart():
    assert labels([Path("a/x.json"), Path("b/y.json")]) == ["x", "y"]
    assert labels([Path("a/x.json"), Path("b/x.json")]) == ["a/x.json", "b/x.json"]


@pytest.mark.parametrize("content", [None, "not json", "[]", '{"options": {}, "difference": 0.3}'])
def test_files_that_are_no_results_are_refused_by_name(tmp_path, content):
    path = tmp_path / "odd.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigurationError, match=r"odd\.json"):
        load_results([path])
