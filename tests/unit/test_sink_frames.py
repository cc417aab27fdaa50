"""A batch of `spark_log.sink` has one frame for each name."""

from __future__ import annotations

import pytest
from pyspark_pylog.sink.foreach_batch import SinkBatch, check_one_frame

from spark_log.errors import InvalidRequest


def test_a_second_frame_is_refused_however_often_it_is_tried() -> None:
    """The first one may be retried; another run of the batch begins again."""

    def check(plan: int, run: str = "first") -> None:
        check_one_frame("/log", "t", "sink", SinkBatch("query", run, 7, plan))

    check(1)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="two frames for topic 't' under the name 'sink'"):
            check(2)
    check(1)
    check(2, run="second")
