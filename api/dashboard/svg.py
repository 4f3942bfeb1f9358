"""Small pictures drawn as SVG: a metric over the updates, and the ratio histogram. Pure; they take their colours from the style sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

from api.dashboard import words

WIDTH, HEIGHT = 240.0, 48.0
_PADDING = 4.0


def sparkline(values: Sequence[float | None], label: str) -> str:
    """A line through ``values``, oldest first; what is missing leaves a gap. ``label`` says it in words. Fewer than two values: an empty frame."""
    known = [value for value in values if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    span = (high - low) or 1.0
    paths: list[list[str]] = []
    current: list[str] = []
    for index, value in enumerate(values):
        if value is None:
            paths.append(current)
            current = []
            continue
        x = WIDTH * index / max(1, len(values) - 1)
        y = HEIGHT / 2 if high == low else _PADDING + (HEIGHT - 2 * _PADDING) * (1 - (value - low) / span)
        current.append(f"{x:.1f},{y:.1f}")
    lines = "".join(f'<polyline points="{" ".join(points)}"/>' for points in [*paths, current] if len(points) > 1)
    return (
        f'<svg class="spark" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" preserveAspectRatio="none" role="img" aria-label="{escape(label)}">'
        f'<line class="base" x1="0" x2="{WIDTH:g}" y1="{HEIGHT - 0.5:g}" y2="{HEIGHT - 0.5:g}"/>{lines}</svg>'
    )


def ratio_histogram(histogram: Mapping[str, Any]) -> str:
    """Bars of counts between ``edges``, the one around ratio 1 marked, and a table of the numbers. Empty where nothing was counted."""
    edges, counts = list(histogram.get("edges", ())), list(histogram.get("counts", ()))
    total = sum(counts)
    if not total or len(counts) != len(edges) + 1:
        return ""
    names = _names(edges)
    middle = next((index for index, edge in enumerate(edges) if edge is not None and edge > 1), len(edges))
    highest = max(counts)
    bars, ticks = [], []
    for index, count in enumerate(counts):
        share = count / highest
        kind = " one" if index == middle else ""
        bars.append(f'<div class="bar{kind}" style="height:{max(2.0 if count else 0.0, 100 * share):.1f}%"></div>')
        ticks.append(f"<span>{names[index] if index in (0, middle, len(counts) - 1) else ''}</span>")
    within = counts[middle] / total
    say = f"{words.percent(within)} of {words.count(total)} tokens have a ratio of {names[middle]}"
    rows = "".join(
        f"<tr><td>{name}</td><td class=n>{words.count(count)}</td><td class=n>{words.percent(count / total)}</td></tr>"
        for name, count in zip(names, counts, strict=True)
    )
    broken = histogram.get("non_finite") or 0
    note = f'; <span class="alarm">{words.count(broken)} were not finite</span>' if broken else ""
    return (
        f'<div class="histogram" role="img" aria-label="{say}">{"".join(bars)}</div><div class="ticks" aria-hidden="true">{"".join(ticks)}</div>'
        f'<p class="aside">{say}{note}.</p>'
        '<details data-key="ratios"><summary>As a table</summary><table><thead><tr><th scope="col">Ratio now / at sampling</th>'
        f'<th scope="col" class="n">Tokens</th><th scope="col" class="n">Share</th></tr></thead><tbody>{rows}</tbody></table></details>'
    )


def _names(edges: Sequence[float]) -> list[str]:
    between = [f"{low:g}–{high:g}" for low, high in pairwise(edges)]
    return [f"≤ {edges[0]:g}", *between, f"> {edges[-1]:g}"]
