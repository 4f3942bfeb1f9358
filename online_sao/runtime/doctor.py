"""``online-sao doctor``: is this machine, this data folder and this model fit to serve and to learn? Owns the list of checks and what surrounds the
model and the data (versions, threads, disk, port). Changes nothing.

A check never raises: what it cannot find out is a failure with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import platform
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx
import psutil

from online_sao.config import Settings
from online_sao.errors import OnlineSAOError

State = Literal["ok", "warn", "fail"]
TESTED = {"torch": "2.13", "transformers": "5.19", "peft": "0.21"}
"""What the tests run with. The engine reaches into transformers' continuous batching: another minor version is not known to work."""
LEAST_DISK_BYTES = 50e6
"""Below this a server cannot go on: a checkpoint alone takes more."""


@dataclass(frozen=True, slots=True)
class Check:
    """``found``: what is there; ``advice``: what to change (empty where all is well)."""

    name: str
    state: State
    found: str
    advice: str = ""


async def examine(settings: Settings, *, self_check: bool = True) -> list[Check]:
    """Every check, in the order in which a server would meet what they look at. ``self_check`` False leaves out the one that loads the model."""
    # Here, so that the quick checks' report of a broken torch does not die of importing it.
    from online_sao.runtime import doctor_data, doctor_model

    checks: list[tuple[str, Callable[[], Awaitable[Check]]]] = [
        ("versions", _in_thread(lambda: versions())),
        ("threads", _in_thread(lambda: threads(settings, os.environ))),
        ("disk", _in_thread(lambda: disk(settings))),
        ("port", lambda: port(settings)),
        ("database", lambda: doctor_data.database(settings)),
        ("policy store", lambda: doctor_data.policy_store(settings)),
        ("checkpoints", _in_thread(lambda: doctor_data.checkpoints(settings))),
        ("model", _in_thread(lambda: doctor_model.model(settings))),
        ("memory", _in_thread(lambda: doctor_model.memory(settings))),
    ]
    if self_check:
        checks.append(("self-check", lambda: doctor_model.self_check(settings)))
    return [await _guarded(name, check) for name, check in checks]


def versions() -> Check:
    found = {name: importlib.metadata.version(name) for name in TESTED}
    text = ", ".join(f"{name} {version}" for name, version in {"python": platform.python_version(), **found}.items())
    wrong = [name for name, version in found.items() if not version.startswith(f"{TESTED[name]}.")]
    if wrong:
        return Check("versions", "warn", text, f"Tested with {wrong[0]} {TESTED[wrong[0]]}.x: install from the project's constraints.txt.")
    return Check("versions", "ok", text)


def threads(settings: Settings, environment: os._Environ[str] | dict[str, str]) -> Check:
    cores = os.cpu_count() or 1
    policy = environment.get("OMP_WAIT_POLICY", "")
    engine, learner = settings.engine.threads or cores, settings.learning.threads or cores
    found = f"{cores} cores, OMP_WAIT_POLICY={policy or '(unset)'}, engine {engine} threads, learner {learner}"
    if policy.upper() != "PASSIVE":
        return Check("threads", "warn", found, "Set OMP_WAIT_POLICY=PASSIVE: threads that spin make engine and learner starve each other.")
    if max(engine, learner) > cores:
        return Check("threads", "warn", found, f"engine.threads and learning.threads above {cores} cores only take turns: lower them.")
    return Check("threads", "ok", found)


def disk(settings: Settings) -> Check:
    folder = _existing(settings.storage.data_dir)
    free = psutil.disk_usage(str(folder)).free
    found = f"{free / 1e9:.1f} GB free for {settings.storage.data_dir}{_taken(settings)}"
    if not os.access(folder, os.W_OK) or os.statvfs(folder).f_flag & os.ST_RDONLY:
        return Check("disk", "fail", f"{folder} cannot be written", "Make it writable, or set storage.data_dir to another folder.")
    if free < LEAST_DISK_BYTES:
        return Check("disk", "fail", found, "Free space, or set storage.data_dir to a folder on a larger disk.")
    if free < settings.alarms.disk_free_megabytes * 1e6:
        return Check("disk", "warn", found, f"Less than alarms.disk_free_megabytes ({settings.alarms.disk_free_megabytes:g} MB): free space soon.")
    return Check("disk", "ok", found)


async def port(settings: Settings) -> Check:
    """Free, or a server of ours answers there: both are as they should be."""
    server = settings.server
    if server.port == 0:
        return Check("port", "ok", "any free one")
    where = f"{server.host}:{server.port}"
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((server.host, server.port))
            return Check("port", "ok", f"{where} is free")
        except OSError as error:
            reason = error.strerror
    url = f"http://{f'[{server.host}]' if ':' in server.host else server.host}:{server.port}".replace("0.0.0.0", "127.0.0.1")
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=3.0) as client:
            answer = await client.get(f"{url}/readyz")
        state = answer.json()["status"]
        missing = answer.json()["missing"]
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return Check("port", "fail", f"{where}: {reason}, and it is not this service", "Stop what listens there, or set server.port.")
    if missing:
        return Check("port", "warn", f"the service runs at {where}, {state}", "; ".join(f"{part}: {why}" for part, why in missing.items()))
    return Check("port", "ok", f"the service runs at {where} and is ready")


def _taken(settings: Settings) -> str:
    """What the data folder takes of the disk, and its largest parts."""
    parts = {"policy store": settings.policy_store_dir, "checkpoints": settings.checkpoints_dir}
    sizes, everything = dict.fromkeys(parts, 0), 0
    for file in settings.storage.data_dir.rglob("*"):
        # The service may be running: a file that was there a moment ago need not be there now.
        with contextlib.suppress(FileNotFoundError):
            size = file.stat().st_size if file.is_file() else 0
            everything += size
            for name, folder in parts.items():
                sizes[name] += size if folder in file.parents else 0
    if not everything:
        return ""
    return f"; it takes {everything / 1e9:.2f} GB ({', '.join(f'{name} {size / 1e9:.2f}' for name, size in sizes.items())})"


def _existing(folder: Path) -> Path:
    """``folder``, or the nearest folder above it that exists."""
    folder = folder.absolute()
    return next(place for place in (folder, *folder.parents) if place.is_dir())


def _in_thread(check: Callable[[], Check]) -> Callable[[], Awaitable[Check]]:
    return lambda: asyncio.to_thread(check)


async def _guarded(name: str, check: Callable[[], Awaitable[Check]]) -> Check:
    try:
        return await check()
    except OnlineSAOError as error:
        return Check(name, "fail", error.message)
    except Exception as error:
        return Check(name, "fail", f"{type(error).__name__}: {error}", "Nobody foresaw this; the message is all that is known.")
