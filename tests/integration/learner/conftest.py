"""A data folder for learner processes; whatever still runs at the end of a test is ended."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from learner_process import LearnerHome, Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def home(tmp_path: Path, nursery: Nursery) -> Iterator[LearnerHome]:
    home = LearnerHome(tmp_path, nursery)
    yield home
    home.end()
