"""How adapter files get to nodes that share no folder with the service. Owns what is known of a published folder, and the files in Ray's object
store; knows nothing of who fetches them."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from pathlib import Path
from typing import Any

from online_sao.errors import PolicyStoreError
from online_sao.publishing.policy_store import checksums
from online_sao.runtime.cluster.host import Adapter
from online_sao.runtime.cluster.session import Session


class AdapterStore:
    """Adapter files in the object store of the cluster that is joined: once a version, however many replicas fetch them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._put: tuple[tuple[Path, int], asyncio.Task[Any]] | None = None

    async def put(self, adapter: Adapter) -> Any:
        """A reference to {relative name: content}."""
        key = (adapter.folder, self._session.generation)
        if self._put is None or self._put[0] != key or _failed(self._put[1]):
            self._put = (key, asyncio.create_task(self._session.call(lambda: _put(adapter))))
        return await asyncio.shield(self._put[1])

    def forget(self) -> None:
        self._put = None


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _put(adapter: Adapter) -> Any:
    import ray

    return ray.put({name: (adapter.folder / name).read_bytes() for name in adapter.checksums})


@lru_cache(maxsize=256)
def describe(folder: Path) -> Adapter:
    """Published folders do not change; one that is damaged later does not match what is remembered here."""
    if not folder.is_dir():
        raise PolicyStoreError(f"{folder} is missing.")
    return Adapter(folder.absolute(), checksums(folder))
