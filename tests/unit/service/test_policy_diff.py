"""Why a version has no evaluation, as far as it can be known."""

from __future__ import annotations

import pytest

from online_sao.config import EvaluationSettings
from online_sao.service.policy_diff import evaluation_problem
from online_sao.service.status import VersionStatus
from online_sao.types import VersionState


@pytest.mark.parametrize(
    ("enabled", "activated_at", "retired_at", "words"),
    [
        (False, 10.0, 14.0, "evaluation.enabled is off"),
        (True, None, None, "it has not served"),
        (True, 10.0, None, "it serves now"),
        (True, 10.0, 14.0, "it served 4 s before a newer one came, and evaluations are at least 60 s apart (evaluation.min_interval_seconds)"),
        (True, 10.0, 410.0, "it served 400 s"),
        (True, 14.0, 10.0, "it served 0 s"),
    ],
)
def test_a_missing_evaluation_has_its_reason(enabled, activated_at, retired_at, words):
    version = VersionStatus(
        version=4,
        parent=3,
        lineage_epoch=0,
        state=VersionState.RETIRED,
        reason=None,
        update=4,
        created_at=9.0,
        activated_at=activated_at,
        retired_at=retired_at,
        mean_score=None,
        scores=0,
    )
    assert words in evaluation_problem(version, EvaluationSettings(enabled=enabled))
