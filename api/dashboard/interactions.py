"""The Interactions tab: logged completions in, HTML out. Pure; all text from data is escaped. Knows nothing of NiceGUI or services."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from html import escape
from typing import Any

from api.dashboard import words
from api.dashboard.markup import Column, ago, clock, facts, href, link, table
from api.dashboard.tokens import Describe, answer
from online_sao.service.interactions import LoggedChoice, LoggedPage
from online_sao.service.reasons import ReasonCode, advice_for, kind_of, of_code
from online_sao.service.receipts import Receipt
from online_sao.types import InteractionStatus, ReceiptStatus, TrajectoryState

EXCERPT = 180
FILTERS = ("text", "user", "version", "into", "since", "status", "receipt", "effect", "training", "reason", "find")
"""What a list may be narrowed by, as the address names it."""


SINCE = {"hour": 3600.0, "day": 86400.0, "week": 7 * 86400.0}
"""Names of spans that end now, in seconds."""


def search_form(query: Mapping[str, str]) -> str:
    """A plain form: the page's script hands its fields to the server as a place on the page."""
    fields = (
        _field("text", "Text", query, "in question or answer", kind="search"),
        _field("user", "User", query),
        _field("version", "Written by version", query, kind="number"),
        _field("into", "Learned into version", query, kind="number"),
        _choice("since", "Asked within", query, [("", "any time"), *((name, f"the last {name}") for name in SINCE)]),
        _choice("status", "Status", query, [("", "any"), *((status.value, status.value) for status in InteractionStatus)]),
        _choice("receipt", "Score's receipt", query, _options(ReceiptStatus)),
        _choice("effect", "Score's effect", query, [("", "any"), ("none", "none, and never will")]),
        _choice("training", "Training", query, _options(TrajectoryState)),
        _choice("reason", "Not used because", query, [("", "any"), *((code.value, of_code(code).words) for code in ReasonCode)]),
        _field("find", "Completion id", query, "chatcmpl-…"),
    )
    return (
        '<form class="search" data-form role="search" aria-label="Interactions"><input type="hidden" name="tab" value="interactions">'
        f"{''.join(fields)}"
        f'<div class="send"><button type="submit" class="btn primary" data-key="search">Search</button> {link("Clear", "interactions")}</div></form>'
    )


def _options(states: Iterable[StrEnum]) -> list[tuple[str, str]]:
    return [("", "any"), *((state.value, state.value.replace("_", " ")) for state in states)]


def _field(name: str, label: str, query: Mapping[str, str], hint: str = "", kind: str = "text") -> str:
    limits = ' min="0" step="1"' if kind == "number" else ' maxlength="200"'
    return (
        f'<label class="f-{name}"><span>{label}</span><input name="{name}" type="{kind}" value="{escape(query.get(name, ""))}" '
        f'placeholder="{hint}" autocomplete="off" data-key="f-{name}"{limits}></label>'
    )


def _choice(name: str, label: str, query: Mapping[str, str], options: Sequence[tuple[str, str]]) -> str:
    chosen = query.get(name, "")
    items = "".join(f'<option value="{value}"{" selected" if value == chosen else ""}>{text}</option>' for value, text in options)
    return f'<label class="f-{name}"><span>{label}</span><select name="{name}" data-key="f-{name}">{items}</select></label>'


def results(page: LoggedPage, query: Mapping[str, str]) -> str:
    """One page, newest first, and the way to older ones."""
    filters = {name: query[name] for name in FILTERS if query.get(name)}
    items = "".join(_item(choice) for choice in page.choices)
    older = ""
    if page.next_cursor is not None:
        name = "Search further back" if len(page.choices) == 0 or filters.get("text") else "Older"
        older = f'<a data-go class="btn" data-key="older" href="{href("interactions", **filters, after=page.next_cursor)}">{name}</a>'
    newest = link("Newest", "interactions", **filters) if query.get("after") else ""
    if not items:
        items = f'<li class="none muted">{_nothing(page, filters)}</li>'
    return f'<ul class="results" aria-label="Interactions, newest first">{items}</ul><p class="pager">{newest}{older}</p>'


def _nothing(page: LoggedPage, filters: Mapping[str, str]) -> str:
    if page.next_cursor is not None:
        return "Nothing among those looked at so far: a search for text goes through 20 000 interactions at a time."
    if filters:
        return f"No interaction matches. {link('Show all', 'interactions')}"
    return f"Nothing has been asked yet. Try the {link('playground', 'playground')}, or run <code>online-sao simulate</code>."


def _item(choice: LoggedChoice) -> str:
    row = choice.interaction
    scores = " ".join(
        f'<span class="pill {receipt.status}">{words.number(receipt.value)} {receipt.status.replace("_", " ")}{_because(receipt)}</span>'
        for receipt in choice.receipts
    )
    user = f"{escape(row.user)}, " if row.user else ""
    if row.stored:
        asked, said = _excerpt(_last_question(row.messages)), _excerpt(row.text or "")
        shown = f'<span class="q">{escape(asked) or "–"}</span><span class="a">{escape(said) or "–"}</span>'
    else:
        shown = f'<span class="a muted">{escape(row.completion_id)}: its texts are not kept</span>'
    return (
        f'<li><a data-go href="{href("interactions", id=row.completion_id)}" data-key="{escape(row.completion_id)}-{row.choice}">{shown}</a>'
        f'<span class="meta"><span>{user}v{row.policy_version}, {escape(row.status)}, {ago(row.created_at)}</span> {scores}</span></li>'
    )


