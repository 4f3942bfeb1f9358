"""A real server and learner on the tiny model, and a real browser that reports what a page should never do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from server_process import ROOT, Server

# What is waited for comes within a second on a quiet machine; a busy one is no failure.
expect.set_options(timeout=30_000)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LEARNING = {
    "ONLINE_SAO_LEARNING__BATCH_SIZE": "2",
    "ONLINE_SAO_LEARNING__MIN_BATCH_SIZE": "2",
    "ONLINE_SAO_LEARNING__VALUE_WARMUP_UPDATES": "0",
    "ONLINE_SAO_LEARNING__THREADS": "1",
}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("dashboard") / "data", LEARNING).start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def learner(server: Server) -> Iterator[None]:
    """The learner as a process beside the server, on its data folder."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("ONLINE_SAO_")}
    environment = {**inherited, **server.environment, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "online_sao.cli", "learn", "--data-dir", str(server.data_dir)]
    with (server.data_dir / "learner.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=server.data_dir, env=environment, stdout=log, stderr=log)
    yield
    process.terminate()
    process.wait(timeout=30)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here: install the chromium package to run the browser tests")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@dataclass
class Watch:
    """What pages did that they should not."""

    outside: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@pytest.fixture
def open_page(browser: Browser, server: Server) -> Iterator[Callable[..., Page]]:
    """Open the dashboard; afterwards, nothing may have been asked of another host and no console error may stand."""
    watch, pages = Watch(), []
    host = urlsplit(server.url).netloc

    def open_page(width: int = 1280, height: int = 900, scheme: str = "light", tab: str = "overview", path: str | None = None) -> Page:
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        page.on("request", lambda request: urlsplit(request.url).netloc in (host, "") or watch.outside.append(request.url))
        page.on("console", lambda message: message.type == "error" and watch.errors.append(message.text))
        page.on("pageerror", lambda error: watch.errors.append(str(error)))
        page.set_default_timeout(30_000)
        page.goto(f"{server.url}/dashboard{f'?tab={tab}' if path is None else path}")
        page.get_by_role("heading", name="Online SAO").wait_for()
        expect(page.locator("#sao-age")).to_contain_text("updated")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert watch.outside == []
    assert watch.errors == []
