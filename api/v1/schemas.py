"""Request bodies of /v1 as pydantic models, strict in JSON types. Owns what a client may send; knows nothing of how it is served."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, WithJsonSchema, field_validator, model_validator

from api.v1.messages import Body, Message, Tool
from online_sao.errors import UnsupportedFeatureError

MAX_STOP_STRINGS = 4
MIN_TEMPERATURE = 0.001
MAX_CHOICES = 8
MAX_TOP_LOGPROBS = 20
MAX_TOOLS = 128


_STOP_SCHEMA = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": MAX_STOP_STRINGS},
        {"type": "null"},
    ]
}


class StreamOptions(Body):
    include_usage: bool | None = None


class ChatCompletionRequest(Body):
    """POST /v1/chat/completions. Null means absent everywhere but in ``model`` and ``messages``."""

    model: Annotated[str, Field(min_length=1, max_length=128)]
    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: Annotated[tuple[str, ...], WithJsonSchema(_STOP_SCHEMA)] = ()
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    metadata: dict[str, str] | None = None
    user: Annotated[str, Field(max_length=256)] | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _stop(cls, value: Any) -> Any:
        stops = [value] if isinstance(value, str) else value if value is not None else []
        if not isinstance(stops, list) or not all(isinstance(s, str) for s in stops):
            raise ValueError(f"must be a string or a list of up to {MAX_STOP_STRINGS} strings")
        if len(stops) > MAX_STOP_STRINGS:
            raise ValueError(f"holds {len(stops)} strings; at most {MAX_STOP_STRINGS} are allowed")
        if "" in stops:
            raise ValueError("holds an empty string, which would end every answer before it begins")
        return tuple(stops)

    @field_validator("temperature")
    @classmethod
    def _temperature(cls, value: float | None) -> float | None:
        if value is not None and 0 < value < MIN_TEMPERATURE:
            raise ValueError(f"must be 0 (greedy) or at least {MIN_TEMPERATURE}: below it, log-probabilities are no longer exact")
        return value

    @field_validator("metadata")
    @classmethod
    def _metadata(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        for key, text in (value or {}).items():
            if len(key) > 64 or len(text) > 512:
                raise ValueError(f"{key[:64]!r}: keys may have 64 characters, values 512")
            if key == "episode_id" and not 0 < len(text) <= 256:
                raise ValueError("'episode_id' must have 1 to 256 characters")
        if value is not None and len(value) > 16:
            raise ValueError(f"holds {len(value)} pairs; at most 16 are allowed")
        return value

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ValueError("'max_tokens' and 'max_completion_tokens' name different limits; send one of them")
        if self.stream_options is not None and not self.stream:
            raise ValueError("'stream_options' is only allowed when 'stream' is true")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("'top_logprobs' is only allowed when 'logprobs' is true")
        return self

    @property
    def offered_tools(self) -> tuple[dict[str, Any], ...]:
        """The tools the model is to see: none under tool_choice "none", whatever was sent."""
        return () if self.tool_choice == "none" else tuple(tool.as_dict() for tool in self.tools or ())


_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "parallel_tool_calls": (True,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "stop_token_ids": ([],),
    "ignore_eos": (False,),
    "best_of": (1,),
    "echo": (False,),
}
"""Parameters that would change what is sampled or answered, and the values of each that change nothing. Null is neutral for all."""


def refuse_unsupported(data: dict[str, Any]) -> None:
    """Raises UnsupportedFeatureError naming the first parameter this server cannot honour. Unknown others are harmless and ignored."""
    if isinstance(data.get("tool_choice"), dict) or data.get("tool_choice") == "required":
        raise UnsupportedFeatureError(
            "'tool_choice' can be 'auto' or 'none': the model samples freely, so that its answers can train it, and cannot be made to call a tool.",
            param="tool_choice",
        )
    for name, neutral in _NEUTRAL.items():
        value = data.get(name)
        if value is not None and not any(value == n and isinstance(value, bool) == isinstance(n, bool) for n in neutral):
            raise UnsupportedFeatureError(f"'{name}' is not supported by this server (got {value!r:.60}). Leave it out.", param=name)


class FeedbackRequest(Body):
    """POST /v1/feedback. ``value``'s range and type are the service's to check: it can say what was expected. Null means absent everywhere else."""

    completion_id: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    episode_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    choice: Annotated[int, Field(ge=0, lt=MAX_CHOICES)] | None = None
    value: Annotated[Any, WithJsonSchema({"type": ["number", "boolean"]})]
    metric: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    comment: Annotated[str, Field(max_length=10_000)] | None = None
    idempotency_key: Annotated[str, Field(min_length=1, max_length=256)] | None = None

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if (self.completion_id is None) == (self.episode_id is None):
            raise ValueError("name one target: 'completion_id' (with 'choice' where n > 1), or 'episode_id'")
        return self
