"""A coordinator and commands that no client of ours gives."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_log.errors import InvalidRequest
from spark_log.metadata.commands import Append, CreateTopic
from spark_log.metadata.records import Commit
from spark_log.model import DataObject, Run
from spark_log.node.coordinator import Coordinator
from spark_log.store.local import LocalStore


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    """One that leads."""
    made = Coordinator(LocalStore(str(tmp_path / "log"), "os"), host="here", is_alive=lambda holder: False)
    made.address = "here:1"
    thread = threading.Thread(target=made.run)
    thread.start()
    while not made.leading:
        time.sleep(0.01)
    yield made
    made.stop()
    thread.join()


def test_a_command_that_makes_no_sense_does_not_end_a_coordinator(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    """Who gave it is answered, and what others give after it is carried out."""
    create = CreateTopic(name="t", partitions=1, topic_id="id")
    assert coordinator.submit([create]).result(60).outcomes == ["id"]
    commit = Commit(
        producer="p",
        sequence=0,
        upload_epoch=coordinator.state.version,
        objects=(DataObject("data/0000000000000001/one.seg", 10, 5),),
        slices=((3, Run("id", 0, 1, 0, 5, 0, 1, 0, 0)),),  # of the fourth object, and there is one
    )
    with caplog.at_level(logging.CRITICAL, "spark_log"):
        (outcome,) = coordinator.submit([Append(commit=commit)]).result(60).outcomes
    assert isinstance(outcome, InvalidRequest)
    other = CreateTopic(name="u", partitions=1, topic_id="other")
    assert coordinator.submit([other]).result(60).outcomes == ["other"]
