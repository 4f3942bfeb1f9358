"""The lines of an export against what was logged, and what they leave out."""

from __future__ import annotations

import json

from online_sao.config import Settings
from online_sao.service import export
from online_sao.service.erasure import ErasureService
from online_sao.service.export import ExportService
from online_sao.service.feedback import FeedbackService
from online_sao.service.submissions import FeedbackSubmission
from online_sao.storage.repositories.exports import Filters
from online_sao.storage.tables import InteractionRow


async def lines(database, **filters):
    found = [json.loads(json.dumps(line)) async for line in ExportService(database, Settings()).lines(Filters(**filters))]
    assert [line["object"] for line in found] == ["online_sao.export"] + ["interaction"] * (len(found) - 1)
    return found[0], found[1:]


async def test_everything_of_an_interaction_is_there(database, chats, settings):
    row = await chats.completed(user="ann")
    feedback = FeedbackService(database, settings)
    await feedback.submit(FeedbackSubmission(row.completion_id, 0.25))
    await feedback.submit(FeedbackSubmission(row.completion_id, 0.75, comment="better"))
    header, (line,) = await lines(database)
    assert (header["format"], header["reward"]["score_max"]) == (export.FORMAT, 1.0)
    assert (line["completion_id"], line["user"], line["text"], line["finish_reason"]) == (row.completion_id, "ann", "hi", "stop")
    assert (line["prompt_ids"], line["token_ids"], line["behavior_logprobs"]) == ([1, 2, 3], [7, 8], [-0.5, -1.5])
    assert line["version_spans"] == [[0, 2, 0]]
    assert [(score["value"], score["status"], score["counts"]) for score in line["scores"]] == [(0.25, "superseded", False), (0.75, "queued", True)]
    assert line["scores"][1]["comment"] == "better"


async def test_what_was_erased_or_never_stored_carries_counts_alone(database, chats):
    erased = await chats.completed(user="ann")
    await ErasureService(database).erase_completion(erased.completion_id)
    await chats.completed(stored=False, user="bob")
    await chats.start()
    _, found = await lines(database)
    assert len(found) == 2, "a completion that is still being generated is not exported"
    for line in found:
        assert (line["stored"], line["completion_tokens"], line["prompt_tokens"]) == (False, 2, 3)
        content = ("messages", "prompt_ids", "token_ids", "behavior_logprobs", "version_spans", "text", "user", "episode_id")
        assert {line[name] for name in content} == {None}


async def test_filters(database, chats, settings):
    rows = [await chats.completed(user=user) for user in ("ann", "bob", "ann")]
    for at, row in enumerate(rows):
        async with database.write() as session:
            (await session.get_one(InteractionRow, row.id)).created_at = 100.0 + at
    await FeedbackService(database, settings).submit(FeedbackSubmission(rows[2].completion_id, 1.0))

    async def ids(**filters):
        _, found = await lines(database, **filters)
        return [rows.index(next(row for row in rows if row.completion_id == line["completion_id"])) for line in found]

    assert await ids() == [0, 1, 2]
    assert await ids(user="ann") == [0, 2]
    assert await ids(since=101.0) == [1, 2]
    assert await ids(until=101.0) == [0]
    assert await ids(scored_only=True) == [2]


async def test_pages_join_without_a_gap(database, chats, monkeypatch):
    monkeypatch.setattr(export, "PAGE", 3)
    rows = await chats.bulk(7)
    _, found = await lines(database)
    assert [line["completion_id"] for line in found] == [row.completion_id for row in rows]
