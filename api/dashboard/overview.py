"""The Overview tab: a View in, HTML out. Pure; all text from data is escaped. Knows nothing of NiceGUI or services."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from api.dashboard import words
from api.dashboard.markup import Column, ago, button, clock, facts, link, table
from api.dashboard.view import View
from online_sao.service.history import ShiftStatus
from online_sao.service.interactions import Unused
from online_sao.types import UNUSED_STATES, TrajectoryState

RECENT = 20
JOURNEY = (
    "<ol class=journey><li><b>Queued</b> The score is on disk and waits until enough answers are scored.</li>"
    "<li><b>Used</b> An update moves the policy towards answers that were liked and away from the others.</li>"
    "<li><b>Live</b> The new version answers. Its number is under every answer.</li></ol>"
    "<p class=muted>Every receipt ends in one of these, or says why it did not.</p>"
)


def serving(view: View, model: str) -> str:
    """Which version answers, and how busy it is."""
    if view.serving_version is None:
        return f'<span class="dot off"></span><b>{escape(model)}</b> <span class="muted">is being loaded</span>'
    if view.replicas and not any(replica.serving for replica in view.replicas):
        return f'<span class="dot bad"></span><b>{escape(model)}</b> <span class="alarm">none of {len(view.replicas)} engines serves</span>'
    busy = [f"{number} {what}" for number, what in ((view.load.running, "running"), (view.load.waiting, "waiting")) if number]
    said = f"serving{_engines(view)}, {', '.join(busy) or 'idle'}"
    return f'<span class="dot"></span><b>{escape(model)}@v{view.serving_version}</b> <span class="muted">{said}</span>'


def _engines(view: View) -> str:
    """Of several engines, how many serve, and what those have that a swap has reached before the others."""
    if not view.replicas:
        return ""
    versions = [replica.policy_version for replica in view.replicas if replica.serving]
    ahead = [f", {versions.count(version)} already v{version}" for version in sorted({v for v in versions if v is not None} - {view.serving_version})]
    return f" with {len(versions)} of {len(view.replicas)} engines{''.join(ahead)}"


def alarm_chip(view: View) -> str:
    """In the head of every tab: that there are alarms, and the way to them."""
    number = len(view.snapshot.alarms)
    if not number:
        return ""
    return f'<a data-go class="chip alarm" href="?tab=overview" data-key="alarms">{number} {"alarm" if number == 1 else "alarms"}</a>'


def alarms(view: View) -> str:
    """Every open alarm: what was seen, what to do, what was done already."""
    items = []
    for alarm in view.snapshot.alarms:
        done = f" <b>{escape(alarm.action)}</b>" if alarm.action else ""
        items.append(
            f'<li class="{escape(alarm.severity)}"><b>{escape(alarm.message)}</b>{done}<br>{escape(alarm.advice)} '
            f'<span class="muted">{escape(alarm.kind.replace("_", " "))}, {ago(alarm.raised_at)}</span></li>'
        )
    return f'<ul class="alarms" aria-label="Alarms">{"".join(items)}</ul>' if items else ""


def past_alarms(view: View) -> str:
    """Every alarm that is over, with its numbers, under a heading that opens."""
    if not view.past_alarms:
        return ""
    items = []
    for alarm in view.past_alarms:
        numbers = ""
        if alarm.value is not None and alarm.threshold is not None:
            numbers = f" Value {words.number(alarm.value, 3)}, threshold {words.number(alarm.threshold, 3)}."
        done = f" <b>{escape(alarm.action)}</b>" if alarm.action else ""
        ended = f", cleared {clock(alarm.cleared_at)}" if alarm.cleared_at is not None else ""
        items.append(
            f'<li class="{escape(alarm.severity)}"><b>{escape(alarm.kind.replace("_", " "))}</b> {escape(alarm.message)}{numbers}{done}<br>'
            f'{escape(alarm.advice)} <span class="muted">{escape(alarm.severity)}, raised {clock(alarm.raised_at)}{ended}</span></li>'
        )
    return (
        f'<details data-key="past-alarms"><summary>Past alarms ({words.count(len(items))})</summary>'
        f'<ul class="alarms past">{"".join(items)}</ul></details>'
    )


def figure(view: View) -> str:
    """The headline number: mean of the newest scores, beside the oldest ones shown."""
    scores, total = view.snapshot.scores, view.snapshot.total_scores
    if not scores:
        return (
            f"<p>No scores yet. Ask something in the {link('playground', 'playground')} and press a thumb, or let simulated users do it:"
            "<br><code>online-sao simulate</code></p>"
        )
    values = [point.value for point in scores]
    recent = values[-RECENT:]
    parts = [
        f'<span class="big">{words.score(sum(recent) / len(recent), view.score_range)}</span>',
        f"<span>mean of the last {f'{len(recent)} scores' if len(recent) > 1 else 'score'}</span>",
    ]
    if len(values) >= 2 * RECENT:
        parts.append(f'<span class="muted">first {RECENT} shown: {words.score(sum(values[:RECENT]) / RECENT, view.score_range)}</span>')
    parts.append(f'<span class="muted">{words.count(total)} in all, the last {ago(scores[-1].at)}</span>')
    return f'<div class="figure">{"".join(parts)}</div>'


def figure_words(view: View) -> str:
    """What the score chart shows, for who cannot see it."""
    values = [point.value for point in view.snapshot.scores]
    if not values:
        return "Scores in order of arrival: none yet"
    recent, first = values[-RECENT:], values[:RECENT]
    return (
        f"The newest {len(values)} scores in order of arrival, with their moving average over {RECENT}: it begins at "
        f"{words.score(sum(first) / len(first), view.score_range)} and is now at {words.score(sum(recent) / len(recent), view.score_range)}"
    )


def stages(view: View) -> str:
    """Where answers are on their way into the policy, and where the others ended."""
    of = view.snapshot.pipeline
    cells = (
        ("Being written", view.snapshot.generating),
        ("Awaiting a score", of.get(TrajectoryState.PENDING, 0)),
        ("Queued", of.get(TrajectoryState.READY, 0)),
        ("In an update", of.get(TrajectoryState.CLAIMED, 0)),
        ("Trained", of.get(TrajectoryState.TRAINED, 0)),
        ("Not used", sum(of.get(state, 0) for state in UNUSED_STATES)),
    )
    items = "".join(f"<div><dt>{name}</dt><dd>{words.count(number)}</dd></div>" for name, number in cells)
    lists = _unused("Scores without effect, last day", view.without_effect, since="day") + _unused("Answers not used, scored or not", view.unused)
    return f'<dl class="stages">{items}</dl>{lists}'


def _unused(title: str, found: Sequence[Unused], since: str | None = None) -> str:
    """Each reason with how many it took, what to do, and the way to all of them."""
    items = []
    for unused in found:
        own = words.OWN_REASONS[unused.state] if unused.state is not None else "for reasons of their own"
        what, advice = (own, "Each says why.") if unused.kind is None else (unused.kind.words, unused.kind.advice)
        place = {"receipt": "not_trainable"} if unused.state is None else {"training": unused.state.value}
        if since is not None:
            place |= {"since": since, "effect": "none"}
        shown = link(f"{words.count(unused.count)} {what}", "interactions", **place, reason=unused.kind.code.value if unused.kind else None)
        items.append(f'<li>{shown}. <span class="muted">{escape(advice)}</span></li>')
    return f'<h3>{title}</h3><ul class="reasons" aria-label="{title}">{"".join(items)}</ul>' if items else ""


def coverage(view: View) -> str:
    """How many answers get a score, and how late."""
    share, delay = view.snapshot.coverage, view.snapshot.delay
    if share.fraction is None:
        return '<p class="muted">No answer in the last day.</p>'
    pairs = [("Answers scored, last day", f"{words.percent(share.fraction)} <span class=muted>of {words.count(share.completed)}</span>")]
    if delay is not None:
        pairs += [("Half of the scores come within", words.duration(delay.median)), ("Nine of ten within", words.duration(delay.ninth_decile))]
    return facts(pairs)


def learner(view: View, as_child: bool) -> str:
    """What the learner is doing, how fresh that is, what it waits for, and the switch to pause it."""
    state = view.snapshot.learner
    name, advice, dot = learner_words(view, as_child)
    beat = "never" if state.heartbeat_age is None else ago(view.snapshot.as_of - state.heartbeat_age)
    last = view.snapshot.last_update
    pairs = [("Last sign of life", beat), ("Updates made", words.count(last.number if last else 0)), ("It stands on", f"v{state.head_version}")]
    tone = ' class="alarm"' if dot == "bad" else ""
    note = advice if advice is not None else state.detail
    aside = f'<p class="aside">{escape(note)}</p>' if note else ""
    switch = button("Resume learning", "resume", kind="primary") if state.paused else button("Pause learning", "pause")
    return (
        f'<div class="state"><span class="dot {dot}"></span><span{tone}>{escape(name)}</span></div>{_progress(view)}'
        f'{aside}{facts(pairs)}<p class="controls">{switch}</p>'
    )


def learner_words(view: View, as_child: bool) -> tuple[str, str | None, str]:
    """(name, what to know or do; None: its own detail says it; class of the dot)."""
    state = view.snapshot.learner
    if state.phase == "alarm" and state.paused:
        return (
            words.PHASES["alarm"],
            f"{words.sentence(state.pause_reason or 'The learner and the engine disagree')} Serving goes on; nothing is learned.",
            "bad",
        )
    if state.presence == "off" and not as_child:
        return "Switched off", "Scores are kept. Start without --no-learner, or run online-sao learn, to learn from them.", "off"
    if state.presence != "alive":
        return _absent(view, as_child)
    if state.paused:
        return "Paused", f"{words.sentence(state.pause_reason or 'by an operator')} Serving and scoring go on.{_under_way(view)}", "off"
    if state.phase == "waiting":
        return f"Waiting: {_ready(view)} of {view.batch_size} scored answers", None, ""
    return words.PHASES.get(state.phase, state.phase), None, ""


def _absent(view: View, as_child: bool) -> tuple[str, str | None, str]:
    """The same, of a learner that gives no sign of life."""
    state = view.snapshot.learner
    paused = f" It is paused: {words.sentence(state.pause_reason)}" if state.paused and state.pause_reason else ""
    if state.presence == "starting":
        waits = "Its process is being started." if view.serving_version is not None else "It is started once the engine serves."
        if not as_child:
            waits = "It runs apart from this server (online-sao learn), and has given no sign of life yet."
        return "Starting", waits + paused, "off"
    if state.presence == "silent":
        why = "Its process is there; a busy machine may hold it up." if as_child else "It is not this server's process: its own log says more."
        return f"No sign of life for {words.duration(state.silence)}", why + paused, "bad"
    if state.presence == "stopped":
        return words.PHASES["stopped"], words.sentence(state.detail or "it cannot start; the server's log says why") + paused, "bad"
    return words.PHASES["stopped"], f"Its process has ended and is started again by itself; the server's log says why it ended.{paused}", "bad"


def _under_way(view: View) -> str:
    """What a paused learner still finishes."""
    state = view.snapshot.learner
    if state.phase not in ("pretraining", "updating", "publishing"):
        return ""
    return f" {words.PHASES[state.phase]} is still under way" + (f": {words.sentence(state.detail)}" if state.detail else ".")


def _ready(view: View) -> int:
    return view.snapshot.pipeline.get(TrajectoryState.READY, 0)


def _progress(view: View) -> str:
    """How full the next batch is."""
    ready = min(_ready(view), view.batch_size)
    say = f"{ready} of the {view.batch_size} scored answers of the next update"
    return f'<div class="progress" role="img" aria-label="{say}"><div style="width:{100 * ready / view.batch_size:.0f}%"></div></div>'


def shifts(view: View) -> str:
    """How long the policy took to follow when scores fell."""
    if view.shifts is None:
        return '<p class="muted">Shifts are being looked for in the scores. The first look after a start takes some seconds.</p>'
    clear = [shift for shift in view.shifts if shift.clear]
    lesser = len(view.shifts) - len(clear)
    note = (
        f" {lesser} lesser {'fall' if lesser == 1 else 'falls'} within what chance does {'is' if lesser == 1 else 'are'} left out." if lesser else ""
    )
    if not clear:
        return (
            '<p class="muted">No shift so far. When scores fall because people want something else, the fall is listed here with the time the policy '
            f"took to be back at 80 % of its level.{note}</p>"
        )
    columns = [Column("Began"), Column("Level before", True), Column("Lowest", True), Column("Recovered after")]
    rows = [
        (
            [
                f"{ago(shift.began_at)}<br><span class=muted>score {words.count(shift.began_at_score)}</span>",
                words.score(shift.level, view.score_range),
                words.score(shift.lowest, view.score_range),
                _recovery(shift),
            ],
            False,
        )
        for shift in clear
    ]
    return table("Shifts, newest first", columns, rows) + (f'<p class="aside">{note.strip()}</p>' if note else "")


def _recovery(shift: ShiftStatus) -> str:
    if shift.overtaken:
        return '<span class="muted">not before the next shift</span>'
    if shift.scores_to_recovery is None or shift.seconds_to_recovery is None:
        return "not yet"
    if shift.scores_to_recovery == 0:
        return '<span class="muted">never below 80 %</span>'
    asked = f"{words.count(shift.interactions_to_recovery)} answers, " if shift.interactions_to_recovery is not None else ""
    return f"{words.count(shift.scores_to_recovery)} scores<br><span class=muted>{asked}{words.duration(shift.seconds_to_recovery)}</span>"
