"""The dashboard page: its frame, its five tabs, and what is refreshed when. Owns places on the page (addresses) and what buttons do; knows nothing of
how numbers are drawn or read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl

from nicegui import ui
from nicegui.elements.html import Html
from nicegui.events import GenericEventArguments

from api.dashboard import overview, theme
from api.dashboard.dialogs import PauseDialog, RollbackDialog
from api.dashboard.feed import Feed
from api.dashboard.markup import notices
from api.dashboard.places import TITLES, understood
from api.dashboard.tabs import InteractionsTab, LearningTab, OverviewTab, PlaygroundTab, Tab, VersionsTab
from api.dependencies import Backend
from online_sao.errors import OnlineSAOError

logger = logging.getLogger(__name__)
REFRESH_SECONDS = 1.0

BackendProvider = Callable[[], Backend | None]
"""The running server, or None while it starts."""
FeedProvider = Callable[[Backend], Feed]
"""The feed that all pages of a server share."""


class DashboardPage:
    """One open page. ``query``: the place its address names."""

    def __init__(self, backend: BackendProvider, feed: FeedProvider, query: Mapping[str, str]) -> None:
        self._backend = backend
        self._feed = feed
        self._query, self._ignored = understood(query)

    def build(self) -> None:
        ui.colors(primary=theme.ACCENT)
        ui.add_css(theme.CSS)
        ui.add_body_html(f"<script>{theme.SCRIPT}</script>")
        ui.html('<a class="skip" href="#content">To the content</a>', sanitize=False)
        ui.html('<div id="sao-stale" role="alert" hidden></div>', sanitize=False)
        with ui.element("div").classes("sao"):
            self._head()
            self._nav = ui.html("", sanitize=False, tag="nav").props('aria-label="Sections"')
            with ui.element("main").props("id=content tabindex=-1"):
                self._notices = _html("notices").props("aria-live=polite")
                self._alarms = _html()
                self._tabs: dict[str, Tab] = {
                    "overview": OverviewTab(),
                    "learning": LearningTab(),
                    "versions": VersionsTab(),
                    "interactions": InteractionsTab(),
                    "playground": PlaygroundTab(self._backend),
                }
                self._places = {}
                for name, tab in self._tabs.items():
                    self._places[name] = ui.element("div").classes(f"tab tab-{name}")
                    with self._places[name]:
                        tab.build()
        self._rollback, self._pause = RollbackDialog(self._backend), PauseDialog(self._backend)
        ui.on("sao-go", self._go)
        ui.on("sao-do", self._do)
        self._show_place()
        ui.timer(REFRESH_SECONDS, self._refresh)

    def _head(self) -> None:
        with ui.element("header").classes("sao-head"):
            ui.html("Online SAO", sanitize=False, tag="h1")
            self._serving = _html("serving")
            self._chip = _html("chips")
            ui.element("span").classes("grow")
            self._age = ui.html('<span id="sao-age" data-stamp=""></span>', sanitize=False, tag="span").classes("muted age")
            ui.html('<button type="button" class="btn quiet" id="sao-theme" aria-label="Colours: as the system">Auto</button>', sanitize=False)
            # Not ui.link: it would look for the page below the dashboard.
            ui.html('<a href="/docs" target="_blank">API docs</a>', sanitize=False, tag="span")

    async def _go(self, event: GenericEventArguments) -> None:
        """The address has changed; so does what is shown."""
        address = event.args if isinstance(event.args, str) else ""
        self._query, self._ignored = understood(dict(parse_qsl(address.lstrip("?"))))
        self._show_place()
        await self._refresh()

    def _show_place(self) -> None:
        current = self._query["tab"]
        links = (
            f'<a data-go data-key="tab-{name}" href="?tab={name}"{" aria-current=page" if name == current else ""}>{title}</a>'
            for name, title in TITLES.items()
        )
        self._nav.set_content("".join(links))
        for name, place in self._places.items():
            place.set_visibility(name == current)
        self._tabs[current].go(self._query)
        self._notices.set_content(notices(self._ignored))
        ui.page_title(f"{TITLES[current]} · Online SAO")

    async def _do(self, event: GenericEventArguments) -> None:
        backend, asked = self._backend(), event.args if isinstance(event.args, dict) else {}
        if backend is None:
            ui.notify("The server is still starting.")
            return
        action, value = asked.get("action"), str(asked.get("value", ""))
        try:
            if action == "rollback" and value.isdecimal():
                await self._rollback.open(int(value))
            elif action == "pause":
                self._pause.open()
            elif action == "resume":
                await backend.control.resume_learner()
                ui.notify("Learning goes on.")
        except OnlineSAOError as error:
            ui.notify(error.message, type="negative")

    async def _refresh(self) -> None:
        backend = self._backend()
        if backend is None:
            return
        try:
            view = await self._feed(backend).view()
            self._serving.set_content(overview.serving(view, backend.settings.policy.name))
            self._chip.set_content(overview.alarm_chip(view))
            self._alarms.set_content(overview.alarms(view) + overview.past_alarms(view) if self._query["tab"] == "overview" else "")
            tab = self._tabs[self._query["tab"]]
            await tab.refresh(backend, self._feed(backend), view)
            self._notices.set_content(notices((*self._ignored, *tab.notices())))
            self._age.set_content(f'<span id="sao-age" data-stamp="{view.snapshot.as_of}" data-age="0"></span>')
        except Exception:
            # The page stays, and its numbers grow old in plain sight; the next second tries again.
            logger.exception("the dashboard could not read the server's state")


def _html(classes: str = "") -> Html:
    """A place for HTML made by the panels, which escape all data."""
    return ui.html("", sanitize=False).classes(classes)
