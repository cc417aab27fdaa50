"""A flow over given rows, for tests of its function."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from spark_log.client.log import connect
from spark_log.flows.flow import BATCH_BYTES, start_flow
from spark_log.flows.keyed_state import Keyed
from spark_log.model import NewTopic

TIMEOUT_S = 60.0


def make_flow_test(
    function: Callable[..., object],
    rows: Mapping[str, object],
    *,
    target: str | None = None,
    lookup: str | Sequence[str] = (),
    state: Keyed | None = None,
    topics: Sequence[NewTopic] = (),
    bad_records: str = "fail",
    batch_bytes: int = BATCH_BYTES,
    timeout: float = TIMEOUT_S,
) -> dict[str, pa.Table]:
    """Run a flow over rows in a log that exists for this call, and return the records that it writes, by topic.

    rows:    by source topic, records in any form that `log.append` takes.
    topics:  topics to create before, such as those with a schema; the others have one partition and no schema.
    target, lookup, state, bad_records, batch_bytes:  as for `spark_log.flow`.
    timeout: in seconds.
    Raises the errors of the flow, such as FunctionFailed.
    """
    lookups = (lookup,) if isinstance(lookup, str) else tuple(lookup)
    given = {topic.name: topic for topic in topics}
    with tempfile.TemporaryDirectory(prefix="pylog-flow-") as folder, connect(folder, durability="os") as log:
        log.admin.create_topics([given.pop(name, NewTopic(name, 1)) for name in rows])
        log.admin.create_topics(list(given.values()))
        log.admin.incremental_alter_configs({None: {"num.partitions": "1"}})
        for name, data in rows.items():
            log.append(name, data)
        running = start_flow(
            folder,
            name="test",
            source=tuple(name for name in rows if name not in lookups),
            function=function,
            target=target,
            lookup=lookups,
            state=state,
            tasks=1,
            task_numbers=None,
            start="earliest",
            bad_records=bad_records,
            batch_bytes=batch_bytes,
            linger_ms=0,
            value_format=None,
        )
        with running:
            running.process_all_available(timeout)
        return {name: log.read(name) for name in log.topics() if name not in rows}
