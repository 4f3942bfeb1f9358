"""The records of one chat request on its way: asked, admitted, sampled, told. Owns their words."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from online_sao.errors import OnlineSAOError
from online_sao.inference.engine import PinnedVersion, TopLogprobs
from online_sao.types import Completion, FinishReason, SamplingParams


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """What a client asks for. ``max_tokens`` counts completion tokens of one choice; None: the server's default. ``tools``: those the model may call,
    as they were sent. ``top_logprobs`` counts alternatives at each place, and needs ``logprobs``."""

    request_id: str
    model: str
    messages: tuple[dict[str, Any], ...]
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    n: int = 1
    stop: tuple[str, ...] = ()
    seed: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    tools: tuple[dict[str, Any], ...] = ()
    user: str | None = None
    store: bool = True
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def episode_id(self) -> str | None:
        return self.metadata.get("episode_id")


@dataclass(frozen=True, slots=True)
class AdmittedRequest:
    """A request that will be sampled. ``sampling`` is what is really used; ``requested`` what exploration settings replaced, if anything.

    ``policy_version``: the one serving at admission, or ``pinned``: the one that was asked for by its number.
    ``not_trainable_reason``: why none of its choices can train, known in advance; None if they can.
    """

    completion_id: str
    command: ChatCommand
    created_at: float
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    requested: dict[str, Any] | None
    policy_version: int
    not_trainable_reason: str | None
    pinned: PinnedVersion | None = None

    @property
    def sampling_note(self) -> dict[str, Any]:
        """How it is really sampled, for the log and the answer."""
        note: dict[str, Any] = {**asdict(self.sampling), "stop": list(self.sampling.stop)}
        if self.command.seed is not None:
            note["seed"] = self.command.seed
        if self.requested is not None:
            note["requested"] = self.requested
        return note


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one choice in the engine. Versions are those of its tokens (the admitting one where it has none). ``seconds``: time in the
    engine. ``error``: where the engine failed or refused it."""

    completion: Completion
    oldest_version: int
    newest_version: int
    first_token_at: float | None
    completed_at: float
    seconds: float
    error: OnlineSAOError | None = None


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token as the engine gave it. ``top``: (token id, logprob) of the likeliest at its place, if they were asked for."""

    token_id: int
    logprob: float
    top: TopLogprobs = ()


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token as a client reads it: text, UTF-8 bytes (None for control tokens, which are no text), and the behavior logprob."""

    token: str
    bytes: tuple[int, ...] | None
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of one choice. Never splits a character. Empty only where it brings ``tokens``, which come only to those who asked for logprobs:
    every token of the action, also those whose text is held back, hidden, or part of a tool call."""

    choice: int
    text: str
    policy_version: int
    tokens: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """One whole call of a tool. ``index`` counts the calls of its choice; ``arguments`` is a JSON object as text."""

    choice: int
    index: int
    call_id: str
    name: str
    arguments: str
    policy_version: int


@dataclass(frozen=True, slots=True)
class ChoiceDone:
    """One choice is complete and on disk. ``policy_version``: the newest that produced one of its tokens. ``tool_calls``: how many it made."""

    choice: int
    finish_reason: FinishReason
    completion_tokens: int
    policy_version: int
    not_trainable_reason: str | None
    tool_calls: int = 0


ChatEvent = TextDelta | ToolCallDelta | ChoiceDone
