"""Settings every test process needs before torch is imported."""

import os
from collections.abc import Iterator
from unittest import mock

import pytest

# Threads that spin while they wait for work starve the other processes of a test that starts several.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--database", choices=("sqlite", "postgresql"), default="sqlite", help="what tests/unit keeps rows in; postgresql: a server of its own"
    )
    parser.addoption(
        "--engine",
        choices=("transformers", "vllm", "vllm-adapter", "pool"),
        default="transformers",
        help="which engine the contract's tests start; pool: two replicas of the embedded one",
    )


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """The commands set variables for the processes they start, --config among them; run in a test's own process they would be the next test's too."""
    with mock.patch.dict(os.environ):
        yield
