"""The exposition text, with everything an update really reports in it."""

from tiny_learner import make_bench

from online_sao.experience.batching import pack
from online_sao.runtime.meters import Meters
from online_sao.service.chat_log import SpoolState
from online_sao.service.evaluations import EvaluationStatus
from online_sao.types import TrajectoryState


def test_every_metric_of_an_update_has_a_name_of_its_own():
    bench, meters = make_bench(), Meters()
    evaluation = EvaluationStatus(3, 21.5, 200, None, 30.0, (), 1.0)
    report = bench.learner.update(pack([bench.sample(1), bench.sample(2)], 512)).metrics
    for _ in range(2):
        text = meters.render(
            load=None,
            policy_version=3,
            trajectories={TrajectoryState.READY: 2},
            last_update=report,
            alarms={"kl_base": True, "perplexity": False},
            evaluation=evaluation,
            spool=SpoolState(3, 1200, 5000, has_room=True),
            database_up=False,
            leading=True,
        ).decode()
    assert 'online_sao_data_trajectories_by_state{state="ready"} 2.0' in text
    assert "online_sao_policy_masked_fraction 0.0" in text
    assert 'online_sao_alarm{kind="kl_base"} 1.0' in text
    assert 'online_sao_alarm{kind="perplexity"} 0.0' in text
    assert 'online_sao_evaluation{measure="perplexity"} 21.5' in text
    assert 'online_sao_evaluation{measure="distinct_2"} NaN' in text
    for gauge in ("spool_records 3.0", "spool_bytes 1200.0", "spool_limit_bytes 5000.0", "database_up 0.0", "leading 1.0"):
        assert f"online_sao_serve_{gauge}" in text
    assert len(report) > 20
    for name in report:
        assert f"online_sao_{name.replace('/', '_')} " in text
