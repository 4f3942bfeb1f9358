"""A run on the terminal."""

from __future__ import annotations

import io

from rich.console import Console

from online_sao.simulation.display import RichDisplay


def test_a_stage_that_is_left_before_its_total_keeps_its_time() -> None:
    with RichDisplay(Console(file=io.StringIO())) as display:
        display.stage("receipts", 8)
        display.step(None, "live")
        display.stage("held-out prompts", 4)
        *_, left, current = display._progress.tasks
        assert (left.description, left.completed, left.stop_time is not None) == ("receipts", 1, True)
        assert current.stop_time is None
