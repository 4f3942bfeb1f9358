"""Mean score per version with its 95 % interval as ECharts options. Pure; knows nothing of where scores come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from api.dashboard import words
from api.dashboard.chart import ACCENT, GREY, HAIRLINE, LABEL, score_axis
from online_sao.service.status import VersionStatus

MOST_VERSIONS = 40
_TOOLTIP = (
    "p => p.seriesIndex === 1 ? `<b>v${p.value[4]}</b>: mean ${p.value[1]}<br>95 %: ${p.value[2]} – ${p.value[3]}<br>${p.value[5]} scores` : ''"
)
# ECharts draws no whiskers by itself: one line from end to end of the interval, and a cap at each.
_WHISKER = """(params, api) => {
  const [x, low] = api.coord([api.value(0), api.value(1)]); const high = api.coord([api.value(0), api.value(2)])[1];
  const style = {stroke: 'COLOUR', lineWidth: 1.5}; const line = (x1, y1, x2, y2) => ({type: 'line', shape: {x1, y1, x2, y2}, style});
  return {type: 'group', children: [line(x, low, x, high), line(x - 3, low, x + 3, low), line(x - 3, high, x + 3, high)]};
}""".replace("COLOUR", GREY)


def version_chart(versions: Sequence[VersionStatus], score_range: tuple[float, float]) -> dict[str, Any]:
    """Options for the newest MOST_VERSIONS that have scores. ``versions``: newest first; intervals are cut at the ends of ``score_range``."""
    low, high = score_range
    shown = _scored(versions)
    intervals, dots = [], []
    for index, version in enumerate(shown):
        ends = None if version.score_interval is None else (max(low, version.score_interval[0]), min(high, version.score_interval[1]))
        if ends is not None:
            intervals.append([index, round(ends[0], 4), round(ends[1], 4)])
        said = ["–", "–"] if ends is None else [f"{ends[0]:.2f}", f"{ends[1]:.2f}"]
        dots.append([index, round(version.mean_score or 0.0, 3), *said, version.version, version.scores])
    return {
        "animation": False,
        "grid": {"left": 34, "right": 10, "top": 12, "bottom": 26},
        "tooltip": {"trigger": "item", "confine": True, ":formatter": _TOOLTIP},
        "xAxis": {
            "type": "category",
            "data": [f"v{version.version}" for version in shown],
            "axisLine": {"lineStyle": {"color": HAIRLINE}},
            "axisTick": {"show": False},
            "axisLabel": {**LABEL, "hideOverlap": True},
        },
        "yAxis": score_axis(score_range),
        "series": [
            {"type": "custom", "silent": True, ":renderItem": _WHISKER, "encode": {"x": 0, "y": [1, 2]}, "data": intervals},
            {"type": "scatter", "symbolSize": 8, "itemStyle": {"color": ACCENT}, "data": dots},
        ],
    }


def version_chart_words(versions: Sequence[VersionStatus], score_range: tuple[float, float]) -> str:
    """What the chart shows, for who cannot see it."""
    shown = _scored(versions)
    if not shown:
        return "Mean score per version: no version has scores yet"
    newest = ", ".join(f"version {version.version} {words.score(version.mean_score, score_range)}" for version in shown[-5:])
    return f"Mean score per version with 95 % intervals, {len(shown)} versions; the newest: {newest}. The Versions tab has all as a table"


def _scored(versions: Sequence[VersionStatus]) -> list[VersionStatus]:
    return [version for version in versions if version.scores][:MOST_VERSIONS][::-1]
