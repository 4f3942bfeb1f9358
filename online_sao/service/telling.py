"""What a client is told while one choice is sampled: text, tool calls taken out of it, logprobs. Owns the way from sampled pieces to chat events.

Only what is told changes here: the logged text, ids and logprobs are the sampled ones, whatever a client asked to see.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from online_sao.inference.tool_calls import ToolCall, ToolCallParser
from online_sao.service.chat_records import ChatEvent, SampledToken, TextDelta, TokenLogprob, ToolCallDelta

DescribeToken = Callable[[int], tuple[str, tuple[int, ...] | None]]
"""Text and bytes of a token id; see inference.token_text."""


class ChoiceTeller:
    """``parser`` None: tool calls are not looked for. ``describe`` None: no logprobs were asked for."""

    def __init__(self, choice: int, tell: Callable[[ChatEvent], None], parser: ToolCallParser | None, describe: DescribeToken | None) -> None:
        self._choice = choice
        self._tell = tell
        self._parser = parser
        self._describe = describe
        self.tool_calls = 0
        """Calls told so far."""

    def piece(self, text: str, policy_version: int, tokens: Sequence[SampledToken]) -> None:
        """New text and tokens, as the sampler has them."""
        told = tuple(map(self._token, tokens)) if self._describe is not None else ()
        parts: list[str | ToolCall] = self._parser.push(text) if self._parser is not None else [text]
        self._tell_all(parts, policy_version, told)

    def finish(self, policy_version: int, *, complete: bool) -> None:
        """The last piece has come. ``complete``: the model ended by itself."""
        if self._parser is not None:
            self._tell_all(self._parser.finish(complete=complete), policy_version, ())

    def _tell_all(self, parts: Sequence[str | ToolCall], policy_version: int, tokens: tuple[TokenLogprob, ...]) -> None:
        for part in parts:
            if isinstance(part, ToolCall):
                identity = f"call_{uuid.uuid4().hex[:24]}"
                self._tell(ToolCallDelta(self._choice, self.tool_calls, identity, part.name, part.arguments, policy_version))
                self.tool_calls += 1
            elif part or tokens:
                self._tell(TextDelta(self._choice, part, policy_version, tokens))
                tokens = ()
        if tokens:
            self._tell(TextDelta(self._choice, "", policy_version, tokens))

    def _token(self, sampled: SampledToken) -> TokenLogprob:
        assert self._describe is not None
        top = tuple(TokenLogprob(*self._describe(token_id), logprob) for token_id, logprob in sampled.top)
        return TokenLogprob(*self._describe(sampled.token_id), sampled.logprob, top)
