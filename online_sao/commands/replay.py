"""``online-sao replay``: learning again from an export, with another recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from online_sao.commands.common import ConfigOption, console, load_settings
from online_sao.errors import ConfigurationError

if TYPE_CHECKING:
    from online_sao.runtime.replay import Update

_SHOWN = {
    "reward": "data/reward_mean",
    "masked": "policy/masked_fraction",
    "ESS": "policy/ess_fraction",
    "KL base": "policy/kl_base",
    "entropy": "policy/entropy",
    "explained": "value/explained_variance",
}
_ROWS = 12


def replay(
    file: Annotated[Path, typer.Argument(help="What `online-sao export` wrote.")],
    out: Annotated[Path, typer.Option(help="Folder for metrics, TensorBoard files and the adapter; must hold no replay yet.")],
    recipe: Annotated[str, typer.Option(help="Name of the recipe.")] = "sao",
    preset: Annotated[str, typer.Option(help="Numbers of the recipe: live or paper.")] = "live",
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another number of the recipe; repeat for more.")] = None,
    model: Annotated[str | None, typer.Option(help="The model the export's tokens belong to. [default: policy.model]")] = None,
    config: ConfigOption = None,
) -> None:
    """Learn offline from an export: same scores, same order, another recipe. Off-policy: it samples nothing new."""
    settings = load_settings(config, policy={"model": model})
    import os

    import torch
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from online_sao.algorithm.recipes import recipe as make_recipe
    from online_sao.runtime import replay as work

    try:
        chosen = make_recipe(recipe, preset, **dict(_change(text) for text in changes or ()))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"The recipe cannot be made: {error}.") from error
    source = work.read(file)
    torch.set_num_threads(settings.learning.threads or os.cpu_count() or 1)
    total = -(-len(source.trajectories) // chosen.batch_size)
    left_out = ", ".join(f"{count} {reason}" for reason, count in source.left_out.items())
    console.print(f"{len(source.trajectories)} scored trajectories, {total} updates{f'; left out: {left_out}' if left_out else ''}", soft_wrap=True)
    columns = (TextColumn("update"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=total)

        def tell(update: Update) -> None:
            progress.update(task, advance=1, description=f"reward {update.metrics.get('data/reward_mean', 0.0):+.2f}")

        updates = work.replay(settings, chosen, source, out, tell)
    _print(updates)
    console.print(f"Metrics: {out / work.METRICS_FILE}; curves: tensorboard --logdir {out / 'tensorboard'}", soft_wrap=True)
    console.print(f"Policy:  {out / work.ADAPTER_FOLDER}, a PEFT adapter for {settings.policy.model}", soft_wrap=True)
    console.print(
        "Off-policy: rewards are those the logged answers got, not what this policy's would get; ratios are against the logged logprobs.", style="dim"
    )


def _change(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigurationError(f"--set {text!r}: write it as key=value, such as policy_learning_rate=1e-4.")
    try:
        number = float(value)
    except ValueError as error:
        raise ConfigurationError(f"--set {text!r}: {value!r} is no number.") from error
    return key, int(number) if number.is_integer() and not any(mark in value for mark in ".eE") else number


def _print(updates: list[Update]) -> None:
    from rich.table import Table

    table = Table("update", "n", *_SHOWN, "", pad_edge=False)
    shown = updates if len(updates) <= _ROWS else [*updates[: _ROWS // 2], *updates[-_ROWS // 2 :]]
    for update in shown:
        numbers = [f"{update.metrics[name]:.3f}" if name in update.metrics else "" for name in _SHOWN.values()]
        table.add_row(str(update.number), str(update.trajectories), *numbers, f"[yellow]refused: {update.refused}[/]" if update.refused else "")
    console.print(table)
