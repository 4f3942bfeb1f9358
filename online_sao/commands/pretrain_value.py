"""``online-sao pretrain-value``: teach the value model what logged scores say, before it advises the policy."""

from __future__ import annotations

import asyncio
import os

from online_sao.commands.common import ConfigOption, DataDirOption, console, load_settings


def pretrain_value(data_dir: DataDirOption = None, config: ConfigOption = None) -> None:
    """Train the value model on logged scored interactions; no learner may be running. A learner that starts fresh does this by itself."""
    settings = load_settings(config, storage={"data_dir": data_dir})
    import torch
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from online_sao.runtime.pretrain_value import pretrain_value as work

    torch.set_num_threads(settings.learning.threads or os.cpu_count() or 1)
    columns = (TextColumn("value updates"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=None)
        report = asyncio.run(work(settings, lambda done, of: progress.update(task, completed=done, total=of)))
        progress.update(task, visible=False)
    console.print(f"{report.trained} scored interactions trained on, {report.held_out} held out to judge by", soft_wrap=True)
    console.print(f"explained variance of those  {report.explained_variance_before:.3f} → {report.explained_variance_after:.3f}")
    if report.epochs:
        console.print(f"kept, after {report.epochs} epochs; the next learner starts with it")
    else:
        console.print("nothing kept: no epoch explained more than the value model already did")
