"""The Versions tab: a View in, HTML out. Pure; all text from data is escaped. Knows nothing of NiceGUI or services."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from api.dashboard import words
from api.dashboard.markup import Column, ago, button, link, table
from api.dashboard.view import View
from online_sao.service.evaluations import EvaluationStatus
from online_sao.service.status import UpdateStatus, VersionStatus
from online_sao.types import VersionState

_COLUMNS = (
    Column("Version"),
    Column("State"),
    Column("Made from"),
    Column("Mean score, 95 %", True),
    Column("Scores", True),
    Column("KL to base", True),
    Column("Perplexity", True),
    Column("Distinct-2", True),
    Column("Made", True),
    Column(""),
)
VERSIONS_A_PAGE = 10
"""Few enough that what stands below the list is in reach on a phone."""
EVALUATIONS_SHOWN = 200
"""The newest that are read for the page."""
EVALUATED_NAMED = 20
"""Versions that a notice lists at most."""


def versions(
    view: View,
    updates: Sequence[UpdateStatus],
    evaluations: Sequence[EvaluationStatus],
    before: int | None = None,
    query: Mapping[str, str] | None = None,
) -> str:
    """A page of versions, newest first, and the one that serves in any case: where each stands, what its own answers were worth, how far it is from
    the base, and the way back to it. ``before``: only versions older than that. ``query``: the place, whose other parts stay."""
    lineage = view.lineage()
    distance = {update.policy_version: update.metrics.get("policy/kl_base") for update in updates if update.policy_version is not None}
    evaluated = {evaluation.policy_version: evaluation for evaluation in evaluations}
    listed = [version for version in view.snapshot.versions if before is None or version.version < before]
    shown = listed[:VERSIONS_A_PAGE]
    serving = [v for v in view.snapshot.versions if v.state is VersionState.ACTIVE and v not in shown]
    rows = []
    for version in (*serving, *shown):
        found = evaluated.get(version.version)
        cells = [
            f"<b>v{version.version}</b>",
            _state(version, lineage),
            _origin(version),
            _mean(version, view.score_range),
            link(words.count(version.scores), "interactions", version=version.version) if version.scores else "0",
            words.number(distance.get(version.version), 3),
            words.number(found.perplexity if found else None, 1),
            words.number(found.distinct_2 if found else None),
            ago(version.created_at),
            button("Roll back", "rollback", version.version, label=f"Roll back to version {version.version}") if view.can_return_to(version) else "",
        ]
        rows.append((cells, version.state is VersionState.ACTIVE))
    place = {name: value for name, value in (query or {}).items() if name in ("left", "right")}
    newest = link("Newest", "versions", **place) if before is not None else ""
    older = link("Older versions", "versions", **place, before=shown[-1].version) if len(listed) > len(shown) else ""
    if not older and (not shown or shown[-1].version > 0):
        newest += '<span class="muted">Still older ones are listed by GET /admin/policies.</span>'
    return table("Versions, newest first", _COLUMNS, rows, stack=True) + (f'<p class="pager">{newest}{older}</p>' if newest or older else "")


def _origin(version: VersionStatus) -> str:
    """Parent, and the way to what was learned on top of it."""
    if version.parent is None:
        return words.MISSING
    return f"v{version.parent} and {link('what it learned', 'interactions', into=version.version)}"


def _state(version: VersionStatus, lineage: set[int]) -> str:
    name = "serving" if version.state is VersionState.ACTIVE else escape(version.state)
    notes = []
    if version.version not in lineage and version.state is not VersionState.FAILED:
        notes.append("left in a rollback" if version.state is VersionState.RETIRED else "not on the learner's line")
    if version.files_removed_at is not None:
        notes.append("files removed")
    if version.reason:
        notes.append(escape(version.reason))
    return name + "".join(f'<br><span class="muted">{note}</span>' for note in notes)


def _mean(version: VersionStatus, score_range: tuple[float, float]) -> str:
    if version.score_interval is None:
        return words.score(version.mean_score, score_range)
    low, high = max(score_range[0], version.score_interval[0]), min(score_range[1], version.score_interval[1])
    mean, lowest, highest = (words.score(value, score_range) for value in (version.mean_score, low, high))
    return f'<b>{mean}</b> <span class="muted nowrap">{lowest} – {highest}</span>'


def rollbacks(view: View) -> str:
    """Every rollback: from where to where, why, and whether the engine has followed."""
    if not view.rollbacks:
        return '<p class="muted">None yet. A rollback puts an earlier version back in service in a second or two, and no request is dropped.</p>'
    states = {"pending": "being loaded", "done": "loaded", "failed": "could not be loaded"}
    rows = []
    for rollback in view.rollbacks:
        state = states[rollback.state] + (f" {ago(rollback.served_at)}" if rollback.state == "done" and rollback.served_at is not None else "")
        problem = f'<br><span class="alarm">{escape(rollback.problem)}</span>' if rollback.problem else ""
        expired = f"{words.count(rollback.expired_trajectories)} waiting answers expired; " if rollback.expired_trajectories else ""
        cells = [
            f"v{rollback.from_version} → v{rollback.to_version}",
            escape(rollback.reason or words.MISSING),
            state + problem,
            expired + ("learning went on" if rollback.resume else "learning was paused"),
            ago(rollback.requested_at),
        ]
        rows.append((cells, False))
    columns = (Column("Rollback"), Column("Reason"), Column("State"), Column("And"), Column("Asked for"))
    return table("Rollbacks, newest first", columns, rows, stack=True)


@dataclass(frozen=True, slots=True)
class Pair:
    """The evaluations that are compared; None where there is none. ``ignored``: which wishes of the address could not be met, and why."""

    left: EvaluationStatus | None
    right: EvaluationStatus | None
    ignored: tuple[str, ...] = ()


def picked(evaluations: Sequence[EvaluationStatus], query: Mapping[str, str]) -> Pair:
    """The versions that ``query`` names as left and right; else the base, or the oldest that has been evaluated, and the newest. ``evaluations``:
    newest version first."""
    by_version = {str(found.policy_version): found for found in evaluations}
    newest = " (the newest)" if len(by_version) > EVALUATED_NAMED else ""
    ignored = []
    for side in ("left", "right"):
        wanted = query.get(side)
        if wanted is not None and str(int(wanted)) not in by_version:
            known = ", ".join(reversed(list(by_version)[:EVALUATED_NAMED])) or "none yet"
            ignored.append(f"{side}={wanted} in the address was ignored: version {wanted} has not been evaluated. Evaluated are{newest}: {known}.")
    named = {side: by_version.get(str(int(query[side]))) for side in ("left", "right") if side in query}
    right = named.get("right") or (evaluations[0] if evaluations else None)
    others = [found for found in evaluations if found is not right]
    left = named.get("left") or (others[-1] if others else None)
    return Pair(left, right, tuple(ignored))


def choice(evaluations: Sequence[EvaluationStatus], pair: Pair) -> str:
    """Which two versions are compared. The page's script makes a choice a place on the page."""
    if pair.left is None or pair.right is None:
        return ""
    chosen = _select("left", "Before", evaluations, pair.left) + _select("right", "After", evaluations, pair.right)
    missing = '<p class="muted">A version that is not offered here has not been evaluated: roll back to it for a minute or two, and it is.</p>'
    return chosen + (_reference(evaluations) or missing)


