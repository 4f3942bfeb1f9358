"""The chat use case against a real database and a scripted engine: what becomes of every choice, whatever happens on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from online_sao.config import Settings
from online_sao.errors import (
    ContextLengthError,
    EngineError,
    ModelNotFoundError,
    NotReadyError,
    OverloadedError,
    StorageError,
    UnsupportedFeatureError,
    VersionNotLoadedError,
)
from online_sao.inference.engine import EngineLoad, EngineRequest, SwapReport, TokenDelta
from online_sao.inference.template_tools import ToolSupport
from online_sao.service.chat import ChatRun, ChatService
from online_sao.service.chat_log import ChatLog
from online_sao.service.chat_records import AdmittedRequest, ChatCommand, ChatEvent, ChoiceDone, TextDelta, ToolCallDelta
from online_sao.service.feedback import FeedbackService
from online_sao.service.submissions import FeedbackSubmission
from online_sao.storage.repositories import interactions, trajectories
from online_sao.storage.session import Database
from online_sao.storage.tables import InteractionRow, TrajectoryRow
from online_sao.types import TrajectoryState

END = 0


class Letters:
    """A tokenizer of one token a letter: id = code point; 0 ends an answer."""

    eos_token_ids = (END,)
    tool_support = ToolSupport(shows_tools=True, carries_calls=True, parses_calls=True)

    def fewest_tokens(self, messages: Sequence[Any], tools: Sequence[Any] = ()) -> int:
        return len(messages)

    def describe_token(self, token_id: int) -> tuple[str, tuple[int, ...] | None]:
        return ("<end>", None) if token_id == END else (chr(token_id), tuple(chr(token_id).encode()))

    def render(self, messages: Sequence[Any], tools: Sequence[Any] = ()) -> tuple[int, ...]:
        return tuple(ord(c) for m in messages for c in m["content"])

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(t) for t in token_ids if t != END)


Script = Callable[[EngineRequest], AsyncIterator[TokenDelta]]


class ScriptedEngine:
    """Answers with what the script yields; remembers which requests were closed."""

    policy_version = 3
    max_top_logprobs = 2

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[EngineRequest] = []
        self.closed: list[str] = []

    async def generate(self, request: EngineRequest) -> AsyncIterator[TokenDelta]:
        self.requests.append(request)
        try:
            async for delta in self.script(request):
                yield delta
        finally:
            self.closed.append(request.request_id)

    async def start(self, policy_version: int, adapter_dir: Path | None) -> None: ...
    async def stop(self) -> None: ...
    def load(self) -> EngineLoad:
        return EngineLoad(0, 0)

    async def served_digest(self) -> tuple[float, ...]:
        return ()

    async def swap(self, policy_version: int, adapter_dir: Path | None) -> SwapReport:
        raise NotImplementedError


def delta(text: str, finish: Any = None, version: int = 3) -> TokenDelta:
    return TokenDelta(tuple(map(ord, text)), tuple(-float(i + 1) for i in range(len(text))), version, finish)


def says(*deltas: TokenDelta) -> Script:
    async def script(_: EngineRequest) -> AsyncIterator[TokenDelta]:
        for item in deltas:
            await asyncio.sleep(0)
            yield item

    return script


async def endless(_: EngineRequest) -> AsyncIterator[TokenDelta]:
    while True:
        await asyncio.sleep(0.001)
        yield delta("a")


def service(database: Database, script: Script, **engine: Any) -> tuple[ChatService, ScriptedEngine, Settings]:
    settings = Settings(policy={"name": "tiny"}, engine={"max_context_tokens": 64, "default_max_tokens": 16, **engine})  # type: ignore[arg-type]
    scripted = ScriptedEngine(script)
    return ChatService(settings, scripted, Letters(), ChatLog(database, settings.reward)), scripted, settings  # type: ignore[arg-type]


def ask(content: str = "hi", **changes: Any) -> ChatCommand:
    return ChatCommand(**{"request_id": "r", "model": "tiny", "messages": ({"role": "user", "content": content},), **changes})


async def texts(run: ChatRun) -> tuple[dict[int, str], list[ChoiceDone]]:
    found: dict[int, str] = {}
    done = []
    async for event in run.events():
        if isinstance(event, TextDelta):
            found[event.choice] = found.get(event.choice, "") + event.text
        else:
            done.append(event)
    return found, done


async def rows(database: Database, run: ChatRun, choice: int = 0) -> tuple[InteractionRow, TrajectoryRow]:
    async with database.read() as session:
        interaction = await interactions.get(session, run.request.completion_id, choice)
        assert interaction is not None
        trajectory = await trajectories.by_interaction(session, interaction.id)
        assert trajectory is not None
        return interaction, trajectory


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to pass in 5 s")


async def test_a_choice_is_complete_on_disk_before_it_is_told(database: Database) -> None:
    chat, _, _ = service(database, says(delta("He", version=3), delta("llo", version=4), delta(chr(END), "stop", version=4)))
    run = await chat.start(ask())
    before, trajectory = None, None
    async for event in run.events():
        if isinstance(event, ChoiceDone):
            before, trajectory = await rows(database, run)
            assert (event.finish_reason, event.completion_tokens, event.policy_version, event.not_trainable_reason) == ("stop", 6, 4, None)
    assert before is not None
    assert trajectory is not None
    assert (before.status, before.text, before.finish_reason) == ("completed", "Hello", "stop")
    assert before.token_ids == [*map(ord, "Hello"), END]
    assert before.behavior_logprobs == [-1, -2, -1, -2, -3, -1]
    assert before.version_spans == [[0, 2, 3], [2, 6, 4]]
    assert before.policy_version == 4
    assert before.first_token_at is not None
    assert before.completed_at is not None
    assert before.created_at <= before.first_token_at <= before.completed_at
    assert (trajectory.state, trajectory.oldest_policy_version) == (TrajectoryState.PENDING, 3)
    assert chat._active == 0


@pytest.mark.parametrize("script", [says(delta("ok"), delta("", "stop")), endless], ids=["short", "endless"])
@pytest.mark.parametrize("kept", [True, False])
async def test_the_engine_begins_while_the_rows_are_written_and_without_them_nothing_is_told(
    database: Database, monkeypatch: pytest.MonkeyPatch, script: Script, kept: bool
) -> None:
    chat, engine, _ = service(database, script)
    writing, written, opening = asyncio.Event(), asyncio.Event(), ChatLog.open

    async def slow(log: ChatLog, request: AdmittedRequest) -> None:
        writing.set()
        await written.wait()
        if not kept:
            raise StorageError("The database does not answer.")
        await opening(log, request)

    monkeypatch.setattr(ChatLog, "open", slow)
    begun = asyncio.create_task(chat.start(ask()))
    await writing.wait()
    await until(lambda: bool(engine.requests))
    await asyncio.sleep(0.02)
    assert not begun.done()
    async with database.read() as session:
        assert (await session.scalars(select(InteractionRow))).all() == []
    written.set()
    if kept:
        run = await begun
        run.abandon()
        await until(lambda: not chat._tasks)
        assert (await rows(database, run))[0].text
    else:
        with pytest.raises(StorageError):
            await begun
        await until(lambda: not chat._tasks)
        async with database.read() as session:
            assert (await session.scalars(select(InteractionRow))).all() == []
    assert engine.closed == [engine.requests[0].request_id]
    assert (chat._active, chat._runs) == (0, set())


async def test_tokens_beyond_the_one_that_completes_a_stop_string_are_dropped(database: Database) -> None:
    chat, engine, _ = service(database, says(delta("ab"), delta("cdSTOPxyz"), delta("never")))
    run = await chat.start(ask(stop=("STOP",)))
    shown, done = await texts(run)
    interaction, _ = await rows(database, run)
    assert shown == {0: "abcd"}
    assert done[0].finish_reason == "stop"
    assert interaction.token_ids == [*map(ord, "abcdSTOP")]
    assert interaction.text == "abcd"
    assert engine.closed == [engine.requests[0].request_id]


async def test_the_beginning_of_a_stop_string_at_the_end_is_given_after_all(database: Database) -> None:
    chat, _, _ = service(database, says(delta("abST", "length")))
    shown, done = await texts(await chat.start(ask(stop=("STOP",))))
    assert shown == {0: "abST"}
    assert done[0].finish_reason == "length"


async def test_a_client_that_leaves_keeps_what_was_sampled(database: Database) -> None:
    chat, engine, _ = service(database, endless)
    run = await chat.start(ask(max_tokens=50))
    events = run.events()
    for _ in range(3):
        await anext(events)
    run.abandon()
    run.abandon()
    await until(lambda: chat._active == 0)
    interaction, trajectory = await rows(database, run)
    assert interaction.status == "abandoned"
    assert interaction.token_ids is not None
    assert len(interaction.token_ids) >= 3
    assert interaction.text == "a" * len(interaction.token_ids)
    assert (trajectory.state, trajectory.reason) == (TrajectoryState.NOT_TRAINABLE, "abandoned")
    assert len(engine.closed) == 1


async def test_an_engine_that_fails_midway(database: Database) -> None:
    async def fails(_: EngineRequest) -> AsyncIterator[TokenDelta]:
        yield delta("ab")
        raise EngineError("out of memory")

    chat, _, _ = service(database, fails)
    run = await chat.start(ask(n=2))
    with pytest.raises(EngineError, match="out of memory"):
        await texts(run)
    await until(lambda: chat._active == 0)
    interaction, trajectory = await rows(database, run)
    assert (interaction.status, interaction.finish_reason, interaction.text) == ("failed", "error", "ab")
    assert (trajectory.state, trajectory.reason) == (TrajectoryState.NOT_TRAINABLE, "engine_error")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"temperature": 0.0}, "greedy_sampling"), ({"top_p": 0.9}, "truncated_distribution"), ({"store": False}, "store_false")],
)
async def test_what_cannot_train_says_why(database: Database, changes: dict[str, Any], reason: str) -> None:
    chat, _, _ = service(database, says(delta("ok", "length")))
    run = await chat.start(ask(user="ann", **changes))
    _, done = await texts(run)
    assert done[0].not_trainable_reason == reason
    interaction, trajectory = await rows(database, run)
    assert (trajectory.state, trajectory.reason) == (TrajectoryState.NOT_TRAINABLE, reason)
    if reason == "store_false":
        assert (interaction.prompt_ids, interaction.token_ids, interaction.text, interaction.user) == (None, None, None, None)
        assert (interaction.prompt_tokens, interaction.completion_tokens) == (2, 2)


async def test_exploration_replaces_what_cannot_train_and_says_so(database: Database) -> None:
    chat, engine, settings = service(database, says(delta("ok", "length")))
    settings.exploration.neutralise_sampling = True
    run = await chat.start(ask(temperature=0.0, top_p=0.5))
    _, done = await texts(run)
    assert (engine.requests[0].temperature, engine.requests[0].top_p) == (1.0, 1.0)
    assert done[0].not_trainable_reason is None
    interaction, _ = await rows(database, run)
    assert interaction.sampling["requested"] == {"temperature": 0.0, "top_p": 0.5}
    assert interaction.sampling["temperature"] == 1.0


async def test_a_score_that_comes_while_it_generates_counts(database: Database) -> None:
    go = asyncio.Event()

    async def waits(_: EngineRequest) -> AsyncIterator[TokenDelta]:
        yield delta("a")
        await go.wait()
        yield delta("b", "length")

    chat, _, settings = service(database, waits)
    run = await chat.start(ask())
    receipt, created = await FeedbackService(database, settings).submit(FeedbackSubmission(run.request.completion_id, 0.75))
    assert created
    assert receipt.status == "received"
    go.set()
    await texts(run)
    _, trajectory = await rows(database, run)
    assert (trajectory.state, trajectory.reward) == (TrajectoryState.READY, 0.5)


async def test_admission_counts_choices_and_frees_them(database: Database) -> None:
    chat, _, _ = service(database, endless, max_concurrent=2, max_queue=1)
    first = await chat.start(ask(n=2))
    second = await chat.start(ask())
    with pytest.raises(OverloadedError) as refused:
        await chat.start(ask())
    assert int(refused.value.headers["Retry-After"]) >= 1
    first.abandon()
    second.abandon()
    await until(lambda: chat._active == 0)
    (await chat.start(ask(n=3))).abandon()
    await until(lambda: chat._active == 0)


async def test_requests_that_cannot_be_served_take_no_place(database: Database) -> None:
    chat, engine, _ = service(database, endless)
    for command, error in (
        (ask(model="other"), ModelNotFoundError),
        (ask(model="tiny@vX"), ModelNotFoundError),
        (ask(model="tiny@v2"), VersionNotLoadedError),
        (ask("x" * 64), ContextLengthError),
        (ask("x" * 60, max_tokens=5), ContextLengthError),
    ):
        with pytest.raises(error):
            await chat.start(command)
    assert chat._active == 0
    assert engine.requests == []
    run = await chat.start(ask("x" * 60, model="tiny@v3"))
    assert run.request.sampling.max_tokens == 4
    run.abandon()
    await until(lambda: chat._active == 0)


async def test_closing_gives_grace_and_then_abandons(database: Database) -> None:
    chat, _, _ = service(database, endless)
    run = await chat.start(ask())
    await chat.close(grace_seconds=0.05)
    interaction, _ = await rows(database, run)
    assert interaction.status == "abandoned"
    with pytest.raises(NotReadyError, match="shutting down"):
        await texts(run)
    with pytest.raises(NotReadyError):
        await chat.start(ask())


TOOL = {"type": "function", "function": {"name": "f"}}
CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'


async def events(run: ChatRun) -> list[ChatEvent]:
    return [event async for event in run.events()]


async def test_tool_calls_are_told_apart_from_text_and_logged_as_sampled(database: Database) -> None:
    said = f"look \n{CALL}"
    chat, _, _ = service(database, says(delta(said[:10]), delta(said[10:30]), delta(said[30:] + chr(END), "stop")))
    run = await chat.start(ask(tools=(TOOL,)))
    text, call, done = await events(run)
    assert isinstance(text, TextDelta)
    assert text.text == "look"
    assert isinstance(call, ToolCallDelta)
    assert (call.index, call.name, call.arguments) == (0, "f", '{"x": 1}')
    assert isinstance(done, ChoiceDone)
    assert (done.finish_reason, done.tool_calls) == ("stop", 1)
    interaction, _ = await rows(database, run)
    assert interaction.text == said
    assert interaction.token_ids == [*map(ord, said), END]
    assert interaction.sampling["tools"] == [TOOL]


async def test_without_tools_nothing_is_taken_for_a_call(database: Database) -> None:
    chat, _, _ = service(database, says(delta(CALL + chr(END), "stop")))
    shown, done = await texts(await chat.start(ask()))
    assert shown == {0: CALL}
    assert done[0].tool_calls == 0


async def test_logprobs_are_the_engines_one_for_each_token_of_the_action(database: Database) -> None:
    tops = (((ord("a"), -1.0), (ord("b"), -1.5)), ((ord("S"), -2.0),), ((ord("T"), -3.0),))
    script = says(TokenDelta(tuple(map(ord, "aST")), (-1.0, -2.0, -3.0), 3, None, tops), delta("OP", "length"))
    chat, engine, _ = service(database, script)
    run = await chat.start(ask(stop=("STOP",), logprobs=True, top_logprobs=2, seed=5, n=2))
    told = await events(run)
    tokens = [token for event in told if isinstance(event, TextDelta) and event.choice == 0 for token in event.tokens]
    assert "".join(event.text for event in told if isinstance(event, TextDelta) and event.choice == 0) == "a"
    assert [(token.token, token.logprob) for token in tokens] == [("a", -1.0), ("S", -2.0), ("T", -3.0), ("O", -1.0), ("P", -2.0)]
    assert [(top.token, top.bytes, top.logprob) for top in tokens[0].top] == [("a", (97,), -1.0), ("b", (98,), -1.5)]
    interaction, _ = await rows(database, run)
    assert interaction.behavior_logprobs == [token.logprob for token in tokens]
    assert interaction.sampling["seed"] == 5
    assert [request.top_logprobs for request in engine.requests] == [2, 2]
    assert engine.requests[0].seed == 5
    assert engine.requests[1].seed not in (None, 5, 6)


async def test_nobody_who_did_not_ask_gets_logprobs(database: Database) -> None:
    chat, _, _ = service(database, says(delta("ab", "length")))
    (text, _) = await events(await chat.start(ask()))
    assert isinstance(text, TextDelta)
    assert text.tokens == ()


async def test_more_alternatives_than_the_engine_has_are_refused(database: Database) -> None:
    chat, _, _ = service(database, endless)
    with pytest.raises(UnsupportedFeatureError, match="2 alternatives at most"):
        await chat.start(ask(logprobs=True, top_logprobs=3))
