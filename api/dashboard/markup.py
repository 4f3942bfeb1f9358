"""Small pieces of HTML that several panels are made of. Pure; whoever calls escapes text from data, except where a function says that it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from urllib.parse import urlencode


def ago(at: float) -> str:
    """A moment (Unix seconds), which the page's script turns into "4 s ago" and keeps true: the server sends it once."""
    moment = datetime.fromtimestamp(at, UTC)
    return f'<time data-at="{at:.1f}" datetime="{moment:%Y-%m-%dT%H:%M:%SZ}">{moment:%Y-%m-%d %H:%M:%S} UTC</time>'


def clock(at: float) -> str:
    """The moment itself: date and time, UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def href(tab: str, **query: object) -> str:
    """Address of a place on the page, for an attribute: escaped."""
    return escape("?" + urlencode({"tab": tab, **{key: value for key, value in query.items() if value not in (None, "")}}))


def link(text: str, tab: str, **query: object) -> str:
    """A link that the page follows without being loaded anew. ``text`` is escaped."""
    return f'<a data-go href="{href(tab, **query)}">{escape(text)}</a>'


def button(text: str, action: str, value: object = "", *, label: str | None = None, kind: str = "") -> str:
    """A button whose press the page's script hands to the server as (action, value). All are escaped."""
    name = f' aria-label="{escape(label)}"' if label else ""
    key = escape(f"{action}-{value}")
    return (
        f'<button type="button" class="btn {kind}" data-do="{escape(action)}" data-value="{escape(str(value))}" data-key="{key}"{name}>'
        f"{escape(text)}</button>"
    )


def notices(said: Sequence[str]) -> str:
    """What a visitor must know of what they asked for. Escaped."""
    return "".join(f'<p class="notice">{escape(notice)}</p>' for notice in said)


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    return '<dl class="facts">' + "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in pairs) + "</dl>"


@dataclass(frozen=True, slots=True)
class Column:
    """``number``: its cells are aligned right."""

    title: str
    number: bool = False


def table(caption: str, columns: Sequence[Column], rows: Sequence[tuple[Sequence[str], bool]], *, stack: bool = False) -> str:
    """``rows``: (cells, whether it is the row of what is so now). ``stack``: on a phone each row becomes a block, its cells labelled."""
    head = "".join(f'<th scope="col"{_class(column)}>{column.title}</th>' for column in columns)
    body = "".join(
        f"<tr{' class=now' if now else ''}>"
        + "".join(f'<td{_class(column)} data-label="{column.title}">{cell}</td>' for column, cell in zip(columns, cells, strict=True))
        + "</tr>"
        for cells, now in rows
    )
    kind = ' class="stack"' if stack else ""
    return f'<table{kind}><caption class="hidden">{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _class(column: Column) -> str:
    return ' class="n"' if column.number else ""
