"""Questions asked before something is done that everybody feels: rolling back and pausing. Own the asking; service/control.py does it."""

from __future__ import annotations

from collections.abc import Callable

from nicegui import ui

from api.dependencies import Backend
from online_sao.errors import OnlineSAOError


class RollbackDialog:
    """Built inside a page. Esc closes it, and nothing is done."""

    def __init__(self, backend: Callable[[], Backend | None]) -> None:
        self._backend = backend
        self._version = 0
        with ui.dialog() as self._dialog, ui.element("div").classes("ask-first").props('role=dialog aria-modal=true aria-labelledby="ask-rollback"'):
            self._title = ui.html("", sanitize=False, tag="h2").props("id=ask-rollback")
            self._facts = ui.html("", sanitize=False)
            self._reason = ui.input("Reason (optional)").props("outlined dense maxlength=500")
            # Quasar takes the visible text for the name of the box only where it is the label property, and NiceGUI passes it as content.
            self._resume = ui.checkbox("Go on learning from there at once").props('aria-label="Go on learning from there at once"')
            ui.html(
                "<p class=muted>Otherwise the learner stays paused until you resume it, so that what went wrong is not learned again.</p>",
                sanitize=False,
            )
            self._problem = ui.label("").classes("alarm").props("role=alert")
            with ui.element("div").classes("answers"):
                ui.button("Cancel", on_click=self._dialog.close, color=None).props("flat no-caps")
                self._confirm = ui.button("Roll back", on_click=self._do).props("unelevated no-caps")

    async def open(self, version: int) -> None:
        """Raises NotFoundError."""
        backend = self._backend()
        if backend is None:
            return
        self._version = version
        detail = await backend.control.policy(version)
        self._title.set_content(f"Roll back to version {version}?")
        self._facts.set_content(
            f"<p>Version {detail.active_version} stops serving and version {version} serves again within a second or two; no request is dropped. "
            "Scores for answers of the versions left behind are not learned from.</p>"
        )
        self._resume.set_value(False)
        self._reason.set_value("")
        self._problem.set_text(detail.refusal or "")
        self._confirm.set_enabled(detail.refusal is None)
        self._dialog.open()

    async def _do(self) -> None:
        backend = self._backend()
        if backend is None:
            return
        try:
            await backend.control.rollback(self._version, resume=bool(self._resume.value), reason=str(self._reason.value or "").strip() or None)
        except OnlineSAOError as error:
            self._problem.set_text(error.message)
            return
        self._dialog.close()
        ui.notify(f"Rolling back to version {self._version}.")


class PauseDialog:
    """Asks why: who finds the learner paused next week wants to know."""

    def __init__(self, backend: Callable[[], Backend | None]) -> None:
        self._backend = backend
        with ui.dialog() as self._dialog, ui.element("div").classes("ask-first").props('role=dialog aria-modal=true aria-labelledby="ask-pause"'):
            ui.html("Pause learning?", sanitize=False, tag="h2").props("id=ask-pause")
            ui.html(
                "<p>No further update begins; one under way is finished. Chats are answered and scores are kept, and wait for the learner.</p>",
                sanitize=False,
            )
            self._reason = ui.input("Reason (optional)").props("outlined dense maxlength=500").on("keydown.enter", self._do)
            self._problem = ui.label("").classes("alarm").props("role=alert")
            with ui.element("div").classes("answers"):
                ui.button("Cancel", on_click=self._dialog.close, color=None).props("flat no-caps")
                ui.button("Pause", on_click=self._do).props("unelevated no-caps")

    def open(self) -> None:
        self._reason.set_value("")
        self._problem.set_text("")
        self._dialog.open()

    async def _do(self) -> None:
        backend = self._backend()
        if backend is None:
            return
        try:
            await backend.control.pause_learner(str(self._reason.value or "").strip() or None)
        except OnlineSAOError as error:
            self._problem.set_text(error.message)
            return
        self._dialog.close()
        ui.notify("Learning is paused.")
