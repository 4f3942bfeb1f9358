"""A stand-in for the service, over real HTTP: chats, takes scores, and 'trains' every batch of eight into a new version at once."""

import asyncio
import itertools
import json
import socket
import threading
import time

import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

BATCH = 8


class StandIn:
    """``fail_every``: every n-th chat is answered 503. ``learn``: version N answers in the first person N/5 of the time."""

    def __init__(self):
        self.app = FastAPI()
        self.version = 0
        self.ids = itertools.count()
        self.chats = 0
        self.fail_every = 0
        self.change_version_on_chat = False
        self.scores = {}
        self.stored = []
        self.queued = []
        self.most_queued = 0
        self.users = set()
        self.prompts = []
        self.app.post("/v1/chat/completions")(self.chat)
        self.app.get("/v1/models")(self.models)
        self.app.post("/v1/feedback")(self.feedback)
        self.app.get("/v1/feedback/{feedback_id}")(self.receipt)
        self.app.get("/admin/status")(self.status)
        self.app.get("/admin/policies")(self.policies)
        self.app.get("/admin/updates")(self.updates)

    async def models(self):
        return {"object": "list", "data": [{"id": "stand-in", "object": "model", "created": 0, "owned_by": "us"}]}

    async def chat(self, request: Request):
        body = await request.json()
        self.chats += 1
        self.users.add(body["user"])
        self.prompts.append(body["messages"][-1]["content"])
        if self.fail_every and self.chats % self.fail_every == 0:
            return JSONResponse({"error": {"message": "engine broke", "type": "server_error", "param": None, "code": "engine_error"}}, 503)
        if self.change_version_on_chat:
            self.version += 1
        completion_id, version = f"chatcmpl-{next(self.ids)}", self.version
        text = "I like my tea." if self.chats % 5 < version else "The tea is fine."
        if body.get("store") is not False:
            self.stored.append(completion_id)
        base = {"id": completion_id, "created": 0, "model": "stand-in", "system_fingerprint": f"stand-in@v{version}"}
        if not body.get("stream"):
            message = {"role": "assistant", "content": text}
            return base | {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

        async def events():
            for piece in text.split(" "):
                await asyncio.sleep(0.001)
                choice = {"index": 0, "delta": {"content": piece + " "}, "finish_reason": None}
                yield f"data: {json.dumps(base | {'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def feedback(self, request: Request):
        body = await request.json()
        if body["completion_id"] not in self.stored:
            return JSONResponse({"error": {"message": "unknown", "type": "x", "param": None, "code": "completion_not_found"}}, 404)
        feedback_id = f"fb-{len(self.scores)}"
        self.scores[feedback_id] = {
            "id": feedback_id,
            "completion_id": body["completion_id"],
            "value": body["value"],
            "status": "queued",
            "update": None,
        }
        self.queued.append(feedback_id)
        self.most_queued = max(self.most_queued, len(self.queued))
        if len(self.queued) == BATCH:
            self.version += 1
            for used in self.queued:
                self.scores[used] |= {"status": "live", "update": self.version}
            self.queued.clear()
        return JSONResponse(self.scores[feedback_id], 201)

    async def receipt(self, feedback_id: str):
        return self.scores[feedback_id]

    async def policies(self, before: int = 10**6):
        """Pages of two, newest first."""
        older = [version for version in range(self.version, -1, -1) if version < before]
        return {"object": "list", "data": [{"version": version, "update": version} for version in older[:2]]}

    @staticmethod
    def update(number):
        metrics = {"policy/kl_base": number / 100}
        return {"number": number, "accepted": True, "reason": None, "metrics": metrics, "started_at": 0.0, "finished_at": 1.0}

    async def updates(self, before: int = 10**6):
        """Pages of two, newest first."""
        older = [number for number in range(self.version, 0, -1) if number < before]
        return {"object": "list", "data": [self.update(number) for number in older[:2]]}

    async def status(self):
        return {
            "pipeline": {"ready": len(self.queued), "claimed": 0},
            "learner": {"phase": "waiting", "paused": False, "pause_reason": None},
            "last_update": self.update(self.version) if self.version else None,
        }


@pytest.fixture
def stand_in():
    service = StandIn()
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(service.app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    service.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    yield service
    server.should_exit = True
    thread.join()
    listener.close()
