"""Tokens to text, one at a time: whole characters only, cut at stop strings. Owns nothing but the state of one completion.

Pure and engine independent: knows a detokeniser and strings; nothing of models, requests or HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_INCOMPLETE = "\ufffd"


class Detokenizer(Protocol):
    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones left out, incomplete characters as U+FFFD."""


class StreamDecoder:
    """Text of one completion as its tokens arrive.

    A character whose bytes are not all there yet, and text that may turn out to be the beginning of a stop string, are held back. All text given out,
    in order, is ``text``: the decoded tokens up to the first stop string, without it.
    """

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str] = ()) -> None:
        if "" in stop:
            raise ValueError("an empty stop string would stop every completion before it begins")
        self._detokenizer = detokenizer
        self._stop = tuple(stop)
        self._token_ids: list[int] = []
        # Tokens before ``_read`` make whole characters. Those from ``_prefix`` on are decoded again with the next ones: how a token reads (a leading
        # space, say) can depend on the one before it. ``_known`` characters of that window are done with.
        self._prefix = 0
        self._read = 0
        self._known = 0
        self._held = ""
        self._given: list[str] = []
        self.stopped = False

    @property
    def text(self) -> str:
        """All text given out so far."""
        return "".join(self._given)

    def push(self, token_id: int) -> str:
        """Take the next token; the text that may be shown now (perhaps none). Raises ValueError after a stop string is complete."""
        if self.stopped:
            raise ValueError("the completion has already stopped")
        self._token_ids.append(token_id)
        decoded = self._detokenizer.decode(self._token_ids[self._prefix :])
        whole = decoded.rstrip(_INCOMPLETE)
        new, self._known = whole[self._known :], max(self._known, len(whole))
        if len(whole) == len(decoded):
            self._prefix, self._read = self._read, len(self._token_ids)
            self._known = len(self._detokenizer.decode(self._token_ids[self._prefix : self._read]))
        return self._give(new, final=False)

    def finish(self) -> str:
        """No more tokens: whatever was held back. Bytes that never became a character (a limit inside an emoji) are left out. Nothing once
        ``stopped``, or again."""
        if self.stopped:
            return ""
        tail = self._detokenizer.decode(self._token_ids[self._prefix :])[self._known :]
        self._known += len(tail)
        return self._give(tail.rstrip(_INCOMPLETE), final=True)

    def _give(self, new: str, *, final: bool) -> str:
        """Add new text to what is held; take out what may be shown."""
        pending = self._held + new
        starts = [start for stop in self._stop if (start := pending.find(stop)) >= 0]
        if starts:
            self.stopped = True
            shown, self._held = pending[: min(starts)], ""
        else:
            keep = 0 if final else self._possible_stop(pending)
            shown, self._held = pending[: len(pending) - keep], pending[len(pending) - keep :]
        if shown:
            self._given.append(shown)
        return shown

    def _possible_stop(self, pending: str) -> int:
        """Length of the longest end of ``pending`` with which some stop string begins."""
        longest = min(len(pending), max((len(stop) for stop in self._stop), default=1) - 1)
        return next((length for length in range(longest, 0, -1) if any(stop.startswith(pending[-length:]) for stop in self._stop)), 0)
