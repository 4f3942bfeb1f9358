"""The parts of the page that only show: a View in, HTML out. Pure; all text from data is escaped. Knows nothing of NiceGUI or services."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from api.dashboard import words
from api.dashboard.metrics import GROUPS, words_for
from api.dashboard.view import View
from online_sao.service.status import LearnerStatus, UpdateStatus
from online_sao.types import TrajectoryState, VersionState

HEARTBEAT_LATE_SECONDS = 10.0
"""A learner writes its heartbeat every 2 s; this long without one, it is not running, whatever its last word was."""
RECENT = 20


def serving(view: View, model: str) -> str:
    """Which version answers, and how busy it is."""
    if view.serving_version is None:
        return f'<span class="dot off"></span><b>{escape(model)}</b> <span class="muted">is being loaded</span>'
    busy = [f"{number} {what}" for number, what in ((view.load.running, "running"), (view.load.waiting, "waiting")) if number]
    return f'<span class="dot"></span><b>{escape(model)}@v{view.serving_version}</b> <span class="muted">serving, {", ".join(busy) or "idle"}</span>'


def figure(view: View) -> str:
    """The headline number: mean of the newest scores, beside the oldest ones shown; and how many answers are scored at all."""
    scores, total = view.snapshot.scores, view.snapshot.total_scores
    if not scores:
        return "<p>No scores yet. Ask something and press a thumb, or let simulated users do it:<br><code>online-sao simulate</code></p>"
    values = [point.value for point in scores]
    recent = values[-RECENT:]
    parts = [
        f'<span class="big">{words.number(sum(recent) / len(recent))}</span>',
        f"<span>mean of the last {f'{len(recent)} scores' if len(recent) > 1 else 'score'}</span>",
    ]
    if len(values) >= 2 * RECENT:
        parts.append(f'<span class="muted">first {RECENT} shown: {words.number(sum(values[:RECENT]) / RECENT)}</span>')
    parts.append(f'<span class="muted">{words.count(total)} in all, the last {words.age(view.age(scores[-1].at))} ago</span>')
    return f'<div class="figure">{"".join(parts)}</div>'


def stages(view: View) -> str:
    """Where answers are on their way into the policy, where the others ended, and how many of the last day's are scored."""
    of = view.snapshot.pipeline
    dropped = {state: of.get(state, 0) for state in (TrajectoryState.EXPIRED, TrajectoryState.REJECTED, TrajectoryState.NOT_TRAINABLE)}
    cells = (
        ("Awaiting a score", of.get(TrajectoryState.PENDING, 0)),
        ("Queued", of.get(TrajectoryState.READY, 0)),
        ("In an update", of.get(TrajectoryState.CLAIMED, 0)),
        ("Trained", of.get(TrajectoryState.TRAINED, 0)),
        ("Not used", sum(dropped.values())),
    )
    items = "".join(f"<div><dt>{name}</dt><dd>{words.count(number)}</dd></div>" for name, number in cells)
    notes = []
    if view.snapshot.coverage.fraction is not None:
        notes.append(f"{words.percent(view.snapshot.coverage.fraction)} of the last day's answers have a score")
    if any(dropped.values()):
        notes.append("not used: " + ", ".join(f"{words.count(number)} {state.replace('_', ' ')}" for state, number in dropped.items() if number))
    return f'<dl class="stages">{items}</dl>' + (f'<p class="aside">{"; ".join(notes)}</p>' if notes else "")


def learner(view: View, enabled: bool) -> str:
    """What the learner is doing, how fresh that is, and what to do where it stands still."""
    state = view.snapshot.learner
    name, advice, dot = _learner_words(state, enabled)
    beat = "never" if state.heartbeat_age is None else f"{words.age(state.heartbeat_age)} ago"
    facts = [("Last sign of life", beat), ("Updates made", words.count(state.head_update)), ("Newest version", f"v{state.head_version}")]
    items = "".join(f"<div><dt>{key}</dt><dd>{value}</dd></div>" for key, value in facts)
    tone = ' class="alarm"' if dot == "bad" else ""
    note = advice or state.detail
    aside = f'<p class="aside">{escape(note)}</p>' if note else ""
    return f'<div class="state"><span class="dot {dot}"></span><span{tone}>{escape(name)}</span></div><dl class="facts">{items}</dl>{aside}'


