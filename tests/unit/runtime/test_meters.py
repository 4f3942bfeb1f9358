"""The exposition text, with everything an update really reports in it."""

import time

from prometheus_client.parser import text_string_to_metric_families
from tiny_learner import make_bench

from online_sao.experience.batching import pack
from online_sao.inference.engine import EngineLoad
from online_sao.runtime.meters import Meters
from online_sao.runtime.status_metrics import Reading
from online_sao.service.chat_log import SpoolState
from online_sao.service.evaluations import EvaluationStatus
from online_sao.service.status import Coverage, LearnerStatus, StatusSnapshot, Totals, UpdateStatus
from online_sao.types import ReceiptStatus, TrajectoryState

SPOOL = SpoolState(3, 1200, 5000, has_room=True)


def reading(metrics: dict[str, float | None], **learner: object) -> Reading:
    status = {"presence": "alive", "silence": 2.5, "paused": False, **learner}
    snapshot = StatusSnapshot(
        as_of=time.time(),
        generating=0,
        pipeline={TrajectoryState.READY: 2},
        oldest_ready_at=time.time() - 30,
        active_version=3,
        learner=LearnerStatus("waiting", None, pause_reason=None, heartbeat_age=1, pid=1, lineage_epoch=0, head_version=3, head_update=3, **status),
        last_update=UpdateStatus(3, True, None, 0, 3, 2, metrics, {}, 1.0, 1234.0),
        versions=(),
        swaps=(),
        scores=(),
        total_scores=0,
        coverage=Coverage(1.0, 0, 0),
        alarms=(),
    )
    alarms = {"kl_base": True, "perplexity": False}
    return Reading(snapshot, Totals(3, 1, {ReceiptStatus.LIVE: 5}), alarms, EvaluationStatus(3, 21.5, 200, None, 30.0, (), 1.0))


def test_every_metric_of_an_update_has_a_name_of_its_own():
    bench, meters = make_bench(), Meters()
    report = bench.learner.update(pack([bench.sample(1), bench.sample(2)], 512)).metrics
    for _ in range(2):
        text = meters.render(load=EngineLoad(1, 2, 0.25), policy_version=3, reading=reading(report), spool=SPOOL, leading=True).decode()
    for line in (
        'online_sao_data_trajectories_by_state{state="ready"} 2.0',
        "online_sao_policy_masked_fraction 0.0",
        'online_sao_alarm{kind="kl_base"} 1.0',
        'online_sao_alarm{kind="perplexity"} 0.0',
        'online_sao_evaluation{measure="perplexity"} 21.5',
        'online_sao_evaluation{measure="distinct_2"} NaN',
        'online_sao_receipts{status="live"} 5.0',
        'online_sao_updates_total{result="refused"} 1.0',
        "online_sao_learner_up 1.0",
        "online_sao_learner_silence_seconds 2.5",
        "online_sao_update_timestamp_seconds 1234.0",
        "online_sao_num_requests_waiting 2.0",
        "online_sao_kv_cache_usage_perc 0.25",
        "online_sao_database_up 1.0",
        "online_sao_serve_spool_records 3.0",
        "online_sao_serve_spool_bytes 1200.0",
        "online_sao_serve_spool_limit_bytes 5000.0",
        "online_sao_serve_leading 1.0",
    ):
        assert line in text.splitlines(), line
    assert len(report) > 20
    for name in report:
        assert f"online_sao_{name.replace('/', '_')} " in text
    names = [family.name for family in text_string_to_metric_families(text)]
    assert len(names) == len(set(names))


def test_a_silent_learner_is_not_up_and_what_is_no_longer_known_is_not_shown():
    meters = Meters()
    text = meters.render(
        load=None,
        policy_version=None,
        reading=reading({"policy/entropy": 1.0, "value/loss": None}, presence="silent", paused=True),
        spool=SPOOL,
        leading=False,
    )
    assert b"online_sao_learner_up 0.0" in text
    assert b"online_sao_learner_paused 1.0" in text
    assert b"online_sao_policy_entropy 1.0" in text
    assert b"online_sao_value_loss" not in text
    assert b"online_sao_serve_policy_version NaN" in text
    text = meters.render(load=None, policy_version=None, reading=None, spool=SPOOL, leading=False)
    assert b"online_sao_database_up 0.0" in text
    assert b"online_sao_policy_entropy" not in text
    assert b"online_sao_learner_up" not in text
