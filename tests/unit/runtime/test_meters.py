"""The exposition text, with everything an update really reports in it."""

from tiny_learner import make_bench

from online_sao.experience.batching import pack
from online_sao.runtime.meters import Meters
from online_sao.types import TrajectoryState


def test_every_metric_of_an_update_has_a_name_of_its_own():
    bench, meters = make_bench(), Meters()
    report = bench.learner.update(pack([bench.sample(1), bench.sample(2)], 512)).metrics
    for _ in range(2):
        text = meters.render(load=None, policy_version=3, trajectories={TrajectoryState.READY: 2}, last_update=report).decode()
    assert 'online_sao_data_trajectories_by_state{state="ready"} 2.0' in text
    assert "online_sao_policy_masked_fraction 0.0" in text
    assert len(report) > 20
    for name in report:
        assert f"online_sao_{name.replace('/', '_')} " in text
