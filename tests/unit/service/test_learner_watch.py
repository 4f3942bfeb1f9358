"""Whether the learner is there: what may be said of it at each moment of its life, and of its server's."""

from __future__ import annotations

from online_sao.service.learner_watch import LearnerProcess, LearnerWatch
from online_sao.storage.tables import LearnerRow

LIMIT = 60.0


class Life:
    """A watch whose clocks and process are the test's."""

    def __init__(self, process: LearnerProcess | None, heartbeat: float | None = None, phase: str = "waiting") -> None:
        self.wall, self.ticks, self.process = 10_000.0, 500.0, process
        self.row = LearnerRow(phase=phase, heartbeat_at=heartbeat)
        self.watch = LearnerWatch(lambda: self.process, LIMIT, lambda: self.wall, lambda: self.ticks)

    def after(self, seconds: float) -> str:
        self.wall += seconds
        self.ticks += seconds
        return self.watch.look(self.row).presence

    def beat(self, phase: str = "waiting") -> None:
        self.row = LearnerRow(phase=phase, heartbeat_at=self.wall)

    def start(self) -> None:
        self.process = LearnerProcess(self.ticks, running=True, gave_up=False)

    def die(self) -> None:
        assert self.process is not None
        self.process = LearnerProcess(self.process.started_at, running=False, gave_up=False)


def test_from_the_start_of_the_server_to_the_first_sign_of_life() -> None:
    life = Life(LearnerProcess(None, running=False, gave_up=False), heartbeat=10_000.0 - 5789)
    assert life.after(0) == "starting"
    assert life.after(200) == "starting"  # the engine is still loading
    life.start()
    assert life.after(59) == "starting"
    assert life.watch.look(life.row).silence == 59.0
    life.beat("starting")
    assert life.after(1) == "alive"


def test_a_start_that_takes_too_long_is_silence() -> None:
    life = Life(LearnerProcess(None, running=False, gave_up=False))
    life.after(10)
    life.start()
    assert life.after(61) == "silent"


def test_silence_of_a_process_that_runs_is_not_its_end() -> None:
    life = Life(LearnerProcess(400.0, running=True, gave_up=False))
    life.after(1)
    life.beat()
    assert life.after(1) == "alive"
    assert life.after(20) == "silent"
    assert life.watch.look(life.row).silence == 20.0
    life.die()
    assert life.after(0) == "ended"
    life.start()
    assert life.after(1) == "starting"
    life.beat()
    assert life.after(1) == "alive"


def test_one_that_cannot_work_is_stopped() -> None:
    life = Life(LearnerProcess(400.0, running=False, gave_up=True), heartbeat=9_999.0, phase="stopped")
    assert life.after(0) == "stopped"


def test_a_restart_of_the_server_within_seconds_does_not_take_last_words_for_life() -> None:
    life = Life(LearnerProcess(None, running=False, gave_up=False), heartbeat=9_998.0, phase="stopped")
    assert life.after(0) == "starting"


def test_a_learner_of_somebody_else() -> None:
    life = Life(None, heartbeat=9_999.0)
    assert life.after(0) == "alive"
    assert life.after(30) == "silent"
    assert Life(None, heartbeat=1.0).after(0) == "off"
    assert Life(None).after(100) == "off"


def test_a_wall_clock_that_jumps_changes_nothing() -> None:
    life = Life(LearnerProcess(400.0, running=True, gave_up=False))
    life.after(1)
    for jump in (3600.0, -7200.0):
        life.wall += jump
        life.beat()
        assert life.after(2) == "alive"


def test_a_separate_learner_that_should_be_there_is_missed_once_the_engine_serves() -> None:
    life = Life(LearnerProcess(None, running=True, gave_up=False, separate=True), heartbeat=10_000.0 - 5789)
    assert life.after(200) == "starting"
    assert life.watch.overdue_silence(life.row) == 0.0
    life.process = LearnerProcess(life.ticks, running=True, gave_up=False, separate=True)
    assert life.after(59) == "starting"
    assert life.after(2) == "silent"
    assert life.watch.overdue_silence(life.row) == 61.0
    life.beat("starting")
    assert life.after(1) == "alive"
    assert life.after(20) == "silent"
    life.beat("stopped")
    assert life.after(1) == "off"
    assert life.after(70) == "off"
    assert life.watch.overdue_silence(life.row) > 60.0


def test_a_separate_learner_that_has_never_run_is_off_until_it_does() -> None:
    life = Life(LearnerProcess(500.0, running=True, gave_up=False, separate=True), phase="stopped")
    assert life.after(61) == "off"
    assert life.watch.overdue_silence(life.row) == 61.0
    life.beat("starting")
    assert life.after(1) == "alive"
