"""Engines to test against the contract."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from online_sao.config import EngineSettings
from online_sao.inference.engine import InferenceEngine
from online_sao.inference.transformers_engine import TransformersEngine
from tests.fakes.tiny_model import bundled_model, tiny_model, write_random_adapter
from tests.integration.engine.engine_client import Client, Reference


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "real_model: uses the bundled 135M model (about a minute in all)")


async def make_transformers_engine(path: Path, **settings: object) -> InferenceEngine:
    return TransformersEngine(EngineSettings(**({"threads": 1} | settings)), path)  # type: ignore[arg-type]


@pytest.fixture(scope="session", autouse=True)
def quick_collections() -> None:
    """Stopping an engine collects garbage; what the imports made need not be looked through each time."""
    gc.collect()
    gc.freeze()


ENGINES = {"transformers": make_transformers_engine}
"""Every engine must pass the contract: add a factory here."""

Start = Callable[..., Awaitable[Client]]


@pytest.fixture(params=ENGINES)
async def start(request: pytest.FixtureRequest, model_path: Path) -> AsyncIterator[Start]:
    """Starts an engine on ``model_path``, by settings; stops it at the end."""
    engines: list[InferenceEngine] = []

    async def begin(version: int = 0, adapter_dir: Path | None = None, **settings: object) -> Client:
        engine = await ENGINES[request.param](model_path, **settings)
        engines.append(engine)
        await engine.start(version, adapter_dir)
        return Client(engine)

    yield begin
    for engine in engines:
        await engine.stop()


@pytest.fixture(scope="session")
def model_path() -> Path:
    return tiny_model()


@pytest.fixture(scope="session")
def reference(model_path: Path) -> Reference:
    return Reference(model_path)


@pytest.fixture(scope="session")
def adapters(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Adapters of versions 1 to 4."""
    return {v: write_random_adapter(model_path, tmp_path_factory.mktemp("adapters") / f"v{v}", seed=v) for v in range(1, 5)}


@pytest.fixture(scope="session")
def real_path() -> Path:
    return bundled_model()
