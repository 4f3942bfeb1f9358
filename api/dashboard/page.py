"""The dashboard page: puts the panels in place and refreshes them. Owns what is refreshed when; knows nothing of how numbers are drawn or read."""

from __future__ import annotations

import logging
from collections.abc import Callable

from nicegui import ui
from nicegui.elements.html import Html

from api.dashboard import panels, theme
from api.dashboard.chart import score_chart
from api.dashboard.playground import Playground
from api.dashboard.view import View, read
from api.dependencies import Backend

logger = logging.getLogger(__name__)
REFRESH_SECONDS = 1.0

BackendProvider = Callable[[], Backend | None]
"""The running server, or None while it starts."""


class DashboardPage:
    """One open page."""

    def __init__(self, backend: BackendProvider) -> None:
        self._backend = backend
        self._playground = Playground(backend)
        self._charted: object = None

    def build(self) -> None:
        ui.colors(primary=theme.ACCENT)
        ui.add_css(theme.CSS)
        ui.add_body_html(f"<script>{theme.SCRIPT}</script>")
        with ui.element("main").classes("sao"):
            self._head()
            with self._section("score", "Score over time"):
                self._figure = _html()
                self._chart = ui.echart(score_chart([], [], 0, (0.0, 1.0))).classes("chart").props('role=img aria-label="Scores in order of arrival"')
            with self._section("play", "Playground"):
                self._playground.build()
            with self._section("flow", "Answers on their way into the policy"):
                self._stages = _html()
            with self._section("learner", "Learner"):
                self._learner = _html()
            with self._section("update", "Last update"):
                self._update = _html()
            with self._section("versions", "Versions of the policy"):
                self._versions = _html()
            with self._section("swaps", "Weight swaps"):
                self._swaps = _html()
        ui.timer(REFRESH_SECONDS, self._refresh)

    def _head(self) -> None:
        with ui.element("header").classes("sao-head"):
            ui.html("Online SAO", sanitize=False, tag="h1")
            self._serving = _html("serving")
            ui.element("span").classes("grow")
            self._age = ui.html('<span id="sao-age" data-stamp=""></span>', sanitize=False, tag="span").classes("muted")
            # Not ui.link: it would look for the page below the dashboard.
            ui.html('<a href="/docs" target="_blank">API docs</a>', sanitize=False, tag="span")

    @staticmethod
    def _section(name: str, title: str) -> ui.element:
        section = ui.element("section").classes(f"sao-{name}").props(f'aria-labelledby="sao-{name}-title"')
        with section:
            ui.html(title, sanitize=False, tag="h2").props(f"id=sao-{name}-title")
        return section

    async def _refresh(self) -> None:
        backend = self._backend()
        if backend is None:
            return
        try:
            view = await read(backend)
            await self._playground.refresh()
        except Exception:
            # The page stays, and its numbers grow old in plain sight; the next second tries again.
            logger.exception("the dashboard could not read the server's state")
            return
        self._show(backend, view)

    def _show(self, backend: Backend, view: View) -> None:
        settings = backend.settings
        self._serving.set_content(panels.serving(view, settings.policy.name))
        self._figure.set_content(panels.figure(view))
        self._stages.set_content(panels.stages(view))
        self._learner.set_content(panels.learner(view, settings.learning.enabled))
        self._update.set_content(panels.update(view))
        self._versions.set_content(panels.versions(view))
        self._swaps.set_content(panels.swaps(view))
        self._age.set_content(f'<span id="sao-age" data-stamp="{view.snapshot.as_of}" data-age="0"></span>')
        self._show_chart(view, (settings.reward.score_min, settings.reward.score_max))

    def _show_chart(self, view: View, score_range: tuple[float, float]) -> None:
        snapshot = view.snapshot
        activations = [
            (version.version, version.activated_at) for version in snapshot.versions if version.activated_at is not None and version.version
        ]
        # The newest score may be replaced by another of the same answer: the count alone does not tell.
        charted = (snapshot.total_scores, snapshot.scores[-20:], activations)
        if charted != self._charted:
            self._charted = charted
            self._chart.options.update(score_chart(snapshot.scores, activations, snapshot.total_scores, score_range))
            self._chart.update()


def _html(classes: str = "") -> Html:
    """A place for HTML made by panels.py, which escapes all data."""
    return ui.html("", sanitize=False).classes(classes)
