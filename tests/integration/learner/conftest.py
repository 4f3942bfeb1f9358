"""A data folder for learner processes; whatever still runs at the end of a test is ended."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from learner_process import LearnerHome


@pytest.fixture
def home(tmp_path: Path) -> Iterator[LearnerHome]:
    home = LearnerHome(tmp_path)
    yield home
    home.end()
