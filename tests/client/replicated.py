"""Logs with copies on several roots, put there by the tests: which replica has which object is theirs to say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from spark_log.client.admin.brokers import add_broker
from spark_log.client.log import Log
from spark_log.client.producer.append import upload_rows
from spark_log.client.topic_creation import new_topic_id
from spark_log.journal.journal import Journal
from spark_log.metadata.commands import Append, CreateTopic
from spark_log.metadata.records import CommitRecord
from spark_log.metadata.replicas.replicas import epoch_of, group_at, group_number
from spark_log.model import ACKS_ALL, ACKS_LEADER, Placed
from spark_log.store.copy_object import copy_object


def with_copies(log: Log, roots: Sequence[Path | str], topic: str = "t", partitions: int = 1) -> Journal:
    """The log's journal, with a broker on each root and a topic with replicas on all of them and on the own root."""
    journal = log.journal
    for broker, root in enumerate(roots, 1):
        add_broker(journal, broker, str(root))
    create_replicated(journal, topic, range(len(roots) + 1), partitions)
    return journal


def create_replicated(journal: Journal, topic: str, brokers: Iterable[int], partitions: int = 1) -> None:
    """Create a topic whose partitions have replicas on these brokers."""
    replicas = (tuple(brokers),) * partitions
    journal.propose(CreateTopic(name=topic, partitions=partitions, topic_id=new_topic_id(journal), replicas=replicas))


def commit_copies(
    log: Log, topic: str, values: Sequence[bytes], held: Iterable[int] | None = None, acks: int = ACKS_ALL
) -> str:
    """Append records to partition 0 of a topic in one object, which only these brokers have; its name.

    held:  brokers; None: all replicas.
    """
    journal = log.journal
    state = journal.refresh()
    number = group_number(state, (state.names[topic], 0))
    group = group_at(state, number)
    holders = list(group.replicas if held is None else held)
    rows = [{"key": b"k", "value": value, "partition": 0} for value in values]
    uploaded = upload_rows(journal, topic, rows, state.version)
    (made,) = uploaded.objects
    stores = {broker: journal.roots[broker] for broker in group.replicas}
    source = next(store for store in stores.values() if store.size(made.name) == made.size)
    for broker in holders:
        if stores[broker].size(made.name) is None:
            assert copy_object(source, stores[broker], made.name, made.size) == made.size
    for broker in set(group.replicas) - set(holders):
        stores[broker].delete([made.name])
    where = Placed(number, tuple((broker, epoch_of(state, broker) or 0) for broker in holders))
    commit = CommitRecord(
        producer=journal.context.unique(),
        epoch=0,
        sequence=0,
        birth=state.version if acks == ACKS_LEADER else -1,
        upload_epoch=state.version,
        objects=uploaded.objects,
        slices=uploaded.slices,
        placed=(where,),
        acks=acks,
    )
    journal.propose(Append(commit=commit))
    return made.name
