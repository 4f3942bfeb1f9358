"""A tiny learner for each test."""

from collections.abc import Callable

import pytest
import tiny_learner
from tiny_learner import Bench, tiny_llama
from transformers import LlamaForCausalLM


@pytest.fixture
def make_bench() -> Callable[..., Bench]:
    return tiny_learner.make_bench


@pytest.fixture
def bench() -> Bench:
    return tiny_learner.make_bench()


@pytest.fixture
def base_model() -> LlamaForCausalLM:
    """The base the benches stand on, a copy of its own."""
    return tiny_llama().eval()