def _reference(evaluations: Sequence[EvaluationStatus]) -> str:
    """Says so where the base is not there to compare with. ``evaluations``: all there are, newest version first."""
    oldest = evaluations[-1].policy_version
    if oldest == 0 or len(evaluations) >= EVALUATIONS_SHOWN:
        return ""
    return (
        '<p class="muted">The base model has not been evaluated: it did not serve while evaluations were on. '
        f"Alarms compare with v{oldest}, the oldest evaluated. To have it evaluated, roll back to version 0 until it appears here, "
        "then forward again.</p>"
    )


def _select(name: str, label: str, evaluations: Sequence[EvaluationStatus], chosen: EvaluationStatus) -> str:
    versions = [found.policy_version for found in evaluations]
    options = "".join(f'<option value="{v}"{" selected" if v == chosen.policy_version else ""}>v{v}</option>' for v in versions)
    return f'<label><span>{label}</span><select data-param="{name}" data-key="compare-{name}">{options}</select></label>'


def comparison(pair: Pair) -> str:
    """What two versions say to the same fixed prompts, side by side, under how able each still is."""
    left, right = pair.left, pair.right
    if right is None:
        return (
            '<p class="muted">Nothing to compare yet. Shortly after it starts serving, each version answers a few fixed prompts; its answers, and '
            "how well it predicts a fixed text, are kept here.</p>"
        )
    if left is None:
        said = "".join(_answers(sample.prompt, [{sample.prompt: sample.text}], [right.policy_version]) for sample in right.samples)
        return (
            f'<p class="muted">Only version {right.policy_version} has been evaluated so far; a second one is compared with it here.</p>'
            f'<div class="compare">{_side(right)}{said}</div>'
        )
    answers = [{sample.prompt: sample.text for sample in side.samples} for side in (left, right)]
    prompts = list(dict.fromkeys(sample.prompt for side in (left, right) for sample in side.samples))
    head = "".join(map(_side, (left, right)))
    body = "".join(_answers(prompt, answers, (left.policy_version, right.policy_version)) for prompt in prompts)
    return f'<div class="compare">{head}{body}</div>'


def _side(side: EvaluationStatus) -> str:
    return f'<div class="able"><b>v{side.policy_version}</b>{_able(side)}</div>'


def _able(side: EvaluationStatus) -> str:
    parts = [
        f"perplexity {words.number(side.perplexity, 1)}",
        f"distinct-2 {words.number(side.distinct_2)}",
        f"{words.number(side.response_tokens, 0)} tokens an answer",
    ]
    return f' <span class="muted">{", ".join(parts)}</span>'


def _answers(prompt: str, answers: Sequence[Mapping[str, str]], versions: Sequence[int]) -> str:
    cells = "".join(
        f'<div class="said"><span class="hidden">Version {version}: </span>{escape((side.get(prompt) or "").strip() or "–")}</div>'
        for side, version in zip(answers, versions, strict=True)
    )
    return f'<p class="asked">{escape(prompt)}</p>{cells}'