def _learner_words(state: LearnerStatus, enabled: bool) -> tuple[str, str | None, str]:
    """(name, what to do, class of the dot)."""
    if state.phase == "alarm":
        return words.PHASES["alarm"], f"{state.pause_reason or 'The learner and the engine disagree.'} Serving goes on; nothing is learned.", "bad"
    silent = state.heartbeat_age is None or state.heartbeat_age > HEARTBEAT_LATE_SECONDS
    if silent and not enabled:
        return "Switched off", "Scores are kept. Start without --no-learner, or run online-sao learn, to learn from them.", "off"
    if state.heartbeat_age is None:
        return "Starting", None, "off"
    if silent and state.phase != "stopped":
        return "Not responding", "It is started again by itself; the server's log says why it ended.", "bad"
    if state.paused:
        return "Paused", f"{state.pause_reason or 'By an operator.'} Resume with POST /admin/learner/resume.", "off"
    return words.PHASES.get(state.phase, state.phase), None, "off" if silent else ""


def update(view: View) -> str:
    """The newest update: its outcome, then every metric in plain words; ones without words keep their own name, none is hidden."""
    newest = view.snapshot.last_update
    if newest is None:
        queued = view.snapshot.pipeline.get(TrajectoryState.READY, 0)
        waiting = f"{words.count(queued)} scored {'answer is' if queued == 1 else 'answers are'} queued" if queued else "nothing is queued"
        return f"<p>No update yet: {waiting}. An update begins when enough scored answers are waiting, or when the oldest has waited long enough.</p>"
    groups = []
    for prefix, title in GROUPS:
        rows = [
            _metric(name, value) for name, value in sorted(newest.metrics.items(), key=lambda item: words_for(item[0])[1]) if name.startswith(prefix)
        ]
        if rows:
            groups.append(f'<div><h3>{title}</h3><dl class="metrics">{"".join(rows)}</dl></div>')
    return _update_outcome(view, newest) + f'<div class="groups">{"".join(groups)}</div>'


def _update_outcome(view: View, newest: UpdateStatus) -> str:
    if newest.accepted:
        outcome = f"Update {newest.number} made version {newest.policy_version}."
    else:
        outcome = f'<span class="alarm">Update {newest.number} was discarded:</span> {escape(newest.reason or "a gate refused it")}.'
    when = f"{words.age(view.age(newest.finished_at))} ago, took {words.age(newest.finished_at - newest.started_at)}"
    return f'<p class="outcome">{outcome} <span class="muted">{when}</span></p>'


def _metric(name: str, value: float | None) -> str:
    plain, _ = words_for(name)
    return f'<div><dt title="{escape(plain.meaning)} ({escape(name)})">{escape(plain.name)}</dt><dd>{plain.write(value)}</dd></div>'


def versions(view: View) -> str:
    """Every version with the mean score its own answers got: what a rollback would go by."""
    rows = [
        _row(
            [
                f"v{version.version}",
                ("serving" if version.state is VersionState.ACTIVE else escape(version.state)) + _reason(version.reason),
            ],
            [
                words.number(version.mean_score),
                words.count(version.scores),
                words.MISSING if version.parent is None else f"v{version.parent}",
                f"{words.age(view.age(version.created_at))} ago",
            ],
            now=version.state is VersionState.ACTIVE,
        )
        for version in view.snapshot.versions
    ]
    return _table("Versions, newest first", ["Version", "State"], ["Mean score", "Scores", "Made from", "Age"], rows)


def swaps(view: View) -> str:
    if not view.snapshot.swaps:
        return '<p class="muted">No swap yet. New weights go in while answers are being written; each swap is listed here with the pause it cost.</p>'
    rows = [
        _row(
            [f"v{swap.policy_version}"],
            [
                words.milliseconds(swap.pause_seconds),
                words.milliseconds(swap.total_seconds),
                words.count(swap.requests_in_flight),
                f"{words.age(view.age(swap.at))} ago",
            ],
        )
        for swap in view.snapshot.swaps
    ]
    return _table("Swaps, newest first", ["To"], ["Pause", "Whole", "In flight", "When"], rows)


def _reason(reason: str | None) -> str:
    return f'<br><span class="muted">{escape(reason)}</span>' if reason else ""


def _row(texts: Sequence[str], numbers: Sequence[str], *, now: bool = False) -> str:
    cells = "".join(f"<td>{text}</td>" for text in texts) + "".join(f'<td class="n">{number}</td>' for number in numbers)
    return f'<tr class="now">{cells}</tr>' if now else f"<tr>{cells}</tr>"


def _table(label: str, texts: Sequence[str], numbers: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{text}</th>' for text in texts) + "".join(f'<th scope="col" class="n">{number}</th>' for number in numbers)
    # A region that scrolls must be reachable by keyboard.
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
