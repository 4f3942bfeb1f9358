"""The claims that are tested, each with the rule that decides it, fixed before the runs. Pure: results in, verdicts out.

``reproduced`` and ``not reproduced`` each need evidence; all else is ``undecided``, missing recipes, lags and seeds among it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from online_sao.benchmarks.intervals import median_interval

Decision = Literal["reproduced", "not reproduced", "undecided"]
Result = Mapping[str, Any]

LEAST_SEEDS = 3
"""Seeds of a task and lag below which a collapse, or its absence, decides nothing."""
LEAST_PAIRS = 6
NO_DIFFERENCE = 0.02
"""Of success rates and explained variance: a difference surely smaller than this is none."""
NO_RATIO = 0.05
"""The same of gradient norms, in their logarithm."""
FEW = 0.05
"""Part of the action tokens that is still few."""
RECIPES = ("sao", "grpo", "grpo-dis", "vapo", "sao-unfrozen-attention", "sao-k1")
"""Those that the claims speak of."""


@dataclass(frozen=True, slots=True)
class Verdict:
    claim: str
    rule: str
    decision: Decision
    evidence: str


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """``results``: runs with their ``task``, ``recipe``, ``lag``, ``seed`` and ``summary``."""
    return [
        _collapses(results, "grpo", ("grpo-dis", "sao")),
        _collapses(results, "vapo", ("grpo-dis", "sao")),
        _higher(
            results,
            "`sao` ends above `grpo-dis`",
            ("sao", "grpo-dis"),
            "final success rate",
            lambda one, other: one["final_success"] - other["final_success"],
            NO_DIFFERENCE,
        ),
        _few_masked(results),
        _higher(
            results,
            "frozen attention lowers the critic's gradient norm",
            ("sao", "sao-unfrozen-attention"),
            "log of the ratio of mean critic gradient norms, unfrozen to frozen",
            lambda one, other: math.log(other["value_grad_norm"] / one["value_grad_norm"]),
            NO_RATIO,
        ),
        _higher(
            results,
            "K=2 raises explained variance",
            ("sao", "sao-k1"),
            "mean explained variance",
            lambda one, other: one["explained_variance"] - other["explained_variance"],
            NO_DIFFERENCE,
        ),
    ]


def cells(results: Sequence[Result]) -> Iterator[tuple[str, int, dict[str, list[Result]]]]:
    """Task, lag, and the runs there by recipe; tasks, lags and recipes in a fixed order."""
    for task, lag in sorted({(result["task"], result["lag"]) for result in results}):
        there = [result for result in results if (result["task"], result["lag"]) == (task, lag)]
        yield task, lag, {recipe: [r for r in there if r["recipe"] == recipe] for recipe in sorted({r["recipe"] for r in there})}


def _collapses(results: Sequence[Result], unstable: str, stable: Sequence[str]) -> Verdict:
    shown, opposed, compared, evidence = 0, 0, 0, []
    for task, lag, by_recipe in cells(results):
        if lag == 0 or any(len(by_recipe.get(recipe, ())) < LEAST_SEEDS for recipe in (unstable, *stable)):
            continue
        compared += 1
        rates = {recipe: _collapse_rate(by_recipe[recipe]) for recipe in (unstable, *stable)}
        shown += rates[unstable] > 0.5 and not any(rates[recipe] for recipe in stable)
        opposed += any(rates[recipe] > rates[unstable] for recipe in stable)
        if any(rates.values()):
            evidence.append(f"{task}, lag {lag}: " + ", ".join(f"{recipe} {rate:.0%}" for recipe, rate in rates.items()))
    decision: Decision = "undecided"
    if shown and not opposed:
        decision = "reproduced"
    elif compared and not shown:
        decision = "not reproduced"
    without = " (no DIS)" if unstable == "vapo" else ""
    return Verdict(
        f"`{unstable}`{without} collapses where {' and '.join(f'`{recipe}`' for recipe in stable)} do not",
        f"At some task and lag above 0, with {LEAST_SEEDS} seeds or more each, more than half of its runs collapse and none of theirs; and nowhere "
        "more of theirs than of its own. Not reproduced: compared, and nowhere so.",
        decision,
        "; ".join(evidence) or (f"no collapse at the {compared} tasks and lags compared" if compared else "nothing to compare"),
    )


def _collapse_rate(runs: Sequence[Result]) -> float:
    return sum(run["summary"]["collapse_update"] is not None for run in runs) / len(runs)


def _higher(
    results: Sequence[Result],
    claim: str,
    recipes: tuple[str, str],
    quantity: str,
    difference: Callable[[Mapping[str, Any], Mapping[str, Any]], float],
    margin: float,
) -> Verdict:
    """The difference of two recipes over all pairs of runs of equal task, lag and seed; above 0 speaks for the claim."""
    found = {(r["recipe"], r["task"], r["lag"], r["seed"]): r["summary"] for r in results}
    pairs = [(found[key], found[(recipes[1], *key[1:])]) for key in sorted(found) if key[0] == recipes[0] and (recipes[1], *key[1:]) in found]
    decision: Decision = "undecided"
    evidence = f"{len(pairs)} pairs"
    if pairs:
        interval = median_interval([difference(one, other) for one, other in pairs])
        evidence = f"{interval.median:+.3f}, {len(pairs)} pairs"
        if interval.low is not None and interval.high is not None and len(pairs) >= LEAST_PAIRS:
            evidence = f"{interval.median:+.3f} ({interval.low:+.3f} to {interval.high:+.3f}), {len(pairs)} pairs"
            if interval.low > 0:
                decision = "reproduced"
            elif interval.high < margin:
                decision = "not reproduced"
    return Verdict(
        claim,
        f"`{recipes[0]}` against `{recipes[1]}`, runs of equal task, lag and seed ({LEAST_PAIRS} pairs or more): {quantity}; the 95 % bootstrap "
        f"interval of the median difference is above 0. Not reproduced: it is below {margin:g}.",
        decision,
        evidence,
    )


def _few_masked(results: Sequence[Result]) -> Verdict:
    medians = [
        (median_interval([run["summary"]["masked_fraction"] for run in by_recipe["sao"]]).median, task, lag)
        for task, lag, by_recipe in cells(results)
        if len(by_recipe.get("sao", ())) >= LEAST_SEEDS
    ]
    decision: Decision = "undecided"
    evidence = "nothing to judge"
    if medians:
        most, task, lag = max(medians)
        evidence = f"at most {most:.2%} ({task}, lag {lag})"
        decision = "reproduced" if most < FEW else "not reproduced"
    rule = f"At every task and lag with {LEAST_SEEDS} seeds or more, the median run of `sao` masks less than {FEW:.0%} of its action tokens."
    return Verdict("masked tokens are few", rule + " Not reproduced: somewhere it does not.", decision, evidence)
