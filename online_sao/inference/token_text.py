"""One token at a time as text and as bytes, for whoever reads logprobs. Owns how a vocabulary spells bytes; knows nothing of completions.

A token need not be whole characters. Its bytes are exact: those of consecutive tokens, joined, are the UTF-8 of their text.
"""

from __future__ import annotations

import json
import re
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class TokenText:
    """``tokenizer`` is a fast tokenizer. Special tokens have a name and no bytes: they are no part of the text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added = tokenizer.added_tokens_decoder
        decoders = _decoders(json.loads(tokenizer.backend_tokenizer.to_str()).get("decoder"))
        self._byte_level = "ByteLevel" in decoders
        self._byte_fallback = "ByteFallback" in decoders
        self._byte_of = _byte_level_alphabet()

    def describe(self, token_id: int) -> tuple[str, tuple[int, ...] | None]:
        """(text, bytes). Bytes that are no whole character read as U+FFFD in the text; bytes are None for special tokens."""
        added = self._added.get(token_id)
        if added is not None:
            return added.content, None if added.special else tuple(added.content.encode())
        spelled = self._tokenizer.convert_ids_to_tokens(token_id)
        if spelled is None:  # the model's vocabulary is padded beyond the tokenizer's
            return "", ()
        raw = self._bytes(token_id, spelled)
        return raw.decode("utf-8", errors="replace"), tuple(raw)

    def _bytes(self, token_id: int, spelled: str) -> bytes:
        if self._byte_level and all(character in self._byte_of for character in spelled):
            return bytes(self._byte_of[character] for character in spelled)
        if self._byte_fallback:
            found = _BYTE_TOKEN.fullmatch(spelled)
            return bytes([int(found[1], 16)]) if found else spelled.replace("▁", " ").encode()
        text: str = self._tokenizer.decode([token_id])
        return text.encode()


def _decoders(tree: Any) -> set[str]:
    """Names of all decoders in a tokenizer's decoder, sequences taken apart."""
    if not isinstance(tree, dict):
        return set()
    return {tree.get("type", "")}.union(*(_decoders(part) for part in tree.get("decoders", ())))


def _byte_level_alphabet() -> dict[str, int]:
    """How byte-level vocabularies spell a byte: printable Latin-1 as itself, the others, in order, from U+0100 on (GPT-2's table)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}
