"""Engines to test against the contract."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from online_sao.config import ClusterSettings, EngineSettings, PolicySettings
from online_sao.inference.engine import InferenceEngine
from online_sao.inference.engines import build_engine
from online_sao.inference.pool import EnginePool
from online_sao.runtime.cluster.host import HostSpec
from online_sao.runtime.cluster.replicas import RaySource
from online_sao.runtime.cluster.session import Session
from tests.fakes.tiny_model import bundled_model, tiny_model, write_random_adapter
from tests.integration.engine.engine_client import Client, Reference, until


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "real_model: uses the bundled 135M model (about a minute in all)")


def make_engine(kind: str, path: Path, settings: dict[str, object]) -> InferenceEngine:
    kinds = {"vllm": {"kind": "vllm", "publish": "weights"}, "vllm-adapter": {"kind": "vllm", "publish": "adapter"}}
    return build_engine(EngineSettings(**({"threads": 1} | kinds.get(kind, {}) | settings)), path, lora_rank=4)  # type: ignore[arg-type]


@pytest.fixture(scope="session", autouse=True)
def quick_collections() -> None:
    """Stopping an engine collects garbage; what the imports made need not be looked through each time."""
    gc.collect()
    gc.freeze()


Start = Callable[..., Awaitable[Client]]


class Started:
    """vLLM takes half a minute to start and a Ray cluster a quarter, so what has been started is used again by whatever test wants the same of it,
    and all pools are in one cluster."""

    MOST = 2

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._session: Session | None = None
        self._engines: dict[str, InferenceEngine] = {}

    async def get(self, path: Path, settings: dict[str, object], version: int, adapter_dir: Path | None) -> InferenceEngine:
        policy = settings.pop("kv_policy", "keep")
        if self._kind == "pool":
            settings["kv_policy"], policy = policy, None
        key = repr((path, sorted(settings.items())))
        engine = self._engines.pop(key, None)
        if engine is None or not engine.healthy:
            if engine is not None:
                await engine.stop()
            while len(self._engines) >= self.MOST:
                await self._engines.pop(next(iter(self._engines))).stop()
            engine = await self._make(path, settings)
            await engine.start(version, adapter_dir)
            await until(lambda: all(replica.serving for replica in engine.replicas), seconds=300)
        else:
            await engine.swap(version, adapter_dir)
        if policy is not None:
            # What happens at a swap is decided at the swap.
            engine._settings = engine._settings.model_copy(update={"kv_policy": policy})  # type: ignore[attr-defined]
        self._engines[key] = engine
        return engine

    async def _make(self, path: Path, settings: dict[str, object]) -> InferenceEngine:
        if self._kind != "pool":
            return make_engine(self._kind, path, settings)
        cluster = ClusterSettings(replicas=2, replica_cpus=0)
        if self._session is None:
            self._session = Session(cluster)
            await self._session.open(self)
        engine = EngineSettings(**({"threads": 1} | settings))  # type: ignore[arg-type]
        return EnginePool(Lodgers(self._session, cluster, HostSpec(engine, PolicySettings(model=str(path), lora_rank=4))), 2, engine.max_concurrent)

    async def stop(self) -> None:
        for engine in self._engines.values():
            await engine.stop()
        if self._session is not None:
            await self._session.close(self)


class Lodgers(RaySource):
    """Replicas in a cluster that others use too."""

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        self._store.forget()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def started(pytestconfig: pytest.Config) -> AsyncIterator[Started]:
    engines = Started(pytestconfig.getoption("--engine"))
    yield engines
    await engines.stop()


@pytest.fixture
async def start(pytestconfig: pytest.Config, model_path: Path, started: Started) -> AsyncIterator[Start]:
    """Starts an engine on ``model_path``, by settings; stops it at the end. ``--engine`` says which kind."""
    engines: list[InferenceEngine] = []
    kind = pytestconfig.getoption("--engine")

    async def begin(version: int = 0, adapter_dir: Path | None = None, **settings: object) -> Client:
        if kind != "transformers":
            return Client(await started.get(model_path, settings, version, adapter_dir))
        engine = make_engine(kind, model_path, settings)
        engines.append(engine)
        await engine.start(version, adapter_dir)
        return Client(engine)

    yield begin
    for engine in engines:
        await engine.stop()


@pytest.fixture
def changes_under_way(pytestconfig: pytest.Config) -> bool:
    """Whether a request that is running goes on with the new weights after a swap; else it ends on the version it began with."""
    return bool(pytestconfig.getoption("--engine") != "vllm-adapter")


@pytest.fixture
def only_merged(changes_under_way: bool) -> None:
    if not changes_under_way:
        pytest.skip("about weights that change under running requests")


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
