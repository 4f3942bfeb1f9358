"""The five tabs: which panels stand where, and what each needs read. Own no drawing (panels and charts do) and no state but the place they are at."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from nicegui import ui
from nicegui.elements.echart import EChart
from nicegui.elements.html import Html

from api.dashboard import interactions, learning, overview, versions
from api.dashboard.chart import score_chart
from api.dashboard.feed import Feed
from api.dashboard.markup import href
from api.dashboard.playground import Playground
from api.dashboard.processes import processes
from api.dashboard.version_chart import version_chart, version_chart_words
from api.dashboard.view import View
from api.dependencies import Backend
from online_sao.errors import OnlineSAOError
from online_sao.service.reasons import ReasonCode
from online_sao.types import InteractionStatus, ReceiptStatus, TrajectoryState

RESULTS = 20
SEARCHES = ("text", "into", "since", "receipt", "effect", "training", "reason", "after")
"""What costs too much to be looked for every second."""


class Tab(Protocol):
    def build(self) -> None:
        """Put the panels in place; once."""

    def go(self, query: Mapping[str, str]) -> None:
        """The page's address has come to this tab, or changed within it."""

    async def refresh(self, backend: Backend, feed: Feed, view: View) -> None:
        """Once a second while it is the one that is seen."""

    def notices(self) -> Sequence[str]:
        """What of the place that was asked for could not be shown, and why; after a refresh."""


class PlainTab:
    """What a tab without places of its own is."""

    def go(self, query: Mapping[str, str]) -> None:
        pass

    def notices(self) -> Sequence[str]:
        return ()


class OverviewTab(PlainTab):
    def build(self) -> None:
        self._charted: object = None
        with section("score", "Score over time"):
            self._figure = html()
            self._chart = chart(score_chart([], [], 0, (0.0, 1.0)))
        with section("learner", "Learner"):
            self._learner = html()
            ui.html("How many answers get a score, and when", sanitize=False, tag="h3")
            self._coverage = html()
        with section("flow", "Answers on their way into the policy"):
            self._stages = html()
        with section("means", "Mean score per version, with 95 % interval"):
            self._means = chart(version_chart([], (0.0, 1.0)))
        with section("shifts", "Adaptation: how fast the policy follows"):
            self._shifts = scroll("Shifts")

    async def refresh(self, backend: Backend, feed: Feed, view: View) -> None:
        self._figure.set_content(overview.figure(view))
        self._learner.set_content(overview.learner(view, backend.settings.learning.as_child))
        self._coverage.set_content(overview.coverage(view))
        self._stages.set_content(overview.stages(view))
        self._shifts.set_content(overview.shifts(view))
        snapshot = view.snapshot
        activations = [(v.version, v.activated_at) for v in snapshot.versions if v.activated_at is not None and v.version]
        # The newest score may be replaced by another of the same answer: the count alone does not tell.
        charted = (snapshot.total_scores, snapshot.scores[-20:], activations)
        if charted != self._charted:
            self._charted = charted
            redraw(self._chart, score_chart(snapshot.scores, activations, snapshot.total_scores, view.score_range), overview.figure_words(view))
            redraw(self._means, version_chart(snapshot.versions, view.score_range), version_chart_words(snapshot.versions, view.score_range))


class LearningTab(PlainTab):
    def build(self) -> None:
        with section("update", "Last update"):
            self._outcome = html()
        with section("ratios", "How far tokens had moved"):
            self._ratios = html()
        with section("swaps", "Weight swaps"):
            self._swaps = scroll("Swaps, newest first")
        with section("processes", "Serving processes"):
            self._processes = scroll("Serving processes")
        with section("metrics", "Every metric, update by update"):
            self._metrics = html()

    async def refresh(self, backend: Backend, feed: Feed, view: View) -> None:
        self._outcome.set_content(learning.outcome(view))
        self._ratios.set_content(learning.ratios(view))
        self._swaps.set_content(learning.swaps(view))
        self._processes.set_content(processes(view))
        self._metrics.set_content(learning.metrics(await feed.updates()))


