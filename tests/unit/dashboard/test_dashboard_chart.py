"""The chart's numbers: moving average, places of version markers, axis."""

import json

from api.dashboard.chart import MOST_LABELS, markers, moving_average, score_chart
from online_sao.storage.repositories.overview import ScorePoint


def points(times):
    return [ScorePoint(f"fb-{at}", float(at), 1.0, 0) for at in times]


def test_moving_average_by_hand():
    assert moving_average([0, 0, 1, 1, 1], window=3, at_least=2) == [(1, 0.0), (2, 1 / 3), (3, 2 / 3), (4, 1.0)]
    assert moving_average([1.0] * 4) == []


def test_a_marker_stands_left_of_the_first_score_after_its_activation():
    marks = markers(points([10, 20, 30]), [(1, 5.0), (3, 20.0), (2, 15.0), (4, 25.0), (5, 31.0)], first=101)
    # v1 came before the first score and v5 after the last: neither is inside the picture; nobody scored between v2 and v3
    assert [(mark["label"]["formatter"], mark["xAxis"]) for mark in marks] == [("v3", 101.5), ("v4", 102.5)]


def test_only_a_few_markers_are_labelled_and_the_newest_always():
    marks = markers(points(range(100)), [(version, version + 0.5) for version in range(60)], first=1)
    shown = [mark["label"]["show"] for mark in marks]
    assert sum(shown) <= MOST_LABELS
    assert shown[-1]


def test_options_count_scores_from_the_start_and_are_json():
    options = score_chart(points(range(30)), [(1, 10.0)], total=130, score_range=(1.0, 5.0))
    dots = options["series"][0]["data"]
    assert (dots[0][0], dots[-1][0]) == (101, 130)
    assert (options["yAxis"]["min"], options["yAxis"]["max"], options["yAxis"]["interval"]) == (1.0, 5.0, 1.0)
    json.dumps(options)
    json.dumps(score_chart([], [], 0, (0.0, 1.0)))
