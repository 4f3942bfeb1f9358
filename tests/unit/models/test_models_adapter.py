"""Merging: the arithmetic, the file format of PEFT itself, pristine weights after any number of swaps, and every way a folder can be unusable."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from online_sao.errors import PolicyStoreError
from online_sao.models.adapter import LORA_TARGETS, Adapter, MergedView, MergedWeights, adapted_matrices, read_adapter


def make_model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def model():
    return make_model()


def randomised_peft(seed, **changes):
    """A PEFT model whose B matrices are not the zeros they start as."""
    peft_model = get_peft_model(make_model(), LoraConfig(r=4, lora_alpha=8, target_modules=list(LORA_TARGETS), **changes)).eval()
    torch.manual_seed(seed)
    for name, parameter in peft_model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return peft_model


def random_adapter(model, seed):
    generator = torch.Generator().manual_seed(seed)
    matrices = {
        name: (torch.randn(4, weight.shape[1], generator=generator), torch.randn(weight.shape[0], 4, generator=generator))
        for name, weight in adapted_matrices(model).items()
    }
    return Adapter(matrices, scale=0.5)


@pytest.fixture
def adapter_dir(tmp_path):
    randomised_peft(1).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def test_the_adapted_matrices_are_the_projections_and_nothing_else(model):
    names = list(adapted_matrices(model))
    assert len(names) == 2 * 7
    assert names == sorted(names)
    assert {name.rpartition(".")[2] for name in names} == set(LORA_TARGETS)


def test_the_merge_is_w0_plus_scale_b_a(model):
    weights = MergedWeights(model)
    name = "model.layers.0.mlp.up_proj"
    a, b = torch.zeros(1, 32), torch.zeros(48, 1)
    a[0, 3], b[5, 0] = 2.0, 10.0
    weights.apply(Adapter({name: (a, b)}, scale=0.5))
    change = model.model.layers[0].mlp.up_proj.weight - weights.pristine[name]
    assert change[5, 3].item() == pytest.approx(10.0, abs=1e-5)
    assert change.count_nonzero() == 1
    assert all(torch.equal(weights.served[other], weights.pristine[other]) for other in weights.served if other != name)


@pytest.mark.parametrize("changes", [{}, {"use_rslora": True}])
def test_merged_weights_answer_as_peft_does(model, tmp_path, changes):
    peft_model = randomised_peft(3, **changes)
    peft_model.save_pretrained(tmp_path / "adapter")
    MergedWeights(model).apply(read_adapter(tmp_path / "adapter"))
    input_ids = torch.randint(0, 50, (2, 9))
    with torch.no_grad():
        torch.testing.assert_close(model(input_ids).logits, peft_model(input_ids).logits, atol=2e-5, rtol=0)


def test_fifty_adapters_then_the_base_is_the_base_bit_for_bit(model):
    before = {name: weight.clone() for name, weight in adapted_matrices(model).items()}
    weights = MergedWeights(model)
    for seed in range(50):
        weights.apply(random_adapter(model, seed))
    last = random_adapter(model, 49)
    assert all(torch.equal(weights.served[name], MergedView(before, last)[name]) for name in before), "earlier adapters left something behind"
    weights.apply(None)
    assert all(torch.equal(weight, before[name]) for name, weight in adapted_matrices(model).items())


def test_applying_writes_in_place(model):
    pointers = [weight.data_ptr() for weight in adapted_matrices(model).values()]
    MergedWeights(model).apply(random_adapter(model, 0))
    assert pointers == [weight.data_ptr() for weight in adapted_matrices(model).values()]


@pytest.mark.parametrize(
    "matrices",
    [
        {"model.layers.7.mlp.up_proj": (torch.ones(1, 32), torch.ones(48, 1))},
        {"model.layers.1.mlp.up_proj": (torch.ones(1, 31), torch.ones(48, 1))},
        {"model.layers.1.mlp.up_proj": (torch.ones(2, 32), torch.ones(48, 1))},
        {"model.embed_tokens": (torch.ones(1, 32), torch.ones(50, 1))},
    ],
)
def test_an_adapter_that_does_not_fit_writes_nothing(model, matrices):
    weights = MergedWeights(model)
    fitting = random_adapter(model, 0)
    with pytest.raises(PolicyStoreError):
        weights.apply(Adapter({**fitting.matrices, **matrices}, scale=1.0))
    assert all(torch.equal(weights.served[name], weights.pristine[name]) for name in weights.served)


def damage_config(directory, **changes):
    path = directory / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def damage_weights(directory, change):
    path = directory / "adapter_model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)


DAMAGES = {
    "no weights": (lambda d: (d / "adapter_model.safetensors").unlink(), "cannot be read"),
    "torn weights": (lambda d: (d / "adapter_model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{"), "cannot be read"),
    "no config": (lambda d: (d / "adapter_config.json").unlink(), "configuration"),
    "torn config": (lambda d: (d / "adapter_config.json").write_text('{"r"'), "configuration"),
    "other kind": (lambda d: damage_config(d, peft_type="IA3"), "no LoRA"),
    "dora": (lambda d: damage_config(d, use_dora=True), "use_dora"),
    "bias": (lambda d: damage_config(d, bias="all"), "bias"),
    "half missing": (lambda d: damage_weights(d, lambda t: t.pop(next(k for k in t if "lora_B" in k))), "incomplete"),
    "not finite": (lambda d: damage_weights(d, lambda t: next(iter(t.values())).fill_(float("nan"))), "non-finite"),
    "stranger": (lambda d: damage_weights(d, lambda t: t.update({"lm_head.weight": torch.ones(2)})), "no LoRA matrix"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_an_unusable_folder_says_why(adapter_dir, damage, message):
    read_adapter(adapter_dir)
    damage(adapter_dir)
    with pytest.raises(PolicyStoreError, match=message):
        read_adapter(adapter_dir)
