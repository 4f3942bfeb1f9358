"""What the settings of ranks and placement may say, before anything is started."""

import sys

import pytest

from online_sao.config import LearningSettings, Settings
from online_sao.errors import ConfigurationError
from online_sao.runtime.cluster.session import Session
from online_sao.runtime.serving import _learner_keeper
from online_sao.runtime.supervisor import Supervisor


def test_a_model_is_not_divided_among_one() -> None:
    with pytest.raises(ValueError, match=r"set learning\.ranks above 1"):
        LearningSettings(sharding="fsdp")
    assert LearningSettings(sharding="fsdp", ranks=2).sharding == "fsdp"


def test_without_ray_the_learner_is_a_child_process_and_asking_for_ray_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "online_sao.runtime.cluster.placement", raising=False)
    make = _learner_keeper(Settings(), None)
    assert make is not None
    assert isinstance(make(), Supervisor)
    placed = Settings(cluster={"place_learner": True})
    with pytest.raises(ConfigurationError, match=r"pip install 'online-sao\[ray\]'"):
        _learner_keeper(placed, Session(placed.cluster))
    assert _learner_keeper(Settings(learning={"enabled": False}, cluster={"place_learner": True}), None) is None
