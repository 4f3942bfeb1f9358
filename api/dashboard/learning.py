"""The Learning tab: updates in, HTML out. Pure; all text from data is escaped. Knows nothing of NiceGUI or services."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from api.dashboard import svg, words
from api.dashboard.markup import Column, ago, link, table
from api.dashboard.metrics import GROUPS, words_for
from api.dashboard.view import View
from online_sao.service.status import UpdateStatus
from online_sao.types import TrajectoryState


def outcome(view: View) -> str:
    """What the newest update did; or, before the first, what it waits for."""
    newest = view.snapshot.last_update
    if newest is None:
        ready = view.snapshot.pipeline.get(TrajectoryState.READY, 0)
        waiting = f"{words.count(ready)} of {view.batch_size} scored answers are" if ready else "nothing is"
        return (
            f"<p>No update yet: {waiting} queued. An update begins when {view.batch_size} scored answers are waiting, or when the oldest has "
            f"waited long enough. Score answers in the {link('playground', 'playground')}, or run <code>online-sao simulate</code>.</p>"
        )
    if newest.accepted:
        said = f"Update {newest.number} made version {newest.policy_version}."
    else:
        said = f'<span class="alarm">Update {newest.number} was discarded:</span> {escape(newest.reason or "a gate refused it")}.'
    took = words.duration(newest.finished_at - newest.started_at)
    return f'<p class="outcome">{said} <span class="muted">{ago(newest.finished_at)}, took {took}</span></p>'


def ratios(view: View) -> str:
    """How far the policy had moved, token by token, when the newest update used the answers."""
    newest = view.snapshot.last_update
    drawn = svg.ratio_histogram(newest.ratio_histogram) if newest is not None else ""
    if not drawn:
        return '<p class="muted">After the first update: how probable each token is now, over how probable it was when it was sampled.</p>'
    return (
        '<p class="muted lead">Probability of each token at the update over its probability when it was sampled. 1 is on-policy; tokens beyond the '
        f"bounds of the band are masked.</p>{drawn}"
    )


def metrics(updates: Sequence[UpdateStatus]) -> str:
    """Every metric of the updates as a small picture: value now, course, what it means. Ones without words keep their own name; none is hidden."""
    if not updates:
        return ""
    names = sorted({name for update in updates for name in update.metrics}, key=lambda name: words_for(name)[1])
    groups = []
    for prefix, title in GROUPS:
        cards = "".join(_card(name, updates) for name in names if name.startswith(prefix))
        if cards:
            groups.append(f'<h3>{title}</h3><div class="multiples">{cards}</div>')
    others = "".join(_card(name, updates) for name in names if not name.startswith(tuple(prefix for prefix, _ in GROUPS)))
    if others:
        groups.append(f'<h3>Other</h3><div class="multiples">{others}</div>')
    first, last = updates[0].number, updates[-1].number
    span = f"updates {first} to {last}" if first != last else f"update {first}"
    return f'<p class="muted lead">Left to right: {span}. The numbers below each picture are its lowest and highest.</p>{"".join(groups)}'


def _card(name: str, updates: Sequence[UpdateStatus]) -> str:
    plain, _ = words_for(name)
    values = [update.metrics.get(name) for update in updates]
    known = [value for value in values if value is not None]
    course = f"{plain.write(min(known))} – {plain.write(max(known))}" if known and min(known) != max(known) else "no change" if known else "no value"
    label = f"{plain.name} over {len(values)} updates: {course}, now {plain.write(values[-1])}"
    return (
        f'<article class="metric"><h4>{escape(plain.name)}</h4><div class="now">{plain.write(values[-1])}</div>{svg.sparkline(values, label)}'
        f'<div class="range">{course}</div><p>{escape(plain.meaning)}</p><code>{_breakable(name)}</code></article>'
    )


def _breakable(name: str) -> str:
    """A long name may break after its separators, and nowhere else."""
    return escape(name).replace("/", "/<wbr>").replace("_", "_<wbr>")


def swaps(view: View) -> str:
    """What putting each version in place cost the requests under way."""
    if not view.snapshot.swaps:
        return '<p class="muted">No swap yet. New weights go in while answers are being written; each swap is listed here with the pause it cost.</p>'
    columns = [Column("To"), Column("Pause", True), Column("Whole", True), Column("In flight", True), Column("When", True)]
    rows = [
        (
            [
                f"v{swap.policy_version}",
                words.milliseconds(swap.pause_seconds),
                words.milliseconds(swap.total_seconds),
                words.count(swap.requests_in_flight),
                ago(swap.at),
            ],
            False,
        )
        for swap in view.snapshot.swaps
    ]
    return table("Swaps, newest first", columns, rows)
