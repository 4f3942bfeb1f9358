"""From runs to a report: a table of every task, the verdicts on the claims, how it was run. Pure but for writing files; runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from online_sao.benchmarks.intervals import median_interval, median_text
from online_sao.benchmarks.report_files import heading, row, write_report_files
from online_sao.benchmarks.stability.claims import cells, verdicts
from online_sao.benchmarks.stability.summary import COLLAPSE, WINDOW
from online_sao.benchmarks.tiny_policy.report_lines import conditions, machine, taken_back

COLUMNS = (
    ("final", "final_success", "{:.2f}"),
    ("best", "best_success", "{:.2f}"),
    ("held out", "held_out_after", "{:.2f}"),
    ("masked", "masked_fraction", "{:.2%}"),
    ("ESS", "ess_fraction", "{:.2f}"),
    ("KL behavior‖current", "kl_behavior_current_k3", "{:.4f}"),
    ("KL to base", "kl_base", "{:.2f}"),
    ("entropy", "entropy", "{:.2f}"),
    ("gradient norm", "policy_grad_norm", "{:.2f}"),
    ("critic's", "value_grad_norm", "{:.2f}"),
    ("explained variance", "explained_variance", "{:.2f}"),
)
"""Heading, key in the summary, form."""
WITH_INTERVAL = ("final_success", "held_out_after", "value_grad_norm", "explained_variance")
NOT_SHARED = ("task", "recipe", "lag", "seed", "warm_start")
"""Options that differ from run to run, or are shown by what came of them."""


def write_report(results: Sequence[Mapping[str, Any]], out: Path) -> list[Path]:
    """Write report.md, and the plots where matplotlib is installed (the ``plots`` extra), into ``out``. Returns what was written."""

    def plots() -> list[Path]:
        from online_sao.benchmarks.stability.plots import write_plots

        return write_plots(results, out)

    return write_report_files(markdown(results), out, plots)


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """Tables and verdicts of at least one run."""
    lines = [*_header(results), ""]
    for task in sorted({result["task"] for result in results}):
        lines += [*_table(task, [result for result in results if result["task"] == task]), ""]
    lines += ["## Claims", "", "| Claim | Verdict | Evidence | Rule |", "|---|---|---|---|"]
    lines += [f"| {v.claim} | **{v.decision}** | {v.evidence} | {v.rule} |" for v in verdicts(results)]
    return "\n".join(lines) + "\n"


def _header(results: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        conditions(results, NOT_SHARED),
        "",
        f"Success rates are of rollouts at temperature 1 (reward = 2 · success − 1). Final: the last {WINDOW} updates; best: the best {WINDOW} in a "
        "row; held out: the last policy on questions never trained on. Entropy and KL to base: the last updates; all else: means over the run. "
        "Medians over seeds, with 95 % bootstrap intervals where there are several.",
        "",
        COLLAPSE,
        "",
        machine(results),
    ]
    lines += taken_back(results, lambda run: f"{run['task']}, lag {run['lag']}")
    if any(result["options"]["group_size"] == 1 for result in results):
        lines += ["", "Groups of one: a group-normalised recipe has nothing to compare an answer with, and cannot learn."]
    return lines


def _table(task: str, results: Sequence[Mapping[str, Any]]) -> list[str]:
    warm = median_interval([result["held_out"]["before"] for result in results]).median
    headings = ["recipe", "lag", "runs", "collapsed (at update)", *(title for title, _, _ in COLUMNS)]
    lines = [f"## {task}", "", f"Warm start: {warm:.2f} of held-out questions.", "", *heading(headings)]
    for _, lag, by_recipe in cells(results):
        for recipe, runs in by_recipe.items():
            collapsed = sorted(at for run in runs if (at := run["summary"]["collapse_update"]) is not None)
            where = f"{len(collapsed)} ({', '.join(map(str, collapsed))})" if collapsed else "0"
            figures = [median_text([run["summary"][key] for run in runs], form, with_interval=key in WITH_INTERVAL) for _, key, form in COLUMNS]
            lines.append(row([recipe, str(lag), str(len(runs)), where, *figures]))
    return lines
