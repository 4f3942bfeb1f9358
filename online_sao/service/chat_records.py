"""The records of one chat request on its way: asked, admitted, sampled, told. Owns their words; does nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from online_sao.errors import OnlineSAOError
from online_sao.types import Completion, FinishReason, SamplingParams


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """What a client asks for. ``max_tokens`` counts completion tokens of one choice; None: the server's default."""

    request_id: str
    model: str
    messages: tuple[dict[str, Any], ...]
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    n: int = 1
    stop: tuple[str, ...] = ()
    user: str | None = None
    store: bool = True
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def episode_id(self) -> str | None:
        return self.metadata.get("episode_id")


@dataclass(frozen=True, slots=True)
class AdmittedRequest:
    """A request that will be sampled. ``sampling`` is what is really used; ``requested`` what exploration settings replaced, if anything.

    ``policy_version``: the one serving at admission. ``not_trainable_reason``: why none of its choices can train, known in advance; None if they can.
    """

    completion_id: str
    command: ChatCommand
    created_at: float
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    requested: dict[str, Any] | None
    policy_version: int
    not_trainable_reason: str | None


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
class TextDelta:
    """New text of one choice. Never splits a character; never empty."""

    choice: int
    text: str
    policy_version: int


@dataclass(frozen=True, slots=True)
class ChoiceDone:
    """One choice is complete and on disk. ``policy_version``: the newest that produced one of its tokens."""

    choice: int
    finish_reason: FinishReason
    completion_tokens: int
    policy_version: int
    not_trainable_reason: str | None


ChatEvent = TextDelta | ChoiceDone
