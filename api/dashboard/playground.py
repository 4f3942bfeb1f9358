"""The playground: talk to the policy being served, score an answer, watch the receipt. One per open page, on the same services as HTTP."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nicegui import ui
from nicegui.elements.button import Button
from nicegui.elements.html import Html
from nicegui.elements.label import Label

from api.dashboard.markup import link
from api.dashboard.words import RECEIPTS, reason
from api.dependencies import Backend
from online_sao.errors import OnlineSAOError
from online_sao.service.chat import ChatRun
from online_sao.service.chat_records import ChatCommand, ChoiceDone, TextDelta
from online_sao.service.receipts import Receipt
from online_sao.service.submissions import FeedbackSubmission
from online_sao.types import ReceiptStatus

USER = "playground"
MAX_TOKENS = 64
OPEN = (ReceiptStatus.RECEIVED, ReceiptStatus.QUEUED, ReceiptStatus.TRAINED)


@dataclass(slots=True)
class Turn:
    """One answer on the page, and its receipt once it is scored."""

    bubble: Label
    version: Label
    thumbs: tuple[Button, Button]
    status: Label
    more: Html
    text: str = ""
    completion_id: str = ""
    feedback_id: str | None = None
    settled: bool = False


class Playground:
    """Build inside a page. ``backend`` gives None while the server is still starting."""

    def __init__(self, backend: Callable[[], Backend | None]) -> None:
        self._backend = backend
        self._messages: list[dict[str, Any]] = []
        self._turns: list[Turn] = []
        self._run: ChatRun | None = None
        self._left = False

    def build(self) -> None:
        self._talk = ui.element("div").classes("talk").props('role=log aria-label="Conversation" aria-live=polite tabindex=0')
        self._welcome()
        with ui.element("div").classes("ask"):
            self._question = (
                ui.textarea(placeholder="Ask something")
                .props('outlined dense autogrow rows=1 aria-label="Your message" maxlength=4000')
                .on("keydown.enter.exact.prevent", self._ask)
            )
            self._send = ui.button(icon="arrow_upward", on_click=self._ask).props('round unelevated dense aria-label="Send"')
        with ui.element("div").classes("under-ask"):
            ui.label(f"Temperature 1, up to {MAX_TOKENS} tokens")
            ui.button("New chat", on_click=self._clear, color=None).props("flat dense no-caps").classes("quiet")
        ui.context.client.on_delete(self.leave)

    def leave(self) -> None:
        """The page is gone: nobody reads the answer under way."""
        self._left = True
        self._abandon()

    def _abandon(self) -> None:
        if self._run is not None:
            self._run.abandon()

    async def refresh(self) -> None:
        """Bring the receipts that may still change up to date."""
        backend = self._backend()
        for turn in self._turns:
            if backend is not None and turn.feedback_id is not None and not turn.settled:
                self._show(turn, await backend.feedback.get(turn.feedback_id))

    def _welcome(self) -> None:
        with self._talk:
            ui.html("<p class=muted>Every answer you score here is one the policy learns from.</p>", sanitize=False)

    def _clear(self) -> None:
        self._abandon()
        self._messages, self._turns = [], []
        self._talk.clear()
        self._welcome()

    async def _ask(self) -> None:
        question = str(self._question.value or "").strip()
        if not question or self._run is not None or not self._send.enabled:
            return
        backend = self._backend()
        if backend is None:
            ui.notify("The server is still starting.")
            return
        self._question.set_value("")
        self._send.disable()
        if not self._messages:
            self._talk.clear()
        conversation = self._messages  # "New chat" meanwhile begins another list
        conversation.append({"role": "user", "content": question})
        turn = self._add_turn(question)
        try:
            await self._answer(backend, conversation, turn)
        except OnlineSAOError as error:
            conversation.pop()
            if not self._left and conversation is self._messages:
                turn.version.set_text(error.message)
                turn.version.classes("alarm")
        finally:
            self._run = None
            if not self._left:
                turn.bubble.classes(remove="writing")
                self._send.enable()

    async def _answer(self, backend: Backend, conversation: list[dict[str, Any]], turn: Turn) -> None:
        command = ChatCommand(f"playground-{uuid.uuid4().hex}", backend.settings.policy.name, tuple(conversation), max_tokens=MAX_TOKENS, user=USER)
        run = self._run = await backend.chat.start(command)
        if self._left:
            run.abandon()
        turn.completion_id = run.request.completion_id
        async for event in run.events():
            if self._left or conversation is not self._messages:
                continue  # nobody looks any more; the run still has to end
            if isinstance(event, TextDelta):
                turn.text += event.text
                turn.bubble.set_text(turn.text)
                turn.version.set_text(f"v{event.policy_version}")
                self._scroll_down()
            elif isinstance(event, ChoiceDone):
                turn.version.set_text(f"v{event.policy_version}" + (", cut at the limit" if event.finish_reason == "length" else ""))
                for thumb in turn.thumbs:
                    thumb.set_visibility(True)
                turn.more.set_content(link("details", "interactions", id=turn.completion_id))
                self._scroll_down()
        conversation.append({"role": "assistant", "content": turn.text})

    def _add_turn(self, question: str) -> Turn:
        with self._talk:
            with ui.element("div").classes("turn mine"):
                ui.label(question).classes("bubble")
            with ui.element("div").classes("turn"):
                bubble = ui.label("").classes("bubble writing")
                with ui.element("div").classes("under"):
                    version = ui.label("")
                    up = _thumb("thumb_up", "Good answer")
                    down = _thumb("thumb_down", "Bad answer")
                    status = ui.label("").props("role=status")
                    more = ui.html("", sanitize=False, tag="span")
        turn = Turn(bubble, version, (up, down), status, more)
        for thumb, good in ((up, True), (down, False)):
            thumb.set_visibility(False)
            thumb.on_click(lambda _, good=good: self._score(turn, good))
        self._turns.append(turn)
        self._scroll_down()
        return turn

    async def _score(self, turn: Turn, good: bool) -> None:
        backend = self._backend()
        if backend is None:
            return
        try:
            receipt, _ = await backend.feedback.submit(FeedbackSubmission(turn.completion_id, good))
        except OnlineSAOError as error:
            turn.status.set_text(error.message)
            return
        for thumb, chosen in zip(turn.thumbs, (good, not good), strict=True):
            thumb.classes(add="chosen" if chosen else None, remove=None if chosen else "chosen").props(f"aria-pressed={str(chosen).lower()}")
        turn.feedback_id, turn.settled = receipt.id, False
        self._show(turn, receipt)

    def _show(self, turn: Turn, receipt: Receipt) -> None:
        turn.status.set_text(receipt_words(receipt))
        turn.settled = receipt.status not in OPEN

    def _scroll_down(self) -> None:
        self._talk.run_method("scrollTo", 0, 1_000_000)


def _thumb(icon: str, label: str) -> Button:
    return ui.button(icon=icon, color=None).props(f'flat round dense size=sm aria-label="{label}" aria-pressed=false').classes("quiet")


def receipt_words(receipt: Receipt) -> str:
    """One line: what became of the score, and why."""
    text = RECEIPTS.get(receipt.status, receipt.status)
    if receipt.status is ReceiptStatus.LIVE:
        return f"live in version {receipt.policy_version}"
    if receipt.status is ReceiptStatus.TRAINED:
        text = f"used in update {receipt.update}; version {receipt.policy_version} is not serving yet"
    why = f"{text} ({reason(receipt.reason)})" if receipt.reason else text
    return f"{why}. {receipt.advice}" if receipt.advice else why
