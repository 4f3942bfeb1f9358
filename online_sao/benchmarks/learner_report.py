"""The learner benchmark's figures as Markdown, and its growth as a plot where matplotlib is there (the ``plots`` extra). Runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

GOAL_SHARE = 0.85
"""Of the measured matmul peak, by the work an update must do."""
_AXES = {"batch": "trajectories in an update", "length": "tokens of an answer", "rank": "LoRA rank"}


def write_report(result: Mapping[str, Any], out: Path) -> list[Path]:
    """report.md, and growth.png where sizes were varied."""
    usual = result["cases"][0]
    lines = ["# Learner", "", _setting(result, usual), "", *_table(usual), "", *_goal(usual), "", *_parts(usual), "", *_kinds(usual), ""]
    varied = [case for case in result["cases"][1:] if case["what"] in _AXES]
    if varied:
        lines += [*_growth(result["cases"]), ""]
    path = out / "report.md"
    path.write_text("\n".join(lines))
    written = [path]
    if varied and (plot := _plot(result["cases"], out / "growth.png")) is not None:
        written.append(plot)
    return written


def _setting(result: Mapping[str, Any], case: Mapping[str, Any]) -> str:
    environment, rate = result["environment"], case["matmul_peak"]["median"] / 1e9
    return (
        f"{case['trajectories']} trajectories, {case['all_tokens']} tokens ({case['action_tokens']} of them actions; {case['computed_tokens']} "
        f"computed, the prefix they share once), LoRA rank {case['rank']}, model {result['model']}, fp32, {environment['threads']} threads, torch "
        f"{environment['torch']}. Matrix products of these shapes reach {rate:.0f} GFLOP/s here "
        f"({case['products_rate'] / 1e9:.0f} through all of the model's own, each read from memory again). Median (lowest to highest)."
    )


def _table(case: Mapping[str, Any]) -> list[str]:
    lines = [
        "| | seconds | CPU seconds | tokens/s | GFLOP needed | executed | of the peak, needed | executed | memory beyond the model, MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found in case["contestants"].items():
        memory = found["memory"]
        cells = [
            name,
            _spread(found["seconds"]),
            _spread(found["cpu_seconds"]),
            f"{found['tokens_per_second']:.0f}",
            _number(found["flops"], 1e-9, ".0f"),
            f"{sum(found['executed_flops'].values()) / 1e9:.0f}",
            _share(found["share_of_peak"]),
            _share(found["executed_share_of_peak"]),
            _number(memory and memory["more"], 1e-6, ".0f"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _goal(case: Mapping[str, Any]) -> list[str]:
    contestants = case["contestants"]
    share = contestants["sao"]["share_of_peak"]["median"]
    lines = [f"Goal: {100 * GOAL_SHARE:.0f} % of the peak; `sao` is at {100 * share:.0f} %: {'met' if share >= GOAL_SHARE else 'not met'}."]
    for name in contestants:
        if name.startswith("trl"):
            ours = (one for one in contestants if not one.startswith("trl"))
            ratios = [f"`{one}` takes {_ratio(contestants, one, name):.2f} times as long" for one in ours]
            lines.append(f"Against `{name}`: {', '.join(ratios)}.")
    return lines


def _parts(case: Mapping[str, Any]) -> list[str]:
    lines = ["| Part of `sao` | GFLOP needed | share |", "|---|---|---|"]
    counted = case["contestants"]["sao"]["flops_by_part"]
    total = sum(counted.values())
    lines += [f"| {part} | {flops / 1e9:.1f} | {100 * flops / total:.0f} % |" for part, flops in counted.items() if flops]
    measured = case["contestants"]["sao"]["parts"]
    return [*lines, "", f"Measured: value updates {_spread(measured['value'])} s, base and policy {_spread(measured['policy'])} s."]


def _kinds(case: Mapping[str, Any]) -> list[str]:
    kinds = list(case["contestants"]["sao"]["time_by_kind"])
    lines = [f"| Operator time | {' | '.join(kinds)} |", f"|---|{'---|' * len(kinds)}"]
    for name, found in case["contestants"].items():
        shares = (f"{100 * found['time_by_kind'][kind]:.0f} %" for kind in kinds)
        lines.append(f"| {name} | {' | '.join(shares)} |")
    return lines


def _growth(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    names = list(cases[0]["contestants"])
    columns = " | ".join(f"{name}, s" for name in names)
    lines = [f"| Varied | size | tokens | {columns} | `sao` of the peak |", f"|---|---|---|{'---|' * len(names)}---|"]
    for case in cases:
        seconds = (_spread(case["contestants"][name]["seconds"]) for name in names)
        share = _share(case["contestants"]["sao"]["share_of_peak"])
        lines.append(f"| {case['what']} | {case['size']} | {case['all_tokens']} | {' | '.join(seconds)} | {share} |")
    return lines


def _plot(cases: Sequence[Mapping[str, Any]], path: Path) -> Path | None:
    try:
        from matplotlib import pyplot as plt

        from online_sao.benchmarks.plotting import STYLE, save  # which also has matplotlib draw into files
    except ImportError:
        return None
    shown = [axis for axis in _AXES if any(case["what"] == axis for case in cases)]
    with plt.rc_context(STYLE):  # type: ignore[arg-type]
        figure, axes = plt.subplots(1, len(shown), figsize=(4.2 * len(shown), 3.4), squeeze=False)
        for place, what in zip(axes[0], shown, strict=True):
            chosen = sorted([_as(cases[0], what), *(case for case in cases if case["what"] == what)], key=lambda case: int(case["size"]))
            for name in cases[0]["contestants"]:
                seconds = [case["contestants"][name]["seconds"]["median"] for case in chosen]
                place.plot([case["size"] for case in chosen], seconds, marker="o", markersize=3, label=name)
            place.set_xlabel(_AXES[what])
            place.set_ylim(bottom=0)
        axes[0][0].set_ylabel("seconds")
        axes[0][0].set_title("Cost of one update")
        axes[0][0].legend(frameon=False)
        return save(figure, path)


def _as(usual: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The usual case as a point on the axis of ``what``."""
    return {**usual, "size": {"batch": usual["trajectories"], "length": usual["answer_tokens"], "rank": usual["rank"]}[what]}


def _ratio(contestants: Mapping[str, Any], one: str, other: str) -> float:
    return float(contestants[one]["seconds"]["median"] / contestants[other]["seconds"]["median"])


def _spread(found: Mapping[str, float]) -> str:
    return f"{found['median']:.2f} ({found['low']:.2f}–{found['high']:.2f})"


def _share(found: Mapping[str, float] | None) -> str:
    return "–" if found is None else f"{100 * found['median']:.0f} % ({100 * found['low']:.0f}–{100 * found['high']:.0f})"


def _number(value: float | None, times: float, form: str) -> str:
    return "–" if value is None else format(value * times, form)
