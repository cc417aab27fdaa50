"""A copy of a log names the coordinator of the original: changes on the copy must not be made in the original."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import pytest

import spark_log
from spark_log import NewTopic
from spark_log.errors import InconsistentClusterId
from spark_log.journal.store_operations import AskChanges
from spark_log.store.open import is_other_storage
from tests.services import Services


@pytest.fixture
def original(services: Services, tmp_path: Path) -> Path:
    """A log with a coordinator, which has topic t with one record."""
    with spark_log.connect(services.url(tmp_path / "log")) as log:
        log.admin.create_topics([NewTopic("t", 1)])
        log.append("t", [{"value": b"1"}])
    return tmp_path / "log"


# Promise: copies.md#copy-a-log
def test_changes_on_a_copy_are_refused_and_do_not_reach_the_original(original: Path, tmp_path: Path) -> None:
    """Topics, records and positions; the error names both logs and says how to use the copy."""
    shutil.copytree(original, tmp_path / "copy")
    with spark_log.connect(tmp_path / "copy", durability="os") as copy:
        for change in (
            lambda: copy.admin.delete_topics(["t"]),
            lambda: copy.admin.create_topics([NewTopic("u", 1)]),
            lambda: copy.append("t", [{"value": b"2"}]),
        ):
            with pytest.raises(InconsistentClusterId, match=r"/copy is a copy of the log at .*/log, .*release --force"):
                change()
    with spark_log.connect(original, durability="os") as log:
        assert sorted(log.admin.list_topics()) == ["t"]
        assert log.read("t").num_rows == 1


# Promise: copies.md#copy-a-log
def test_a_copy_is_read_from_its_own_storage(original: Path, tmp_path: Path) -> None:
    """A waiting reader of the copy does not hear of commits to the original either."""
    shutil.copytree(original, tmp_path / "copy")
    with (
        spark_log.connect(tmp_path / "copy", durability="os") as copy,
        spark_log.connect(original, durability="os") as log,
    ):
        log.append("t", [{"value": b"2"}])
        assert copy.read("t").num_rows == 1
        version = copy.journal.state.version
        assert copy.journal.wait(1, 1).version == version < log.journal.refresh().version


def test_another_path_to_the_same_folder_is_the_same_log(original: Path, tmp_path: Path) -> None:
    """A symbolic link, also for a link that was sent to another process."""
    (tmp_path / "other").symlink_to(original)
    with spark_log.connect(tmp_path / "other", durability="os") as log:
        log.append("t", [{"value": b"2"}])
        state, link = log.journal.state, pickle.loads(pickle.dumps(log.journal.link))
        assert link.changes(AskChanges(state.coordinator, state.version - 1)).version == state.version


# Promise: copies.md#copy-a-log
@pytest.mark.parametrize(
    ("url", "other", "same_machine", "expected"),
    [
        ("s3://a/log", "s3://a/log", False, False),
        ("s3://a/log", "s3://b/log", False, True),
        ("s3://a/log", "file:///mnt/a/log", True, False),
        ("file:///{0}/a", "file:///{0}/b", True, True),
        ("file:///{0}/a", "file:///{0}/b", False, False),
        ("file:///{0}/a", "file:///{0}/with%20space", True, False),
        ("file:///{0}/a", "file:///{0}/is/not/there", True, False),
    ],
)
def test_which_storages_are_certainly_different(
    tmp_path: Path, url: str, other: str, same_machine: bool, expected: bool
) -> None:
    """A bucket by its URL; a folder of this machine by its inode, as other machines may mount it elsewhere."""
    for name in ("a", "b"):
        os.mkdir(tmp_path / name)
    (tmp_path / "with space").symlink_to(tmp_path / "a")
    root = str(tmp_path)[1:]
    assert is_other_storage(url.format(root), other.format(root), same_machine=same_machine) is expected
