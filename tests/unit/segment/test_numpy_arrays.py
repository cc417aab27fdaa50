"""Arrow and numpy without pandas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import spark_log
from spark_log.segment.arrays.numpy_arrays import KEPT_ROWS, array_of, micros_of, numbers_of, repeated

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("count", [0, 1, 3, KEPT_ROWS, KEPT_ROWS + 1])
def test_a_column_of_one_value(count: int) -> None:
    assert repeated("größe", count).to_pylist() == ["größe"] * count
    assert repeated("", count).to_pylist() == [""] * count
    assert repeated(7, count) == pa.array([7] * count, pa.int32())
    repeated("größe", count).validate(full=True)


def test_a_column_that_is_too_large_is_refused() -> None:
    """Its offsets would begin again at zero."""
    with pytest.raises(OverflowError, match="too large for one array"):
        repeated("x" * 249, 9_000_000)


def test_numbers_have_the_same_values_on_both_sides() -> None:
    numbers = np.arange(5, dtype=np.int64)[::2]
    assert array_of(numbers, pa.int64()).to_pylist() == [0, 2, 4]
    assert numbers_of(pa.chunked_array([[1, 2], [3]], pa.int32())).tolist() == [1, 2, 3]
    assert numbers_of(pa.array([1, 2, 3]).slice(1)).tolist() == [2, 3]
    assert micros_of(pa.array([5, 6], pa.timestamp("us", "UTC")).slice(1)).tolist() == [6]
    assert numbers_of(pa.array([], pa.int64())).tolist() == []


READS = """
import sys, pyarrow as pa, spark_log
from tests.spark.driver import Frame, read_task
log = spark_log.connect(sys.argv[1], create=False)
assert log.read("t", where="timestamp > '2020-01-01'").num_rows == 3
with log.consumer("t", auto_offset_reset="earliest") as consumer:
    assert sum(map(len, consumer.poll(5000).values())) == 3
columns = {"topic": "string", "partition": "int32", "offset": "int64", "key": "binary", "value": "binary"}
frame = Frame(sys.argv[1], schema=pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()]))
assert sum(batch.num_rows for task in frame.tasks for batch in read_task(frame.reader, task)) == 3
sys.exit("pandas" in sys.modules)
"""


def test_a_process_that_reads_imports_no_pandas(tmp_path: Path) -> None:
    """It would take a third of the CPU time of a new process that reads a few records."""
    with spark_log.connect(tmp_path, durability="os") as log:
        log.append("t", [{"key": "k", "value": f"{n}"} for n in range(3)])
    done = subprocess.run([sys.executable, "-c", READS, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