class VersionsTab:
    def build(self) -> None:
        self._query: Mapping[str, str] = {}
        self._notices: Sequence[str] = ()
        with section("versions", "Versions of the policy"):
            self._versions = scroll("Versions, newest first")
        with section("compare", "Before and after, on fixed prompts"):
            self._choice = html("choose")
            self._compared = html()
        with section("rollbacks", "Rollbacks"):
            self._rollbacks = scroll("Rollbacks, newest first")

    def go(self, query: Mapping[str, str]) -> None:
        self._query, self._notices = query, ()

    async def refresh(self, backend: Backend, feed: Feed, view: View) -> None:
        evaluations = await feed.evaluations()
        before = int(self._query["before"]) if "before" in self._query else None
        self._versions.set_content(versions.versions(view, await feed.updates(), evaluations, before, self._query))
        self._rollbacks.set_content(versions.rollbacks(view))
        pair = versions.picked(evaluations, self._query)
        self._notices = pair.ignored
        self._choice.set_content(versions.choice(evaluations, pair))
        self._compared.set_content(versions.comparison(pair))

    def notices(self) -> Sequence[str]:
        return self._notices


class InteractionsTab:
    def build(self) -> None:
        self._query: dict[str, str] = {}
        self._searched: object = None
        self._form = html()
        self._list = html("list")
        self._detail = html("detail")

    def go(self, query: Mapping[str, str]) -> None:
        self._query = dict(query)
        self._searched = None
        single = "id" in query
        self._form.set_visibility(not single)
        self._list.set_visibility(not single)
        self._detail.set_visibility(single)
        self._form.set_content("" if single else interactions.search_form(query))

    def notices(self) -> Sequence[str]:
        return ()

    async def refresh(self, backend: Backend, feed: Feed, view: View) -> None:
        if "id" in self._query:
            await self._show_one(backend)
        elif self._searched is None or not any(self._query.get(name) for name in SEARCHES):
            # The newest are kept up to date; a search, or an older page, stays as it was asked for.
            self._searched = True
            await self._show_list(backend)

    async def _show_one(self, backend: Backend) -> None:
        filters = {name: value for name, value in self._query.items() if name not in ("tab", "id")}
        back = href("interactions", **filters)
        try:
            choices = await backend.interactions.get(self._query["id"])
            self._detail.set_content(interactions.detail(choices, backend.describe_token, back))
        except OnlineSAOError as error:
            self._detail.set_content(interactions.missing(error.message, back))

    async def _show_list(self, backend: Backend) -> None:
        query = self._query
        version, status, receipt, training, reason = (query.get(name) for name in ("version", "status", "receipt", "training", "reason"))
        try:
            page = await backend.interactions.page(
                limit=RESULTS,
                after=query.get("after") or None,
                user=query.get("user") or None,
                status=InteractionStatus(status) if status else None,
                policy_version=int(version) if version else None,
                learned_into=int(query["into"]) if query.get("into") else None,
                since=time.time() - interactions.SINCE[query["since"]] if query.get("since") else None,
                without_effect=bool(query.get("effect")),
                receipt=ReceiptStatus(receipt) if receipt else None,
                trajectory=TrajectoryState(training) if training else None,
                reason=ReasonCode(reason) if reason else None,
                completion_id=query.get("find") or None,
                text=query.get("text") or None,
            )
            self._list.set_content(interactions.results(page, query))
        except OnlineSAOError as error:
            self._list.set_content(interactions.missing(error.message, href("interactions")))


class PlaygroundTab(PlainTab):
    def __init__(self, backend: Callable[[], Backend | None]) -> None:
        self._playground = Playground(backend)

    def build(self) -> None:
        with section("play", "Playground"):
            self._playground.build()
        with section("beside", "What becomes of a score"):
            ui.html(overview.JOURNEY, sanitize=False)
            self._learner = html()

    async def refresh(self, backend: Backend, feed: Feed, view: View) -> None:
        self._learner.set_content(overview.learner(view, backend.settings.learning.as_child))
        await self._playground.refresh()


def section(name: str, title: str) -> ui.element:
    place = ui.element("section").classes(f"sao-{name}").props(f'aria-labelledby="sao-{name}-title"')
    with place:
        ui.html(title, sanitize=False, tag="h2").props(f"id=sao-{name}-title")
    return place


def html(classes: str = "") -> Html:
    """A place for HTML made by the panels, which escape all data."""
    return ui.html("", sanitize=False).classes(classes)


def scroll(label: str) -> Html:
    """The same, where what is too wide or too long scrolls. A region that scrolls must be reachable by keyboard."""
    return html("scroll").props(f'tabindex=0 role=region aria-label="{label}"')


def chart(options: Mapping[str, object]) -> EChart:
    return ui.echart(dict(options)).classes("chart").props("role=img")


def redraw(chart: EChart, options: Mapping[str, object], words: str) -> None:
    """``words`` say what it shows, for who cannot see it."""
    chart.options.update(options)
    chart.props["aria-label"] = words
    chart.update()
