"""How the live page is mounted at /dashboard; the page itself is in page.py.

NiceGUI is one per process: of several applications mounted in one process, the page shows the last one.
"""

from __future__ import annotations

import warnings

from fastapi import FastAPI, Request
from nicegui import ui

from api.dashboard.feed import Feed
from api.dashboard.page import BackendProvider, DashboardPage
from api.dependencies import Backend

PATH = "/dashboard"


def mount(app: FastAPI, backend: BackendProvider) -> None:
    """Serve the page under /dashboard of ``app``. ``backend`` gives the running server, or None while it starts: the page waits for it."""
    feeds: dict[Backend, Feed] = {}

    def feed(running: Backend) -> Feed:
        """One for all pages of a server: what a second page shows costs nothing more."""
        if running not in feeds:
            feeds.clear()
            feeds[running] = Feed(running)
        return feeds[running]

    @ui.page("/", title="Online SAO", favicon="📈")
    def dashboard(request: Request) -> None:
        DashboardPage(backend, feed, dict(request.query_params)).build()

    # At start NiceGUI looks at every live object for the server that runs it; touching one of torch's makes torch warn.
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.reduce_op` is deprecated", category=FutureWarning)
    # dark=None: as the visitor's system has it. Tailwind is not used, and the page is lighter without it.
    ui.run_with(app, mount_path=PATH, dark=None, tailwind=False, show_welcome_message=False, reconnect_timeout=5.0)
