"""Files that queries leave behind."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from pyspark_pylog.source.query_pins import encode, pin_of

from spark_log.node.maintain import maintain_once
from tests.node.logs import new_log


def test_pins_of_queries_of_a_log_that_nobody_writes_go(tmp_path: Path) -> None:
    """Nothing moves the fence there: a pin goes when it is as old as an upload may become."""
    log = new_log(tmp_path)
    store, hour_ms = log.journal.metadata, 3_600_000
    pin = msgspec.json.decode(encode(pin_of(log.journal.state)))
    for hours in (1, 23, 25):
        made_ms = pin["made_ms"] - hours * hour_ms
        store.put_new(f"meta/pin/{hours}", msgspec.json.encode({**pin, "made_ms": made_ms}))
        os.utime(f"{tmp_path}/meta/pin/{hours}", (made_ms / 1000, made_ms / 1000))
    assert maintain_once(log).pins == 1
    assert store.list("meta/pin/") == ["meta/pin/1", "meta/pin/23"]
