"""Answers of /v1 as pydantic models, for /openapi.json: what a client may rely on. Owns their forms; the routes build these dictionaries themselves.

Fields may be added at any time; none of these is ever taken away.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from online_sao.types import InteractionStatus, ReceiptStatus


class TokenAlternative(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None = Field(...)


class TokenLogprob(TokenAlternative):
    top_logprobs: list[TokenAlternative]


class ChoiceLogprobs(BaseModel):
    content: list[TokenLogprob]
    refusal: None = Field(...)


class CalledFunction(BaseModel):
    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None = Field(...)
    refusal: None = Field(...)
    tool_calls: list[ToolCall] | None = None


class Choice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: ChoiceLogprobs | None = Field(...)
    finish_reason: Literal["stop", "length", "tool_calls"]


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class LearningNote(BaseModel):
    """Which version answered, whether a score can train it and why not, and the sampling parameters really used."""

    policy_version: int
    trainable: bool
    not_trainable_reason: str | None = Field(...)
    sampling: dict[str, Any]


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage
    online_sao: LearningNote


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    policy_version: int


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[Model]


class FeedbackReceipt(BaseModel):
    """What became of a score."""

    id: str
    object: Literal["feedback"]
    completion_id: str
    choice: int
    metric: str
    value: float
    status: ReceiptStatus
    reason: str | None = Field(...)
    reward: float | None = Field(...)
    update: int | None = Field(...)
    policy_version: int | None = Field(...)
    masked_fraction: float | None = Field(...)
    created: float
    updated: float
    advice: str | None = Field(...)
    comment: str | None = Field(...)


class TrajectoryNote(BaseModel):
    state: str
    reason: str | None = Field(...)
    advice: str | None = Field(...)
    reward: float | None = Field(...)
    update: int | None = Field(...)
    policy_lag: int | None = Field(...)
    masked_fraction: float | None = Field(...)
    deadline: float | None = Field(...)


class LoggedChoice(BaseModel):
    """Texts are null where they were not stored, or erased."""

    id: str
    object: Literal["interaction.choice"]
    choice: int
    request_id: str | None = Field(...)
    model: str
    user: str | None = Field(...)
    episode_id: str | None = Field(...)
    metadata: dict[str, str]
    status: InteractionStatus
    stored: bool
    messages: list[dict[str, Any]] | None = Field(...)
    text: str | None = Field(...)
    finish_reason: str | None = Field(...)
    sampling: dict[str, Any]
    policy_version: int
    prompt_tokens: int
    completion_tokens: int | None = Field(...)
    created: float
    first_token: float | None = Field(...)
    completed: float | None = Field(...)
    trajectory: TrajectoryNote | None = Field(...)
    scores: list[FeedbackReceipt]


class LoggedChoiceWithTokens(LoggedChoice):
    """``version_spans``: [start, end, policy_version] over ``token_ids``."""

    prompt_ids: list[int] | None = Field(...)
    token_ids: list[int] | None = Field(...)
    behavior_logprobs: list[float] | None = Field(...)
    version_spans: list[list[int]] | None = Field(...)


class InteractionPage(BaseModel):
    object: Literal["list"]
    data: list[LoggedChoice]
    has_more: bool
    next_cursor: str | None = Field(...)


class Interaction(BaseModel):
    id: str
    object: Literal["interaction"]
    choices: list[LoggedChoiceWithTokens]


class InteractionDeleted(BaseModel):
    object: Literal["interaction.deleted"]
    deleted: bool
    choices: int
    message: str | None = None


# No schema: OpenAPI 3.1 leaves open whether it would be of the whole stream or of one event, and its readers differ.
EVENT_STREAM: dict[str, Any] = {"text/event-stream": {"example": 'data: {"object": "chat.completion.chunk", "choices": [], …}\n\ndata: [DONE]\n\n'}}
