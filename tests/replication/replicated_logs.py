"""Logs with brokers whose objects are put by hand, so that a test says which broker has which object."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from simulation.harness.broker_roots import write_broker_file
from spark_log import Log, connect
from spark_log.client.producer.topic_rules import topic_spec
from spark_log.client.producer.upload import Uploader
from spark_log.metadata.commands import Append, CreateTopic
from spark_log.metadata.records import CommitRecord
from spark_log.metadata.replicas.replica_commands import RegisterBroker
from spark_log.metadata.replicas.replicas import copies_of, epoch_of, group_number
from spark_log.metadata.state import State
from spark_log.model import ACKS_ALL, Placed
from spark_log.roots.broker_roots import BROKER_KEY, BrokerFile
from spark_log.segment.record_columns import conform
from spark_log.store.memory import MemoryStore
from spark_log.store.open import open_store

_numbers = itertools.count()


def replicated_log(folder: Path, brokers: int = 2, **configs: str) -> Log:
    """A log in `folder/log` with brokers 1, … in `folder/broker-1`, …, and a topic "t" with a replica on each.

    configs:  of the log, by Kafka's names with underscores.
    """
    log = connect(str(folder / "log"), durability="os")
    log.admin.incremental_alter_configs({None: {name.replace("_", "."): text for name, text in configs.items()}})
    for broker in range(1, brokers + 1):
        add_broker(log, broker, str(folder / f"broker-{broker}"))
    create_topic(log, "t", range(brokers + 1))
    return log


def create_topic(log: Log, name: str, replicas: Iterable[int]) -> None:
    """A topic with one partition on these brokers."""
    log.journal.propose(
        CreateTopic(name=name, partitions=1, topic_id=log.journal.context.unique(), replicas=(tuple(replicas),))
    )


def add_broker(
    log: Log,
    broker: int,
    url: str,
    *,
    replaces: bool = False,
    is_async: bool = False,
    keep_ms: int = 0,
    **options: Any,
) -> None:
    """Register a root with a new directory."""
    store, directory = open_store(url, options), f"{random.getrandbits(64):016x}"
    write_broker_file(store, BrokerFile(cluster_id=log.cluster_id, broker=broker, directory=directory))
    log.journal.propose(
        RegisterBroker(
            broker=broker,
            directory=directory,
            url=store.url,
            options={name: str(value) for name, value in options.items()},
            is_async=is_async,
            keep_ms=keep_ms,
            replaces=replaces,
        )
    )


def put(
    log: Log,
    held: Sequence[int],
    rows: int = 10,
    *,
    width: int = 100,
    topic: str = "t",
    acks: int = ACKS_ALL,
    values: Sequence[bytes] = (),
    **fields: Any,
) -> str:
    """Commit an object that these brokers have; its name.

    values:  of the records; by default, `rows` random ones.
    fields:  others of the commit's record.
    """
    state, at = log.journal.refresh(), next(_numbers)
    staged = MemoryStore(f"staged-{at}")
    uploader = Uploader(staged, state.version, log.journal.context.random())
    now_ms = log.journal.context.clock.now_ms()
    values = values or [b"%d-%d" % (at, number) + random.Random(number).randbytes(width) for number in range(rows)]
    for some in conform(pa.table({"value": values}), now_us=now_ms * 1000):
        uploader.append(topic_spec(state, topic)._replace(groups=()), some, now_ms, 0)
    uploaded = uploader.finish()
    ((name, _, _),) = uploaded.objects
    for broker in held:
        log.journal.roots[broker].put(name, [staged.get(name)])
    epochs = tuple((broker, epoch_of(state, broker) or 0) for broker in held)
    known = {"producer": f"test-{at}", "sequence": 0, "birth": -1 if acks == ACKS_ALL else state.version}
    commit = CommitRecord(
        upload_epoch=state.version,
        objects=uploaded.objects,
        slices=uploaded.slices,
        placed=(Placed(group_number(state, (state.names[topic], 0)), epochs),),
        acks=acks,
        **(known | fields),
    )
    log.journal.propose(Append(commit=commit))
    return name


def brokers_of(state: State, name: str) -> tuple[int, ...]:
    """The brokers that have an object, by the log."""
    copies = copies_of(state, state.objects[name])
    return () if copies is None else copies.brokers


def group_of(state: State, topic: str = "t") -> Any:
    """The placement group of a topic's first partition."""
    return state.placement_groups[group_number(state, (state.names[topic], 0))]


def folder_of(log: Log, folder: Path, broker: int) -> Path:
    """Where a broker's copies are."""
    if broker == 0:
        return folder / "log"
    return folder / f"broker-{broker}" / log.journal.refresh().brokers[broker].directory


def move_away(folder: Path, broker: int) -> Path:
    """Take a disk out; where it is now."""
    root = folder / f"broker-{broker}"
    return root.rename(folder / f"away-{broker}")


def move_back(folder: Path, broker: int) -> None:
    root = folder / f"broker-{broker}"
    shutil.rmtree(root, ignore_errors=True)
    (folder / f"away-{broker}").rename(root)


def is_described(folder: Path, broker: int) -> bool:
    return (folder / f"broker-{broker}" / BROKER_KEY).exists()
