"""Messages to prompt tokens and tokens to text. Owns the chat template and the rule that what people type is never a control token.

The template runs on the messages with every special token typed in them masked; its output is then encoded piece by piece: the template's own special
tokens become their ids, all else is encoded as plain text with the masks undone. For messages without such text the ids equal the tokenizer's own.
Knows nothing of sampling, engines or HTTP.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError

from online_sao.errors import ConfigurationError, InvalidRequestError, UnsupportedFeatureError
from online_sao.inference.template_tools import TEMPLATE_FAULTS, find_tool_support
from online_sao.inference.token_text import TokenText
from online_sao.inference.tool_calls import CLOSE, OPEN
from online_sao.models.catalog import eos_token_ids, load_tokenizer

_PROBE = (
    {"role": "user", "content": "Is 12 + 7\n\n odd?  "},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "naïve 🙂 text"},
)
_PRIVATE_USE = range(0xF0000, 0xFFFFE)
_UNRENDERED = frozenset({"role", "type", "id", "tool_call_id"})
"""Fields of messages and tools that templates may leave out."""


class Renderer:
    """Thread-safe. ``tokenizer`` is a fast tokenizer with a chat template; ``eos_token_ids`` are the ids that end an answer.

    Raises ConfigurationError if piecewise encoding does not reproduce the tokenizer's own on ordinary text (some tokenizers treat the start of a
    text or the space beside a special token in their own way): a prompt would not be what the model was trained on.
    """

    def __init__(self, tokenizer: Any, eos_token_ids: tuple[int, ...]) -> None:
        self.eos_token_ids = eos_token_ids
        self._tokenizer = tokenizer
        # A copy of our own, set once: the tokenizer's per-call switch for special tokens is shared between threads.
        self._encoder = copy.deepcopy(tokenizer.backend_tokenizer)
        self._encoder.encode_special_tokens = True
        self._special_ids = {token.content: token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
        longest_first = sorted(self._special_ids, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)))
        # Marks of tool calls are text to whoever reads an answer, also where the tokenizer has them as special tokens.
        self._hidden = frozenset(token_id for content, token_id in self._special_ids.items() if content not in (OPEN, CLOSE))
        self._longest_token = max(map(len, tokenizer.get_vocab()))
        self._generation_prompt = self._find_generation_prompt()
        self.tool_support = find_tool_support(lambda messages, tools: self._apply_template(messages, tools, add_generation_prompt=True))
        self.describe_token = TokenText(tokenizer).describe
        self._check_against_tokenizer()

    @classmethod
    def from_model(cls, path: Path) -> Renderer:
        """The renderer of a model folder (see models.catalog.obtain)."""
        return cls(load_tokenizer(path), eos_token_ids(path))

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> tuple[int, ...]:
        """Prompt ids for messages in OpenAI's form (``content`` is text), ending where the answer begins.

        A conversation that goes on from an earlier prompt starts with that prompt's ids, unless the template itself rewrites earlier turns.
        Raises InvalidRequestError where the template refuses the messages (the order of roles, say), UnsupportedFeatureError where it has no place
        for the tools, calls or results among them.
        """
        self._check_tools(messages, tools)
        mask = _unused_character(messages, tools)
        masked, masked_tools = (_map_texts(part, lambda text: self._mask(text, mask)) for part in (_for_template(messages), tools))
        try:
            text = self._apply_template(masked, masked_tools, add_generation_prompt=True)
        except (TemplateError, *TEMPLATE_FAULTS) as error:
            raise InvalidRequestError(f"This model's chat template does not accept these messages: {error}", param="messages") from error
        return tuple(self._encode(text, mask))

    def fewest_tokens(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> int:
        """A number of tokens that ``render`` will at least give, without encoding anything: no token stands for more characters than the longest
        in the vocabulary, and every message takes one. Encoding millions of characters holds up the whole process, whatever thread does it."""
        return max(len(messages), (_characters(messages) + _characters(tools)) // self._longest_token)

    def encode_text(self, text: str) -> tuple[int, ...]:
        """The ids of plain text, outside any conversation."""
        return tuple(self._encoder.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, without special ones. Incomplete characters come out as U+FFFD."""
        decoded: str = self._encoder.decode([i for i in token_ids if i not in self._hidden], skip_special_tokens=False)
        return decoded

    def _check_tools(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> None:
        if tools and not self.tool_support.shows_tools:
            raise UnsupportedFeatureError(
                "This model's chat template has no place for tools: they would never reach the model. Send no 'tools' (or tool_choice 'none'), "
                "describe them in the system message, or ask the operator for a model whose template takes tools.",
                param="tools",
            )
        if not self.tool_support.carries_calls and any(message["role"] == "tool" or message.get("tool_calls") for message in messages):
            raise UnsupportedFeatureError(
                "This model's chat template has no place for tool calls and their results: they would be lost on the way to the model. Send them as "
                "text of user and assistant messages, or ask the operator for a model whose template takes tools.",
                param="messages",
            )

    def _apply_template(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), *, add_generation_prompt: bool) -> str:
        text: str = self._tokenizer.apply_chat_template(
            list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=add_generation_prompt
        )
        return text

    def _mask(self, text: str, mask: str) -> str:
        return self._special.sub(lambda found: f"{mask}{self._special_ids[found[0]]}{mask}", text)

    def _encode(self, text: str, mask: str) -> Iterator[int]:
        masked = re.compile(f"{mask}([0-9]+){mask}")
        for piece in self._pieces(text):
            if piece in self._special_ids:
                yield self._special_ids[piece]
            else:
                plain = masked.sub(lambda found: self._tokenizer.added_tokens_decoder[int(found[1])].content, piece)
                yield from self._encoder.encode(plain, add_special_tokens=False).ids

    def _pieces(self, text: str) -> Iterator[str]:
        """The template's output cut at special tokens, and at the end of each answer's opening: it is encoded the same whether an answer follows
        (a later turn) or not (the prompt that answer was sampled from)."""
        stretches = text.split(self._generation_prompt) if self._generation_prompt else [text]
        for index, stretch in enumerate(stretches):
            if index:
                yield from self._cut(self._generation_prompt)
            yield from self._cut(stretch)

    def _cut(self, text: str) -> Iterator[str]:
        position = 0
        for found in self._special.finditer(text):
            if found.start() > position:
                yield text[position : found.start()]
            yield found[0]
            position = found.end()
        if position < len(text):
            yield text[position:]

    def _find_generation_prompt(self) -> str:
        try:
            closed = self._apply_template(_PROBE, add_generation_prompt=False)
            opened = self._apply_template(_PROBE, add_generation_prompt=True)
        except TemplateError as error:
            raise ConfigurationError(f"The model's chat template fails on a plain conversation: {error}. Choose another model.") from error
        return opened.removeprefix(closed) if opened.startswith(closed) else ""

    def _check_against_tokenizer(self) -> None:
        expected = self._tokenizer.apply_chat_template(list(_PROBE), tokenize=True, add_generation_prompt=True, return_dict=False)
        if list(self.render(_PROBE)) != list(expected):
            raise ConfigurationError(
                "The model's tokenizer encodes text around special tokens in a way that is not supported here: what users type could not be kept "
                "apart from control tokens. Choose another model."
            )


def _for_template(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Templates write the arguments of a tool call as JSON, and so take them as objects; OpenAI's contract has them as text."""
    found = [dict(message) for message in messages]
    for message in found:
        if message.get("tool_calls"):
            calls = [(call, call["function"]) for call in message["tool_calls"]]
            message["tool_calls"] = [{**call, "function": {**f, "arguments": json.loads(f["arguments"])}} for call, f in calls]
    return found


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """``value`` with every text in it changed, keys of objects too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _map_texts(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_map_texts(item, change) for item in value]
    return value


def _unused_character(*values: Any) -> str:
    """A private-use character that occurs in none of the texts."""
    used: set[str] = set()

    def look(text: str) -> str:
        used.update(character for character in text if ord(character) >= _PRIVATE_USE.start)
        return text

    _map_texts(values, look)
    return next(chr(code) for code in _PRIVATE_USE if chr(code) not in used)


def _characters(value: Any) -> int:
    """Characters of all texts that a template will render."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_characters(item) for key, item in value.items() if key not in _UNRENDERED)
    if isinstance(value, (list, tuple)):
        return sum(map(_characters, value))
    return 0
