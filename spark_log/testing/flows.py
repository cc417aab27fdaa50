"""A flow over given rows, for tests of its function."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from spark_log.client.log import Log, connect
from spark_log.client.reader.positions_to_offsets import partitions_of
from spark_log.flows.flow import BATCH_BYTES, start_flow
from spark_log.flows.keyed_state import Keyed
from spark_log.metadata.groups.named_state import position_text
from spark_log.model import NewTopic, OffsetAndMetadata

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

    rows:    by source topic, records in any form that `log.append` takes.  Those of the topic of `state` are the state
             with which the flow begins; they are returned, too.
    topics:  topics to create before, such as those with a schema; the others have one partition and no schema.
    target, lookup, state, bad_records, batch_bytes:  as for `spark_log.flow`.
    timeout: in seconds.
    Raises the errors of the flow, such as FunctionFailed.
    """
    lookups = (lookup,) if isinstance(lookup, str) else tuple(lookup)
    sources = [name for name in rows if name not in lookups and (state is None or name != state.topic)]
    given = {topic.name: topic for topic in topics}
    if state is not None and state.topic in rows:
        given.setdefault(state.topic, NewTopic(state.topic, 1, {"cleanup.policy": "compact"}, schema=state.schema))
    with tempfile.TemporaryDirectory(prefix="pylog-flow-") as folder, connect(folder, durability="os") as log:
        log.admin.create_topics([given.pop(name, NewTopic(name, 1)) for name in rows])
        log.admin.create_topics(list(given.values()))
        log.admin.incremental_alter_configs({None: {"num.partitions": "1"}})
        for name, data in rows.items():
            log.append(name, data)
        if state is not None and state.topic in rows:
            _begin_with_state(log, sources, state.topic)
        running = start_flow(
            folder,
            name="test",
            source=tuple(sources),
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
        return {name: log.read(name) for name in log.topics() if name not in (*sources, *lookups)}


def _begin_with_state(log: Log, sources: Sequence[str], topic: str) -> None:
    """Let a state that is there belong to the first positions of the flow."""
    state = log.journal.refresh()
    topic_id = state.names[topic]
    begun = OffsetAndMetadata(0, position_text(topic_id, state.topics[topic_id].partitions))
    starts = {tp: begun for source in sources for tp in partitions_of(state, source)}
    log.admin.alter_consumer_group_offsets("test", starts)
