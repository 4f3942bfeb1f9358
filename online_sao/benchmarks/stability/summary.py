"""What a run comes to, and when it counts as collapsed. Pure; the definition was fixed before any recipe was compared.

Collapse. Success rates are smoothed over the last 20 updates. The floor is half of the best smoothed rate so far, or the warm start's own rate less
0.1, whichever is higher. A run has collapsed at the first of 20 updates in a row whose smoothed rate is below the floor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from online_sao.benchmarks.tiny_policy.curves import finite_mean, numbers, smoothed

WINDOW = 20
"""Updates that are smoothed over, and that a fall must last."""
BELOW_WARM_START = 0.1
FULL_WINDOW = 256
"""Trajectories without which explained variance says little (docs/design.md §4)."""

COLLAPSE = (
    f"Collapse: the success rate, smoothed over {WINDOW} updates, is for {WINDOW} updates in a row below half of its best so far, or below the warm "
    f"start's less {BELOW_WARM_START} where that is higher. The first of these updates is given."
)


def collapse(success: Sequence[float], warm: float) -> int | None:
    """The update, from 1, at which a run collapsed; None if it did not. ``success``: of every update; ``warm``: of the warm start."""
    rates = smoothed(success, WINDOW)
    offset = len(success) - len(rates) + 1
    best, below = warm, 0
    for place, rate in enumerate(rates):
        best = max(best, rate)
        below = below + 1 if rate < max(best / 2, warm - BELOW_WARM_START) else 0
        if below == WINDOW:
            return place - WINDOW + 1 + offset
    return None


def summarise(result: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one run (training.run) that tables and claims are made of. Of a critic there are none where no value model was trained."""
    series = {name: numbers(values) for name, values in result["series"].items()}
    rates = smoothed(series["data/success_rate"], WINDOW)
    best = max(rates)
    critic = any(series["value/updates"])
    counts = series["value/explained_variance_trajectories"]
    judged = [explained for explained, count in zip(series["value/explained_variance"], counts, strict=True) if count >= FULL_WINDOW]
    return {
        "final_success": rates[-1],
        "best_success": best,
        "best_update": len(series["data/success_rate"]) - len(rates) + 1 + rates.index(best),
        "collapse_update": collapse(series["data/success_rate"], result["held_out"]["before"]),
        "held_out_before": result["held_out"]["before"],
        "held_out_after": result["held_out"]["after"],
        "masked_fraction": finite_mean(series["policy/masked_fraction"]),
        "ess_fraction": finite_mean(series["policy/ess_fraction"]),
        "kl_behavior_current_k3": finite_mean(series["policy/kl_behavior_current_k3"]),
        "kl_base": finite_mean(series["policy/kl_base"][-WINDOW:]),
        "entropy": finite_mean(series["policy/entropy"][-WINDOW:]),
        "policy_grad_norm": finite_mean(series["policy/grad_norm"]),
        "value_grad_norm": finite_mean(series["value/grad_norm"]) if critic else None,
        "explained_variance": finite_mean(judged or series["value/explained_variance"]) if critic else None,
        "problems": len(result["problems"]),
    }
