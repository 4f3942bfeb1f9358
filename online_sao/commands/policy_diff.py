"""How two versions look side by side in a terminal of 80 columns. Owns that layout; knows nothing of where the answer comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from online_sao.commands.common import console
from online_sao.commands.words import number, plain, score

_METRICS = {
    "KL base": "policy/kl_base",
    "entropy": "policy/entropy",
    "masked": "policy/masked_fraction",
    "reward": "data/reward_mean",
    "length": "data/response_length_mean",
}
"""Full names beside each other fit no terminal: the line below the table says them."""
_MEASURES = {"perplexity": "perplexity", "distinct-2": "distinct_2", "answer length, tokens": "response_tokens"}


def print_diff(found: dict[str, Any], score_range: Sequence[float]) -> None:
    """``found``: what GET /admin/policies/diff answers."""
    first, second = found["from"]["version"], found["to"]["version"]
    console.print(_relation(first, second, found["lineage"]), soft_wrap=True)
    console.print(_measures(found, score_range))
    for version, problem in found["evaluation_problems"].items():
        console.print(f"Version {version} has no evaluation (perplexity, distinct-2, samples): {plain(problem)}.", soft_wrap=True)
    weights = found["weights"]
    if weights is None:
        console.print(f"Weights: {plain(found['weights_problem'])}.", soft_wrap=True)
    elif first != second:
        console.print(f"‖weights of {second} − weights of {first}‖ = {number(weights['difference'])}")
    common = found["lineage"]["common_ancestor"]
    for side, version in (("from", first), ("to", second)):
        updates = [update for update in found["updates"] if update["side"] == side]
        if updates:
            console.print(_updates(updates, f"Updates from version {common} to version {version}"))
    if found["updates"]:
        console.print("; ".join(f"{short} = {name}" for short, name in _METRICS.items()), style="dim")
    if first != second:
        for sample in found["samples"]:
            said = f"  {first}: {plain(sample['from'])}\n  {second}: {plain(sample['to'])}"
            console.print(f"\n[bold]{plain(sample['prompt'])}[/bold]\n{said}", soft_wrap=True)


def _relation(first: int, second: int, lineage: dict[str, Any]) -> str:
    if lineage["relation"] == "same":
        return f"Version {first} beside itself: name two versions to see what is between them."
    if lineage["relation"] == "diverged":
        return (
            f"Versions {first} and {second} are of different lineages: from their common ancestor, version {lineage['common_ancestor']}, "
            f"{_count(lineage['updates_from'])} led to {first} and {lineage['updates_to']} to {second}."
        )
    article = "an ancestor" if lineage["relation"] == "ancestor" else "a descendant"
    return f"Version {first} is {article} of version {second}, {_count(lineage['updates_from'] + lineage['updates_to'])} apart."


def _count(updates: int) -> str:
    return f"{updates} update{'' if updates == 1 else 's'}"


def _measures(found: dict[str, Any], score_range: Sequence[float]) -> Table:
    versions = [found["from"], found["to"]]
    table = Table("", *(f"version {version['version']}" for version in versions), box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_row("mean score (95 %)", *(score(version, score_range) for version in versions))
    table.add_row("scores", *(f"{version['scores']}" for version in versions))
    evaluations = [found["evaluations"].get(str(version["version"])) for version in versions]
    if any(evaluations):
        for name, key in _MEASURES.items():
            table.add_row(name, *(number(evaluation[key] if evaluation else None) for evaluation in evaluations))
    if found["weights"] is not None:
        table.add_row("‖weights − base‖", number(found["weights"]["from_base"]), number(found["weights"]["to_base"]))
    return table


def _updates(updates: list[dict[str, Any]], title: str) -> Table:
    table = Table("update", "version", *_METRICS, title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for update in updates:
        table.add_row(f"{update['number']}", f"{update['policy_version']}", *(number(update["metrics"].get(name), 3) for name in _METRICS.values()))
    return table
