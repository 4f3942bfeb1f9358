"""An answer token by token: which version wrote each, and whether it was trained on, as far as that is kept. Pure; all text from data is escaped.

Which single tokens DIS masked is not stored, only what fraction of the answer's; the page says so rather than guess.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from api.dashboard import words
from api.dashboard.markup import Column, table
from online_sao.service.interactions import LoggedChoice
from online_sao.types import TrajectoryState

Describe = Callable[[int], tuple[str, tuple[int, ...] | None]]
"""Token id → (text, its bytes; None for a special token)."""

COLOURS = 6
"""Tints of the style sheet that versions take in turn."""


def answer(choice: LoggedChoice, describe: Describe | None) -> str:
    """The answer with its tokens tinted by the version that wrote them, underlined where they were trained on; a legend; and all as a table."""
    row, trajectory = choice.interaction, choice.trajectory
    if not row.stored:
        return '<p class="muted">Not kept: it was sent with store: false, or has been erased. Version, counts and timing remain.</p>'
    if row.token_ids is None:
        return f"<p>{escape(row.text or '')}</p>" + '<p class="muted">Its tokens are not known yet.</p>'
    if describe is None:
        return f'<p class="tokens">{escape(row.text or "")}</p><p class="muted">Its tokens are shown once the engine is loaded.</p>'
    texts = token_texts(row.token_ids, describe)
    versions = _versions(row.token_ids, row.version_spans or ())
    trained = trajectory is not None and trajectory.state == TrajectoryState.TRAINED
    order = {version: place for place, version in enumerate(dict.fromkeys(versions))}
    pieces = []
    for index, (text, version) in enumerate(zip(texts, versions, strict=True)):
        flag = f'<sup class="flag" aria-hidden="true">v{version}</sup>' if index == 0 or version != versions[index - 1] else ""
        pieces.append(f'{flag}<span class="tok t{order[version] % COLOURS}">{_visible(text)}</span>')
    kind = "tokens trained" if trained else "tokens"
    return f'<p class="{kind}">{"".join(pieces)}</p>{_legend(row.version_spans or (), order, choice)}{_as_table(choice, texts, versions)}'


def token_texts(ids: Sequence[int], describe: Describe) -> list[str]:
    """Text of each token. Where a character is spread over several, it stands with the last of them and the others are empty."""
    texts: list[str] = []
    open_bytes = b""
    for token_id in ids:
        text, raw = describe(token_id)
        if raw is None:
            texts.append(f"{_lost(open_bytes)}{text}")
            open_bytes = b""
            continue
        open_bytes += bytes(raw)
        whole, open_bytes = _whole(open_bytes)
        texts.append(whole)
    if open_bytes and texts:
        texts[-1] += _lost(open_bytes)
    return texts


def _whole(raw: bytes) -> tuple[str, bytes]:
    """(text of the whole characters at the beginning, bytes of one that is not complete yet)."""
    for kept in range(len(raw), max(-1, len(raw) - 4), -1):
        try:
            return raw[:kept].decode(), raw[kept:]
        except UnicodeDecodeError:
            continue
    return raw.decode(errors="replace"), b""


def _lost(raw: bytes) -> str:
    return raw.decode(errors="replace") if raw else ""


def _visible(text: str) -> str:
    """Line ends are shown as such and still break the line."""
    return escape(text).replace("\n", '<span class="nl" aria-hidden="true">↵</span>\n')


def _versions(ids: Sequence[int], spans: Sequence[Sequence[int]]) -> list[int]:
    versions = [-1] * len(ids)
    for start, end, version in spans:
        versions[start:end] = [version] * (min(end, len(ids)) - start)
    return versions


def _legend(spans: Sequence[Sequence[int]], order: dict[int, int], choice: LoggedChoice) -> str:
    items = "".join(
        f'<li><span class="tok t{order[version] % COLOURS}">v{version}</span> tokens {start + 1}–{end}</li>' for start, end, version in spans
    )
    return f'<ul class="legend" aria-label="Versions">{items}</ul><p class="aside">{_training(choice)}</p>'


def _training(choice: LoggedChoice) -> str:
    trajectory, count = choice.trajectory, len(choice.interaction.token_ids or ())
    if trajectory is None or trajectory.state in (TrajectoryState.PENDING, TrajectoryState.READY, TrajectoryState.CLAIMED):
        return "Not trained on yet. The prompt's tokens never are."
    if trajectory.state != TrajectoryState.TRAINED:
        return "None of these tokens was trained on."
    masked = trajectory.masked_fraction
    if not masked:
        return f"Underlined: all {count} tokens were trained on; the prompt's never are."
    return (
        f"Underlined: trained on, except that DIS masked {words.percent(masked)} of the tokens (about {round(masked * count)} of {count}). "
        "Which ones is not kept. The prompt's tokens are never trained on."
    )


def _as_table(choice: LoggedChoice, texts: Sequence[str], versions: Sequence[int]) -> str:
    row: Any = choice.interaction
    logprobs = row.behavior_logprobs or [None] * len(texts)
    rows = [
        ([str(index + 1), f"<code>{_visible(text) or '·'}</code>", str(token_id), words.number(logprob, 3), f"v{version}"], False)
        for index, (text, token_id, logprob, version) in enumerate(zip(texts, row.token_ids, logprobs, versions, strict=True))
    ]
    columns = (Column("#", True), Column("Token"), Column("Id", True), Column("Logprob at sampling", True), Column("Version", True))
    return f'<details data-key="tokens"><summary>All {len(rows)} tokens as a table</summary>{table("Tokens", columns, rows)}</details>'
