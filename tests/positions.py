"""One table of positions for every place that takes one."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

import spark_log
from spark_log import NewTopic, TopicPartition

BEGIN = datetime.now(timezone.utc).replace(microsecond=0) - timedelta(minutes=1000)
"""A time so far back that the moment of a test in its run does not matter."""
T = TopicPartition("t", 0)


def _ms(minutes: int) -> int:
    return int((BEGIN + timedelta(minutes=minutes)).timestamp() * 1000)


TABLE = {
    "earliest": ("earliest", 0),
    "in any case, with blanks around it": (" LATEST ", 10),
    "an offset": ("4", 4),
    "from the end": ("latest-3", 7),
    "from the end, beyond the start": ("latest-99", 0),
    "from now": ("now-550m", 5),
    "a time in words": (f"@{(BEGIN + timedelta(minutes=250)):%Y-%m-%dT%H:%M:%SZ}", 3),
    "a time in milliseconds": (f"@{_ms(300)}", 3),
    "a time beyond the last record": (f"@{_ms(950)}", 10),
    "a group": ("group:g", 6),
}
"""Name: (the text, the resulting offset in partition 0 of topic t)."""

each_position = pytest.mark.parametrize(("position", "offset"), TABLE.values(), ids=TABLE)
each_mistake = pytest.mark.parametrize("position", ["yesterday", "-3", "latest+1", "now-", "@noon", "group:", ""])


def fill(log: spark_log.Log) -> None:
    """Topic t: ten records in one partition, one every hundred minutes from BEGIN on; group g stands at 6."""
    log.admin.create_topics([NewTopic("t", 1)])
    log.append("t", [{"value": str(n), "timestamp": BEGIN + timedelta(minutes=100 * n)} for n in range(10)])
    log.admin.alter_consumer_group_offsets("g", {T: 6})
