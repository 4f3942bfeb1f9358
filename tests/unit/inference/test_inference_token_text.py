"""Bytes of consecutive tokens, joined, are the UTF-8 of their text, in every kind of vocabulary."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from online_sao.inference.token_text import TokenText


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="<|"), max_size=30))
def test_bytes_of_a_byte_level_vocabulary_join_to_the_text(tokenizer, text):
    describe = TokenText(tokenizer).describe
    described = [describe(i) for i in tokenizer.encode(text, add_special_tokens=False)]
    assert b"".join(bytes(raw) for _, raw in described) == text.encode()


def test_special_tokens_have_a_name_and_no_bytes(tokenizer):
    assert TokenText(tokenizer).describe(tokenizer.eos_token_id) == ("<|im_end|>", None)


def test_part_of_a_character_reads_as_a_replacement(tokenizer):
    text, raw = TokenText(tokenizer).describe(tokenizer.convert_tokens_to_ids("ð"))  # how 0xF0 is spelled
    assert (text, raw) == ("\ufffd", (0xF0,))


def test_an_id_beyond_the_tokenizers_vocabulary_is_empty(tokenizer):
    assert TokenText(tokenizer).describe(len(tokenizer) + 7) == ("", ())


@pytest.fixture
def sentencepiece():
    """A vocabulary as Llama 2's: a mark for spaces, and a token for each byte that has none of its own."""
    vocabulary = {"<unk>": 0, "▁the": 1, "▁": 2, "cat": 3, **{f"<0x{b:02X}>": 10 + b for b in range(256)}}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False)])
    return tokenizer


def test_spaces_and_byte_tokens_of_a_sentencepiece_vocabulary(sentencepiece):
    describe = TokenText(sentencepiece).describe
    assert describe(1) == (" the", tuple(b" the"))
    assert describe(10 + 0xE2) == ("\ufffd", (0xE2,))
    assert describe(10 + 0x41) == ("A", (0x41,))
    assert describe(sentencepiece.convert_tokens_to_ids("<tool_call>")) == ("<tool_call>", tuple(b"<tool_call>"))
