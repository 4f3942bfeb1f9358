"""Base rates by hand, and answers of an earlier run scored again."""

import json

import pytest

from online_sao.benchmarks.base_rates import both_pleased, main, rates
from online_sao.simulation.preferences import EXCLUSIVE_PAIRS, PREFERENCES


def test_rates_are_means_with_their_error():
    rows = {(row["preference"], row["scale"]): row for row in rates(["I do.", "You do.", "I know my own.", "They do."])}
    assert len(rows) == 2 * len(PREFERENCES)
    graded, thumbs = rows["first-person", "graded"], rows["first-person", "thumbs"]
    assert (graded["base_rate"], graded["above_zero"]) == (0.375, 0.5)
    assert thumbs["base_rate"] == 0.5
    assert thumbs["standard_error"] == pytest.approx(0.2887, abs=1e-4)  # sqrt(1/3) / 2


def test_no_text_pleases_both_of_a_pair():
    assert both_pleased(["I do.", "you do", "magnificent"]) == {f"{one} / {other}": 0 for one, other in EXCLUSIVE_PAIRS}


def test_answers_of_an_earlier_run_are_scored_again(tmp_path, capsys):
    (tmp_path / "before.json").write_text(json.dumps({"texts": ["I do.", "You do."]}))
    assert main(["--texts", str(tmp_path / "before.json")]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["samples"] == 2
    assert result["texts"] == ["I do.", "You do."]
