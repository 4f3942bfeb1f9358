"""Gates: may these weights be served? Pure functions of what an update reports. Owns the bounds' meaning; the numbers are settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from online_sao.config import GateSettings


class UpdateSummary(Protocol):
    """What a gate looks at. ``problem``: why a step could not be applied, if one could not."""

    @property
    def metrics(self) -> Mapping[str, float]: ...

    @property
    def problem(self) -> str | None: ...


def check(report: UpdateSummary, gates: GateSettings) -> str | None:
    """None if the update may be published, else why not: the first bound it breaks, with both numbers.

    A metric that is missing or not a finite number breaks its bound: what cannot be judged is not served.
    """
    if report.problem is not None:
        return report.problem
    broken = sorted(name for name, value in report.metrics.items() if not math.isfinite(value))
    if broken:
        return f"{broken[0]} is not a finite number"
    bounds = (
        ("policy/masked_fraction", -math.inf, gates.max_masked_fraction, "gates.max_masked_fraction"),
        ("policy/kl_base", -math.inf, gates.max_kl_base, "gates.max_kl_base"),
        ("policy/entropy", gates.min_entropy, math.inf, "gates.min_entropy"),
        ("policy/grad_norm", -math.inf, gates.max_grad_norm, "gates.max_grad_norm"),
    )
    for name, lowest, highest, setting in bounds:
        value = report.metrics.get(name)
        if value is None:
            return f"{name} was not reported"
        if value > highest:
            return f"{name} is {value:.4g}, above {setting} = {highest:g}"
        if value < lowest:
            return f"{name} is {value:.4g}, below {setting} = {lowest:g}"
    return None
