"""Another base model or LoRA shape over what was learned is refused, by name; over an empty folder it is taken."""

from dataclasses import replace

import pytest

from online_sao.errors import ConfigurationError
from online_sao.publishing.base_identity import BaseIdentity, require_same_base

OLD = BaseIdentity("old/model", "a" * 64, 16, 32)


@pytest.fixture
def learned(tmp_path):
    require_same_base(tmp_path, OLD)
    folder = tmp_path / "policy_store" / "v000001"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    return tmp_path


def test_the_same_base_again_also_from_another_place(learned):
    require_same_base(learned, OLD)
    require_same_base(learned, replace(OLD, model="/copied/here"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"base_digest": "b" * 64, "model": "new/model"}, r"'old/model'.*'new/model'.*back to 'old/model'.*data_dir"),
        ({"lora_rank": 8}, r"rank 16 and alpha 32.*rank 8.*data_dir"),
        ({"lora_alpha": 8}, r"alpha 32.*alpha 8"),
    ],
)
def test_another_is_refused_and_nothing_is_written(learned, change, told):
    before = (learned / "base.json").read_text()
    with pytest.raises(ConfigurationError, match=told):
        require_same_base(learned, replace(OLD, **change))
    assert (learned / "base.json").read_text() == before


def test_before_anything_is_learned_the_base_may_change(tmp_path):
    require_same_base(tmp_path, OLD)
    require_same_base(tmp_path, replace(OLD, base_digest="b" * 64, lora_rank=4))
