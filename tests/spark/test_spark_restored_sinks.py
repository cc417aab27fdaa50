"""Queries that write to a log that was restored from an older copy, without Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from pyspark_pylog.sink.writer import TaskWritten, stream_writer

import spark_log
from spark_log.errors import SequenceConflict
from spark_log.serve.serve import Running
from spark_log.server.tokens import parse_tokens
from tests.restored import copy_of, restored
from tests.services import Services

TOKEN = "token-of-the-tests"


@pytest.fixture
def services() -> Iterator[Services]:
    found = Services()
    yield found
    found.stop_all()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint, begun as Spark does."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "metadata").write_text(json.dumps({"id": "q"}))
    return folder


def batch(url: str, checkpoint: Path, number: int, query: str = "q", **options: str) -> None:
    """A micro-batch of a query."""
    schema = StructType().add("value", "string")
    given = {"path": url, "topic": "t", "checkpointlocation": str(checkpoint), **options}
    writer = stream_writer(given, schema, overwrite=False)
    written = writer.write(iter([pa.record_batch({"value": [str(number)]})]))
    assert isinstance(written, TaskWritten)
    writer.commit([replace(written, query_id=query, batch_id=number)], number)


def noted(checkpoint: Path) -> list[str]:
    return sorted(file.read_text() for file in (checkpoint / "pylog").iterdir())


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("is_new_process", [False, True])
def test_a_query_whose_batches_are_lost_is_refused(
    url: str, log: spark_log.Log, tmp_path: Path, checkpoint: Path, is_new_process: bool
) -> None:
    """The batches before the next one would be missing, and nothing would say so."""
    for number in (0, 1):
        batch(url, checkpoint, number)
    copy = copy_of(log, tmp_path / "copy")
    for number in (2, 3):
        batch(url, checkpoint, number)
    assert noted(checkpoint) == [log.cluster_id]
    log = restored(url, copy)
    if is_new_process:  # which has nothing in memory of this checkpoint
        checkpoint = Path(shutil.copytree(checkpoint, tmp_path / "moved"))
    with pytest.raises(
        SequenceConflict, match="This is batch 4, and the last one in the log is 1: .*onOlderBatch=skip"
    ):
        batch(url, checkpoint, 4)
    batch(url, checkpoint, 4, onolderbatch="skip")
    assert noted(checkpoint) == [log.cluster_id, f"{log.cluster_id} {log.journal.state.restores[-1].history}"]
    batch(url, checkpoint, 5)
    assert spark_log.connect(url).read("t").column("value").to_pylist() == [b"0", b"1", b"4", b"5"]


@pytest.mark.parametrize("first", [1, 2], ids=["repeated", "next"])
def test_a_query_whose_batches_are_all_in_the_copy_continues(
    url: str, log: spark_log.Log, tmp_path: Path, checkpoint: Path, first: int
) -> None:
    for number in (0, 1):
        batch(url, checkpoint, number)
    log = restored(url, copy_of(log, tmp_path / "copy"))
    for number in range(first, 4):
        batch(url, checkpoint, number)
    assert spark_log.connect(url).read("t").column("value").to_pylist() == [b"0", b"1", b"2", b"3"]
    assert noted(checkpoint)[-1].endswith(log.journal.state.restores[-1].history)


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("is_new_process", [False, True])
def test_each_sink_of_a_query_is_compared(
    url: str, log: spark_log.Log, tmp_path: Path, checkpoint: Path, is_new_process: bool
) -> None:
    """The copy was made between the two sinks of a batch: only the second one lost its rows."""
    for number in range(3):
        batch(url, checkpoint, number, producerid="a")
        batch(url, checkpoint, number, producerid="b")
    batch(url, checkpoint, 3, producerid="a")
    copy = copy_of(log, tmp_path / "copy")
    batch(url, checkpoint, 3, producerid="b")
    restored(url, copy)
    batch(url, checkpoint, 4, producerid="a")
    if is_new_process:
        checkpoint = Path(shutil.copytree(checkpoint, tmp_path / "moved"))
    with pytest.raises(SequenceConflict, match="This is batch 4, and the last one in the log is 2"):
        batch(url, checkpoint, 4, producerid="b")
    batch(url, checkpoint, 5, producerid="a")


def test_batches_of_a_former_checkpoint_under_the_same_name_do_not_count(
    url: str, log: spark_log.Log, tmp_path: Path, checkpoint: Path
) -> None:
    """The copy was made before the query took over the name, whose last batch has a higher number."""
    former = Path(shutil.copytree(checkpoint, tmp_path / "former"))
    for number in range(9):
        batch(url, former, number, "former", producerid="p")
    copy = copy_of(log, tmp_path / "copy")
    for number in range(3):
        batch(url, checkpoint, number, producerid="p")
    restored(url, copy)
    with pytest.raises(SequenceConflict, match="This is batch 3, and the last one in the log is none"):
        batch(url, checkpoint, 3, producerid="p")


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("is_older", [True, False], ids=["older", "newer"])
def test_a_query_with_a_token_continues_after_a_restore(
    url: str, log: spark_log.Log, tmp_path: Path, checkpoint: Path, services: Services, is_older: bool
) -> None:
    """Its batches are in the log under its own name if it is older than the tokens, and otherwise with their name."""

    def served() -> tuple[str, Running]:
        running = services.start(Path(url), tokens=parse_tokens({"owner": f"write {TOKEN} t"}))
        return f"pylog://{running.coordinator.address}", running

    if is_older:
        batch(url, checkpoint, 0)
        batch(url, checkpoint, 1)
    address, running = served()
    if not is_older:
        batch(address, checkpoint, 0, token=TOKEN)
    batch(address, checkpoint, 1, token=TOKEN)
    batch(address, checkpoint, 2, token=TOKEN)
    services.stop(running)
    restored(url, copy_of(spark_log.connect(url), tmp_path / "copy"))
    address, _ = served()
    for number in (2, 3):
        batch(address, checkpoint, number, token=TOKEN)
    assert spark_log.connect(url).read("t").column("value").to_pylist() == [b"0", b"1", b"2", b"3"]
