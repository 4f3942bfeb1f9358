"""What a data folder's versions and checkpoints were made from: base model and LoRA shape. Owns ``base.json`` there and the refusal of another base.

Serving another model over learned versions would set every one of them aside as damaged; this stops it before anything is touched.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from online_sao.durable import sync
from online_sao.errors import ConfigurationError

FILE = "base.json"


@dataclass(frozen=True, slots=True)
class BaseIdentity:
    """``model`` is the setting, as an operator knows it; ``base_digest`` is what counts (models.catalog.base_digest)."""

    model: str
    base_digest: str
    lora_rank: int
    lora_alpha: int


def require_same_base(data_dir: Path, now: BaseIdentity) -> None:
    """Note what this data folder is made from, or raise ConfigurationError if what was learned in it belongs to something else."""
    file = data_dir / FILE
    before = BaseIdentity(**json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None
    if before is not None and _learned(data_dir):
        advice = "or give the new one a storage.data_dir of its own (what was learned is not carried over)."
        if before.base_digest != now.base_digest:
            raise ConfigurationError(
                f"What was learned in {data_dir} belongs to the model {before.model!r} ({before.base_digest[:12]}…), and policy.model is now "
                f"{now.model!r} ({now.base_digest[:12]}…). Set policy.model back to {before.model!r}, {advice}"
            )
        if (before.lora_rank, before.lora_alpha) != (now.lora_rank, now.lora_alpha):
            raise ConfigurationError(
                f"What was learned in {data_dir} has LoRA rank {before.lora_rank} and alpha {before.lora_alpha}; the settings now say rank "
                f"{now.lora_rank} and alpha {now.lora_alpha}. Set policy.lora_rank and policy.lora_alpha back, {advice}"
            )
    if before != now:
        temporary = data_dir / f"{FILE}.tmp"
        temporary.write_text(json.dumps(asdict(now), indent=1), encoding="utf-8")
        sync(temporary)
        temporary.replace(file)


def _learned(data_dir: Path) -> bool:
    return any(data_dir.glob("policy_store/v*/manifest.json")) or any(data_dir.glob("checkpoints/update-*/manifest.json"))
