"""A real learner process on the tiny model, scored completions for it to learn from, and its data folder looked into from outside."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tiny_model import tiny_model

from online_sao.models.catalog import base_digest, load_model
from online_sao.publishing import lifecycle
from online_sao.publishing.policy_store import verify
from online_sao.storage.migrations import upgrade
from online_sao.storage.repositories import interactions, trajectories
from online_sao.storage.session import Database
from online_sao.storage.tables import InteractionRow
from online_sao.types import Completion, InteractionStatus, VersionSpan

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 900.0
BATCH = 4
PROMPT, TOKENS = 6, 5


class Nursery:
    """Starts learners that die at a point (see faulty_learner.py), one at a time, in a process forked off one that has imported everything."""

    def __init__(self) -> None:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("ONLINE_SAO_")}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("faulty_learner.py"))],
            env={**inherited, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def start(self, point: str | None, environment: dict[str, str], log: Path) -> ForkedLearner:
        request = json.dumps({"point": point, "environment": environment, "log": str(log)})
        self._process.stdin.write(request.encode() + b"\n")
        self._process.stdin.flush()
        return ForkedLearner(int(self._process.stdout.readline()), self._process.stdout)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


class ForkedLearner:
    """As much of subprocess.Popen as the tests use."""

    def __init__(self, pid: int, answers: Any) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._answers = answers

    def poll(self) -> int | None:
        return self._read(0.0)

    def wait(self, timeout: float = 30.0) -> int:
        code = self._read(timeout)
        if code is None:
            raise TimeoutError(f"the learner has not ended within {timeout} s")
        return code

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read(self, timeout: float) -> int | None:
        if self.returncode is None and select.select([self._answers], [], [], timeout)[0]:
            self.returncode = int(self._answers.readline())
        return self.returncode


class LearnerHome:
    """A data folder with a migrated database, and the learners started on it one after the other. ``nursery`` is needed for faulty ones."""

    def __init__(self, data_dir: Path, nursery: Nursery) -> None:
        self._nursery = nursery
        self.data_dir = data_dir
        self.file = data_dir / "online_sao.db"
        self.environment = {
            "ONLINE_SAO_STORAGE__DATA_DIR": str(data_dir),
            "ONLINE_SAO_POLICY__MODEL": str(tiny_model()),
            "ONLINE_SAO_POLICY__LORA_RANK": "4",
            "ONLINE_SAO_LEARNING__THREADS": "1",
            "ONLINE_SAO_LEARNING__BATCH_SIZE": str(BATCH),
            "ONLINE_SAO_LEARNING__POLL_SECONDS": "0.05",
        }
        self.process: subprocess.Popen[bytes] | ForkedLearner | None = None
        self._model: Any = None
        asyncio.run(upgrade(f"sqlite+aiosqlite:///{self.file}"))

    # --- processes --------------------------------------------------------------------------------------------------------------------

    def start(self, **environment: str) -> subprocess.Popen[bytes]:
        """``online-sao learn``, as an operator starts it."""
        command = [sys.executable, "-m", "online_sao.cli", "learn"]
        with (self.data_dir / "learner.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self.data_dir, env=self.full_environment(**environment), stdout=log, stderr=log)
        self.process = process
        return process

    def fork(self, point: str | None = None, **environment: str) -> ForkedLearner:
        """The same learner, quickly; with a ``point``, one that kills itself there."""
        learner = self._nursery.start(point, {**self.environment, **environment}, self.data_dir / "learner.log")
        self.process = learner
        return learner

    def full_environment(self, **extra: str) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("ONLINE_SAO_")}
        return {**inherited, **self.environment, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **extra}

    def log(self) -> str:
        return (self.data_dir / "learner.log").read_text(errors="replace")

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def wait_for(self, what: str, condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := condition()):
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {PATIENCE_SECONDS} s.\n{self.log()[-4000:]}")
            if self.process is not None and self.process.poll() not in (None, 0):
                raise AssertionError(f"{what}: the learner ended with {self.process.returncode}.\n{self.log()[-4000:]}")
            time.sleep(0.05)
        return found

    # --- data -------------------------------------------------------------------------------------------------------------------------

    def insert_scored(self, count: int = BATCH, **broken: Any) -> None:
        """Completions really sampled from the base policy, scored −1 and +1 in turn, at once. ``broken`` overwrites columns of the last."""

        async def insert() -> None:
            database = Database(f"sqlite+aiosqlite:///{self.file}")
            async with database.write() as session:
                for number in range(count):
                    overwrite = broken if number == count - 1 else {}
                    await self._insert(session, 1.0 if number % 2 else -1.0, overwrite)
            await database.dispose()

        asyncio.run(insert())

    async def _insert(self, session: Any, reward: float, overwrite: dict[str, Any]) -> None:
        prompt, tokens, logprobs = self._sample()
        now = time.time()
        row = InteractionRow(
            completion_id=f"chatcmpl-{uuid.uuid4().hex}",
            choice=0,
            request_id="req",
            model="tiny",
            stored=True,
            request_metadata={},
            messages=[{"role": "user", "content": "hello"}],
            sampling={"max_tokens": TOKENS, "temperature": 1.0, "top_p": 1.0, "stop": []},
            prompt_ids=prompt,
            policy_version=0,
            prompt_tokens=PROMPT,
            created_at=now,
        )
        await interactions.insert_generating(session, [row])
        completion = Completion(tuple(tokens), tuple(logprobs), (VersionSpan(0, TOKENS, 0),), "hi", "length")
        done = await interactions.complete(session, row, completion, status=InteractionStatus.COMPLETED, now=now, first_token_at=now)
        trajectory = await trajectories.create(session, done, now=now, deadline_at=now + 3600)
        await lifecycle.make_ready(session, {trajectory.id: reward}, now)
        for name, value in overwrite.items():
            setattr(trajectory if name == "reward" else done, name, value)
        await session.flush()

    @torch.no_grad()
    def _sample(self) -> tuple[list[int], list[int], list[float]]:
        if self._model is None:
            self._model = load_model(tiny_model())
        prompt = torch.randint(3, 1000, (PROMPT,)).tolist()
        ids, logprobs = list(prompt), []
        for _ in range(TOKENS):
            distribution = torch.softmax(self._model(torch.tensor([ids])).logits[0, -1], dim=-1)
            token = int(torch.multinomial(distribution, 1))
            ids.append(token)
            logprobs.append(float(distribution[token].log()))
        return prompt, ids[PROMPT:], logprobs

    # --- looking ----------------------------------------------------------------------------------------------------------------------

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.file, timeout=30)
        try:
            return connection.execute(query, values).fetchall()
        finally:
            connection.close()

    def execute(self, statement: str, *values: Any) -> None:
        connection = sqlite3.connect(self.file, timeout=30)
        try:
            connection.execute(statement, values)
            connection.commit()
        finally:
            connection.close()

    def count(self, state: str) -> int:
        return int(self.rows("SELECT count(*) FROM trajectories WHERE state = ?", state)[0][0])

    def phase(self) -> str:
        return str(self.rows("SELECT phase FROM learner")[0][0])

    def head(self) -> tuple[int, int]:
        """(version, update)."""
        version, update = self.rows("SELECT head_version, head_update FROM learner")[0]
        return version, update

    def checkpoints(self) -> list[int]:
        return sorted(int(path.name.removeprefix("update-")) for path in (self.data_dir / "checkpoints").glob("update-*"))

    def checkpoint(self, number: int) -> Path:
        return self.data_dir / "checkpoints" / f"update-{number:06d}"

    def assert_sound(self, updates: int) -> None:
        """What must hold whatever happened: ``updates`` updates were made, each once, of trajectories used once, and every version is whole."""
        made = self.rows("SELECT update_number, claim_id, policy_version, parent_version, accepted FROM updates ORDER BY update_number")
        assert [row[0] for row in made] == list(range(1, updates + 1))
        assert len({row[1] for row in made}) == updates
        assert all(row[4] for row in made)
        assert [row[2] for row in made] == list(range(1, updates + 1))
        assert [row[3] for row in made] == list(range(updates))
        for number, claim_id, *_ in made:
            trained = self.rows("SELECT state, claim_id, policy_lag FROM trajectories WHERE update_number = ?", number)
            assert trained == [("trained", claim_id, number - 1)] * BATCH
        assert self.count("trained") == BATCH * updates
        assert self.head() == (updates, updates)
        assert self.checkpoints()[-1] == updates
        # The learner's own count of the updates its weights have been through.
        assert torch.load(self.checkpoint(updates) / "training.pt", weights_only=True)["updates"] == updates
        self._assert_versions_whole(updates)
        assert not list((self.data_dir / "checkpoints").glob("tmp-*"))
        assert not list((self.data_dir / "policy_store").glob("tmp-*"))

    def _assert_versions_whole(self, updates: int) -> None:
        versions = self.rows(
            "SELECT version, parent, state, update_number, path, served_digest FROM policy_versions WHERE version > 0 ORDER BY version"
        )
        assert [row[0] for row in versions] == list(range(1, updates + 1))
        for version, parent, state, update, path, digest in versions:
            manifest = verify(self.data_dir / "policy_store" / path, base_digest=base_digest(tiny_model()))
            assert (manifest.version, manifest.parent, manifest.update) == (version, parent, update) == (version, version - 1, version)
            assert list(manifest.served_digest) == json.loads(digest)
            assert state == "staged"
        published = load_file(self.data_dir / "policy_store" / versions[-1][4] / "adapter_model.safetensors")
        kept = load_file(self.checkpoint(updates) / "policy.safetensors")
        assert len(published) == len(kept)
        for name, tensor in kept.items():
            assert torch.equal(published[name.replace(".policy.weight", ".weight")], tensor)
