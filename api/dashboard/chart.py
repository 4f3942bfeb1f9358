"""The score chart as ECharts options. Pure; knows nothing of where scores come from. Colours are mid-tones that read on light and dark paper."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from online_sao.storage.repositories.overview import ScorePoint

ACCENT = "#12908a"
GREY = "#8c8a86"
HAIRLINE = "rgba(140,138,134,0.28)"
LABEL = {"color": GREY, "fontSize": 11, "fontFamily": "inherit"}
"""Of an axis."""
AVERAGE_OF = 20
MOST_LABELS = 12
_TOOLTIP = "p => `<b>${p.value[1]}</b> from version ${p.value[3]}<br>${new Date(p.value[2]).toLocaleTimeString()}`"


def score_axis(score_range: tuple[float, float]) -> dict[str, Any]:
    """The upright axis of every chart of scores: the whole range a score may have, in quarters."""
    low, high = score_range
    return {
        "type": "value",
        "min": low,
        "max": high,
        "interval": (high - low) / 4,
        "axisLine": {"show": False},
        "axisTick": {"show": False},
        "axisLabel": LABEL,
        "splitLine": {"lineStyle": {"color": HAIRLINE}},
    }


def moving_average(values: Sequence[float], window: int = AVERAGE_OF, at_least: int = 5) -> list[tuple[int, float]]:
    """(index, mean of the last ``window`` values up to it) from the ``at_least``-th value on."""
    means = []
    for index in range(at_least - 1, len(values)):
        recent = values[max(0, index + 1 - window) : index + 1]
        means.append((index, sum(recent) / len(recent)))
    return means


def markers(points: Sequence[ScorePoint], activations: Sequence[tuple[int, float]], first: int) -> list[dict[str, Any]]:
    """Upright lines for (version, activated_at) inside the range of ``points`` (the first is number ``first``), left of the first score
    given after it; versions nobody scored in between share one, named after the newest. At most MOST_LABELS are labelled, the newest among them."""
    times = [point.at for point in points]
    places: dict[int, list[int]] = {}
    for version, at in sorted(activations):
        if times and times[0] < at <= times[-1]:
            places.setdefault(bisect_left(times, at), []).append(version)
    step = -(-len(places) // MOST_LABELS) or 1
    return [
        {
            "xAxis": first + index - 0.5,
            "label": {"formatter": f"v{versions[-1]}", "show": (len(places) - 1 - order) % step == 0},
        }
        for order, (index, versions) in enumerate(sorted(places.items()))
    ]


def score_chart(
    points: Sequence[ScorePoint], activations: Sequence[tuple[int, float]], total: int, score_range: tuple[float, float]
) -> dict[str, Any]:
    """Options for the newest ``points`` of ``total`` scores, oldest first: each a dot, their moving average a line, activations as markers.

    x is the number of the score: traffic comes in bursts, and what learns is the number of scores, not the hour.
    """
    first = total - len(points) + 1
    return {
        "animation": False,
        "grid": {"left": 34, "right": 10, "top": 26, "bottom": 26},
        "tooltip": {"trigger": "item", "confine": True, ":formatter": _TOOLTIP},
        "xAxis": {
            "type": "value",
            "min": first - 1,
            "max": max(total, first + 19) + 1,
            "minInterval": 1,
            "axisLine": {"lineStyle": {"color": HAIRLINE}},
            "axisTick": {"show": False},
            "splitLine": {"show": False},
            "axisLabel": {**LABEL, "showMinLabel": False, "showMaxLabel": False},
        },
        "yAxis": score_axis(score_range),
        "series": [
            {
                "type": "scatter",
                "symbolSize": 6,
                "itemStyle": {"color": GREY, "opacity": 0.45},
                "data": [[first + index, point.value, round(point.at * 1000), point.policy_version] for index, point in enumerate(points)],
            },
            {
                "type": "line",
                "showSymbol": False,
                "silent": True,
                "lineStyle": {"color": ACCENT, "width": 2.5},
                "itemStyle": {"color": ACCENT},
                "data": [[first + index, round(value, 4)] for index, value in moving_average([point.value for point in points])],
                "markLine": {
                    "silent": True,
                    "symbol": "none",
                    "label": {"position": "end", "color": GREY, "fontSize": 10},
                    "lineStyle": {"color": HAIRLINE, "type": "solid", "width": 1},
                    "data": markers(points, activations, first),
                },
            },
        ],
    }