def _because(receipt: Receipt) -> str:
    """The kind of reason, where the status alone does not say it: a score that was rolled back had been learned, whoever wrote its answer."""
    kind = kind_of(receipt.reason) if receipt.status is not ReceiptStatus.ROLLED_BACK else None
    return "" if kind is None else f": {escape(kind.words)}"


def detail(choices: Sequence[LoggedChoice], describe: Describe | None, back: str) -> str:
    """Everything kept of one completion: what was asked, each choice with its tokens, what became of it, its scores. ``back``: the list."""
    first = choices[0].interaction
    several = len(choices) > 1
    parts = [
        f'<p class="back"><a data-go href="{back}" data-key="back">← All interactions</a></p><h2 class="id">{escape(first.completion_id)}</h2>',
        facts(_facts(first)),
        _conversation(first.messages, first.stored),
    ]
    for choice in choices:
        title = f"Answer {choice.interaction.choice}" if several else "Answer"
        parts.append(
            f'<section class="choice"><h3>{title}</h3>{answer(choice, describe)}<h3>What became of it</h3>{_fate(choice)}'
            f"<h3>Scores</h3>{_scores(choice.receipts)}</section>"
        )
    return "".join(parts)


def missing(message: str, back: str) -> str:
    """In the place of what cannot be shown."""
    return f'<p class="back"><a data-go href="{back}" data-key="back">← All interactions</a></p><p>{escape(message)}</p>'


def _facts(row: Any) -> list[tuple[str, str]]:
    sampling = row.sampling or {}
    pairs = [("Asked", clock(row.created_at)), ("User", escape(row.user or words.MISSING)), ("Status", escape(row.status))]
    if row.episode_id:
        pairs.append(("Episode", escape(row.episode_id)))
    if "temperature" in sampling:
        pairs.append(("Temperature", f"{sampling['temperature']:g}"))
        pairs.append(("Top-p", f"{sampling['top_p']:g}"))
    pairs.append(("Tokens", f"{row.prompt_tokens} asked, {row.completion_tokens or 0} answered"))
    if row.completed_at is not None:
        pairs.append(("Took", words.milliseconds(row.completed_at - row.created_at)))
    return pairs


def _conversation(messages: Sequence[Mapping[str, Any]] | None, stored: bool) -> str:
    if not messages:
        why = "The conversation is not kept." if not stored else "No messages."
        return f'<p class="muted">{why}</p>'
    items = "".join(
        f'<div class="message"><span class="role">{escape(str(message.get("role", "")))}</span>'
        f'<span class="content">{escape(_content(message.get("content")))}</span></div>'
        for message in messages
    )
    return f'<h3>Asked</h3><div class="conversation">{items}</div>'


def _fate(choice: LoggedChoice) -> str:
    trajectory = choice.trajectory
    if trajectory is None:
        return "<p>It is still being written.</p>"
    state = TrajectoryState(trajectory.state)
    said = words.FATES[state] + (f": {escape(words.reason(trajectory.reason))}" if trajectory.reason else "")
    advice = advice_for(trajectory.reason) if state is not TrajectoryState.TRAINED else None
    pairs = []
    if trajectory.reward is not None:
        pairs.append(("Reward", words.number(trajectory.reward)))
    if trajectory.update_number is not None:
        pairs += [
            ("Update", str(trajectory.update_number)),
            ("Lag, updates", str(trajectory.policy_lag if trajectory.policy_lag is not None else "–")),
        ]
    if trajectory.masked_fraction is not None:
        pairs.append(("Tokens masked", words.percent(trajectory.masked_fraction)))
    help_ = f' <span class="muted">{escape(advice)}</span>' if advice else ""
    return f"<p>{said}.{help_}</p>" + (facts(pairs) if pairs else "")


def _scores(receipts: Sequence[Receipt]) -> str:
    if not receipts:
        return '<p class="muted">None yet. POST /v1/feedback gives one.</p>'
    columns = (
        Column("Metric"),
        Column("Value", True),
        Column("Receipt"),
        Column("Why"),
        Column("Comment"),
        Column("Reward", True),
        Column("Came"),
        Column("Changed"),
    )
    rows = []
    for receipt in receipts:
        where = f" in version {receipt.policy_version}" if receipt.policy_version is not None else ""
        update = f" (update {receipt.update})" if receipt.update is not None else ""
        cells = [
            escape(receipt.metric),
            words.number(receipt.value),
            f'<span class="pill {receipt.status}">{receipt.status.replace("_", " ")}</span>{where}{update}',
            _why(receipt),
            f'<span class="comment">{escape(receipt.comment)}</span>' if receipt.comment else words.MISSING,
            words.number(receipt.reward),
            ago(receipt.created),
            ago(receipt.updated),
        ]
        rows.append((cells, False))
    return table("Scores, oldest first", columns, rows, stack=True)


def _why(receipt: Receipt) -> str:
    if not receipt.reason:
        return words.MISSING
    advice = f'. <span class="muted">{escape(receipt.advice)}</span>' if receipt.advice else ""
    return f"<span>{escape(words.reason(receipt.reason))}{advice}</span>"


def _last_question(messages: Sequence[Mapping[str, Any]] | None) -> str:
    return next((_content(message.get("content")) for message in reversed(messages or ()) if message.get("role") == "user"), "")


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return ""


def _excerpt(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= EXCERPT else text[: EXCERPT - 1].rstrip() + "…"
