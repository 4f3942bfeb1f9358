"""Messages and tools of a chat request as pydantic models, strict in JSON types. Owns their forms and what of them is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, WithJsonSchema, field_validator, model_validator

from api.bodies import parse_json_object
from online_sao.errors import InvalidRequestError, UnsupportedFeatureError

FUNCTION_NAME = r"^[a-zA-Z0-9_.:-]{1,128}$"


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class FunctionCall(Body):
    name: Annotated[str, Field(pattern=FUNCTION_NAME)]
    arguments: str
    """A JSON object as text."""

    @field_validator("arguments")
    @classmethod
    def _object(cls, value: str) -> str:
        try:
            parse_json_object(value.encode(), "the text of 'arguments'")
        except InvalidRequestError as error:
            raise ValueError(error.message) from error
        return value


class MessageToolCall(Body):
    id: Annotated[str, Field(min_length=1, max_length=128)]
    type: Literal["function"] = "function"
    function: FunctionCall


_CONTENT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                "required": ["type", "text"],
            },
        },
        {"type": "null"},
    ]
}


class Message(Body):
    """``content`` may be absent or null only in an assistant message that has ``tool_calls``; ``tool_call_id`` belongs to messages of role tool."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    name: Annotated[str, Field(max_length=128)] | None = None
    content: Annotated[str | None, Field(validate_default=True), WithJsonSchema(_CONTENT_SCHEMA)] = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_by_name(cls, data: Any) -> Any:
        if isinstance(data, dict):
            if data.get("role") == "function":
                raise UnsupportedFeatureError("Messages of role 'function' are not supported; send role 'tool'.", param="messages")
            for name in ("function_call", "audio"):
                if data.get(name):
                    raise UnsupportedFeatureError(f"{name!r} in a message is not supported.", param="messages")
        return data

    @field_validator("content", mode="before")
    @classmethod
    def _content(cls, content: Any, info: ValidationInfo) -> Any:
        """Content given as parts is accepted while every part is text; then it is their concatenation."""
        if content is None and not info.data.get("tool_calls"):
            raise ValueError("text, or a list of text parts, is required here")
        return _text_of_parts(content) if isinstance(content, list) else content

    @model_validator(mode="after")
    def _tools_where_they_belong(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"'tool_calls' belong to assistant messages, not to {self.role} messages")
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise ValueError("a message of role 'tool' needs a 'tool_call_id', and no other message has one")
        return self

    def as_dict(self) -> dict[str, Any]:
        """For the chat template and the log: ``developer`` is what newer clients call ``system``."""
        message: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": self.content or ""}
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.role == "tool":
            message["tool_call_id"] = self.tool_call_id
            if self.name is not None:
                message["name"] = self.name
        return message


class FunctionDefinition(Body):
    name: Annotated[str, Field(pattern=FUNCTION_NAME)]
    description: Annotated[str, Field(max_length=10_000)] | None = None
    parameters: dict[str, Any] | None = None
    strict: Literal[False] | None = None

    @field_validator("strict", mode="before")
    @classmethod
    def _not_strict(cls, value: Any) -> Any:
        if value is True:
            raise UnsupportedFeatureError("'strict' tools are not supported: the model samples freely, no schema is enforced.", param="tools")
        return value


class Tool(Body):
    type: Literal["function"]
    function: FunctionDefinition

    @field_validator("type", mode="before")
    @classmethod
    def _functions_only(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "function":
            raise UnsupportedFeatureError(f"Tools of type {value[:40]!r} are not supported; functions are.", param="tools")
        return value

    def as_dict(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True, exclude={"function": {"strict"}})


def _text_of_parts(parts: list[Any]) -> str:
    texts = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind == "text":
            raise ValueError("a content part of type 'text' needs a string 'text'")
        elif isinstance(kind, str):
            raise UnsupportedFeatureError(f"Content parts of type {kind[:40]!r} are not supported; this model reads text only.", param="messages")
        else:
            raise ValueError("a content part must be an object with a 'type'")
    if not texts:
        raise ValueError("the list of content parts is empty")
    return "".join(texts)
