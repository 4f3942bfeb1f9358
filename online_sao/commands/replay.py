"""``online-sao replay``: learning again from an export, with another recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from online_sao.commands.common import ConfigOption, console, load_settings
from online_sao.errors import ConfigurationError
from online_sao.wording import did_you_mean

if TYPE_CHECKING:
    from online_sao.algorithm.recipes import Recipe
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
_SET = "Another number of the recipe; repeat for more. An unknown KEY lists them all."


def replay(
    file: Annotated[Path, typer.Argument(help="What `online-sao export` wrote.")],
    out: Annotated[Path, typer.Option(help="Folder for metrics, TensorBoard files and the adapter; must hold no replay yet.")],
    recipe: Annotated[str, typer.Option(help="Name of the recipe.")] = "sao",
    preset: Annotated[str, typer.Option(help="Numbers of the recipe: live or paper.")] = "live",
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=_SET)] = None,
    model: Annotated[str | None, typer.Option(help="The model the export's tokens belong to. [default: policy.model]")] = None,
    config: ConfigOption = None,
) -> None:
    """Learn offline from an export: same scores, same order, another recipe. Off-policy: it samples nothing new."""
    settings = load_settings(config, policy={"model": model})
    from online_sao.runtime import replay_input

    # What is quick to check comes first: importing torch alone takes seconds, and the model more.
    numbers = dict(_change(text) for text in changes or ())
    replay_input.check_out(out)
    source = replay_input.read(file)
    chosen = _recipe(recipe, preset, numbers)
    import os

    import torch
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from online_sao.runtime import replay as work

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
    console.print(f"Metrics: {out / replay_input.METRICS_FILE}; curves: tensorboard --logdir {out / 'tensorboard'}", soft_wrap=True)
    console.print(f"Policy:  {out / work.ADAPTER_FOLDER}, a PEFT adapter for {settings.policy.model}", soft_wrap=True)
    console.print(
        "Off-policy: rewards are those the logged answers got, not what this policy's would get; ratios are against the logged logprobs.", style="dim"
    )


def _recipe(name: str, preset: str, numbers: dict[str, Any]) -> Recipe:
    from online_sao.algorithm.recipes import number_names, recipe

    known = number_names()
    for key, value in numbers.items():
        if key not in known:
            raise ConfigurationError(f"--set {key}: a recipe has no such number.{did_you_mean(key, known)} It has {', '.join(known)}.")
        if known[key] and not isinstance(value, int):
            raise ConfigurationError(f"--set {key}={value:g}: {key} is a whole number.")
    try:
        return recipe(name, preset, **numbers)
    except ValueError as error:
        raise ConfigurationError(f"The recipe cannot be made: {error}.") from error


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

    table = Table("update", "n", *_SHOWN, "gate", pad_edge=False)
    shown = updates if len(updates) <= _ROWS else [*updates[: _ROWS // 2], *updates[-_ROWS // 2 :]]
    for update in shown:
        numbers = [f"{update.metrics[name]:.3f}" if name in update.metrics else "" for name in _SHOWN.values()]
        table.add_row(str(update.number), str(update.trajectories), *numbers, f"[yellow]refused: {update.refused}[/]" if update.refused else "passed")
    console.print(table)
