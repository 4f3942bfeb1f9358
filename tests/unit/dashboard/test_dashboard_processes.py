"""The table of serving processes."""

from __future__ import annotations

import dataclasses

from test_dashboard_overview import SNAPSHOT

from api.dashboard.processes import processes
from api.dashboard.view import View
from online_sao.inference.engine import EngineLoad
from online_sao.service.status import ProcessStatus


def shown(*found: ProcessStatus) -> str:
    return processes(View(dataclasses.replace(SNAPSHOT, processes=found), 3, EngineLoad(0, 0)))


def test_each_says_what_it_serves_and_who_leads():
    leader = ProcessStatus("host-a", 11, True, 3, None, 0, 1.0, 0.5)
    late = ProcessStatus("host-b", 12, False, 2, "version 3 cannot be loaded: <b>", 7, 2.0, 30.0)
    html = shown(leader, late, ProcessStatus("host-c", 13, False, None, "the model is being loaded", 0, 3.0, 1.0))
    assert "host-a, pid 11" in html
    assert html.count(">leads<") == 1
    assert html.count(">follows<") == 2
    for text in (">v3<", ">v2<", ">loading<", ">7<", "cannot be loaded: &lt;b&gt;"):
        assert text in html
    assert html.count('class="alarm"') == 3, "two problems and one silence"
    assert shown().startswith("<p")
