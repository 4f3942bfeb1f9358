"""Which architectures are adapted, where, and what is said of those that are not."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GPT2Config,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    MixtralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    T5Config,
)

from online_sao.errors import ConfigurationError
from online_sao.models import catalog
from online_sao.models.adapter import Adapter, MergedWeights, adapted_matrices
from online_sao.models.projections import find_projections

SIZES = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
GROUPED = {**SIZES, "num_key_value_heads": 1}
GOOD = {"llama": LlamaConfig(**GROUPED), "qwen2": Qwen2Config(**GROUPED), "gpt_neox": GPTNeoXConfig(**SIZES)}


def saved(tmp_path, config, tokens=8):
    factory = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    factory.from_config(config).save_pretrained(tmp_path)
    vocabulary = {"</s>": 1, "a": 0, **{f"t{i}": i for i in range(2, tokens)}}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="a")), eos_token="</s>", chat_template="{{ messages[0]['content'] }}"
    )
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", GOOD)
def test_dense_decoders_are_taken_whatever_they_call_their_layers(name, tmp_path):
    folder = saved(tmp_path, GOOD[name])
    assert catalog.obtain(str(folder), tmp_path) == folder
    model = catalog.load_model(folder)
    found = find_projections(model)
    assert all("attn" in path or "attention" in path for path in found.attention)
    assert all("mlp" in path for path in found.mlp)
    assert set(adapted_matrices(model)) == set(found.names)
    before = model(torch.tensor([[2, 3, 4]])).logits
    weights = MergedWeights(model)
    ones = {path: (torch.ones(1, w.shape[1]), torch.ones(w.shape[0], 1)) for path, w in weights.pristine.items()}
    weights.apply(Adapter(ones, scale=0.1))
    assert not torch.equal(model(torch.tensor([[2, 3, 4]])).logits, before)
    weights.apply(None)
    assert torch.equal(model(torch.tensor([[2, 3, 4]])).logits, before)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (GPT2Config(vocab_size=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1), "transposed.*GPT-2"),
        (MixtralConfig(**GROUPED, num_local_experts=2), "MLP.*mixtures of experts"),
        (GraniteConfig(**GROUPED, logits_scaling=4.0), "logits_scaling"),
        (T5Config(vocab_size=16, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0), "encoder-decoder"),
    ],
    ids=["gpt2", "mixtral", "granite", "t5"],
)
def test_what_cannot_learn_here_is_refused_with_the_reason(config, told, tmp_path):
    with pytest.raises(ConfigurationError, match=told):
        catalog.obtain(str(saved(tmp_path, config)), tmp_path)


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="do not belong together"):
        catalog.obtain(str(saved(tmp_path, LlamaConfig(**GROUPED), tokens=17)), tmp_path)
