"""Gates: each bound on both sides, and whatever cannot be judged is refused."""

import math
from dataclasses import dataclass, field

import pytest

from online_sao.config import GateSettings
from online_sao.publishing.gates import check

GOOD = {"policy/masked_fraction": 0.1, "policy/kl_base": 0.2, "policy/entropy": 2.0, "policy/grad_norm": 3.0, "value/loss": 1.0}
GATES = GateSettings(max_masked_fraction=0.5, max_kl_base=1.0, min_entropy=0.1, max_grad_norm=100.0)


@dataclass
class Report:
    metrics: dict[str, float] = field(default_factory=lambda: dict(GOOD))
    problem: str | None = None


def test_a_good_update_passes():
    assert check(Report(), GATES) is None


@pytest.mark.parametrize(
    ("metric", "value", "refused"),
    [
        ("policy/masked_fraction", 0.5, False),
        ("policy/masked_fraction", 0.5001, True),
        ("policy/kl_base", 1.0, False),
        ("policy/kl_base", 1.0001, True),
        ("policy/entropy", 0.1, False),
        ("policy/entropy", 0.0999, True),
        ("policy/grad_norm", 100.0, False),
        ("policy/grad_norm", 100.1, True),
        ("policy/masked_fraction", math.nan, True),
        ("policy/kl_base", math.inf, True),
        ("policy/entropy", math.nan, True),
        ("value/loss", math.nan, True),
        ("value/loss", 1e9, False),
    ],
)
def test_bounds(metric, value, refused):
    reason = check(Report({**GOOD, metric: value}), GATES)
    assert (reason is not None) == refused
    assert reason is None or reason.startswith(metric)


@pytest.mark.parametrize("metric", ["policy/masked_fraction", "policy/kl_base", "policy/entropy", "policy/grad_norm"])
def test_an_update_that_does_not_report_a_bounded_metric_is_refused(metric):
    metrics = {name: value for name, value in GOOD.items() if name != metric}
    assert check(Report(metrics), GATES) == f"{metric} was not reported"


def test_a_problem_is_reason_enough():
    assert check(Report(problem="the policy's loss is not finite"), GATES) == "the policy's loss is not finite"


def test_the_reason_names_both_numbers_and_the_setting():
    assert check(Report({**GOOD, "policy/entropy": 0.01}), GATES) == "policy/entropy is 0.01, below gates.min_entropy = 0.1"
