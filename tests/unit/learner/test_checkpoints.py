"""Checkpoints appear whole or not at all, and only the newest stay."""

from pathlib import Path

import pytest

from online_sao.learner.checkpoints import Checkpoints


def saving(text: str):
    def save(folder: Path) -> None:
        (folder / "weights").write_text(text)

    return save


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints")


def test_what_is_written_is_found_in_order(checkpoints):
    assert checkpoints.all() == []
    for number in (2, 10, 1):
        checkpoints.write(number, {"claim_id": f"claim-{number}"}, saving(str(number)))

    assert [checkpoint.update_number for checkpoint in checkpoints.all()] == [1, 2, 10]
    found = checkpoints.get(10)
    assert found is not None
    assert found.folder.name == "update-000010"
    assert (found.folder / "weights").read_text() == "10"
    assert found.manifest == {"claim_id": "claim-10"}
    assert checkpoints.get(3) is None


def test_a_failed_write_leaves_nothing(checkpoints, tmp_path):
    def fail(folder: Path) -> None:
        (folder / "weights").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        checkpoints.write(1, {}, fail)
    assert checkpoints.all() == []
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_nothing_bears_the_final_name_before_it_is_complete(checkpoints, tmp_path):
    def look(folder: Path) -> None:
        assert checkpoints.all() == []
        assert not folder.name.startswith("update-")

    checkpoints.write(1, {}, look)
    assert len(checkpoints.all()) == 1


def test_what_a_killed_writer_left_is_not_a_checkpoint_and_is_removed(checkpoints, tmp_path):
    checkpoints.write(1, {}, saving("1"))
    (tmp_path / "checkpoints" / "tmp-dead").mkdir()

    assert [checkpoint.update_number for checkpoint in checkpoints.all()] == [1]
    assert checkpoints.remove_leftovers() == 1
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["update-000001"]


def test_a_discarded_update_of_the_same_number_is_replaced(checkpoints):
    checkpoints.write(1, {"claim_id": "old"}, saving("old"))
    checkpoints.write(1, {"claim_id": "new"}, saving("new"))
    (found,) = checkpoints.all()
    assert found.manifest == {"claim_id": "new"}
    assert (found.folder / "weights").read_text() == "new"


def test_pruning_keeps_the_newest(checkpoints, tmp_path):
    for number in range(1, 6):
        checkpoints.write(number, {}, saving(str(number)))
    checkpoints.prune(keep=2)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["update-000004", "update-000005"]


def test_a_pretrained_value_model_stands_beside_its_checkpoint_and_goes_with_it(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")

    def save(text):
        return lambda folder: (folder / "value.txt").write_text(text)

    assert checkpoints.value(0) is None
    checkpoints.write_value(0, save("base"))
    checkpoints.write_value(0, save("base again"))
    for number in (1, 2, 3):
        checkpoints.write(number, {}, save("update"))
    checkpoints.write_value(1, save("pretrained"))
    assert (checkpoints.value(0) / "value.txt").read_text() == "base again"
    assert (checkpoints.value(1) / "value.txt").read_text() == "pretrained"
    assert [kept.update_number for kept in checkpoints.all()] == [1, 2, 3]  # a value model is no checkpoint

    checkpoints.prune(keep=2)

    assert checkpoints.value(1) is None
    assert checkpoints.value(0) is not None
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["update-000002", "update-000003", "value-000000"]
    # An update of that number again is another update: what was pretrained on the old one does not outlive it.
    checkpoints.write_value(2, save("old"))
    checkpoints.write(2, {}, save("new"))
    assert checkpoints.value(2) is None
