"""A history of a log with brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from spark_log.metadata import records as r
from spark_log.metadata.command_base import Command
from spark_log.metadata.commands import CreateTopic, Report
from spark_log.metadata.commits.decide_commits import Committed, decide_commit
from spark_log.metadata.maintenance.decide_maintenance import bootstrap_records, decide_swap
from spark_log.metadata.replay import next_version, replay_records
from spark_log.metadata.replicas.replica_commands import (
    FenceBroker,
    JoinIsr,
    RegisterBroker,
    ReturnBroker,
)
from spark_log.metadata.replicas.replica_state import PlacementGroup
from spark_log.metadata.replicas.replicas import epoch_of, group_at, group_number
from spark_log.metadata.restores import history_of
from spark_log.metadata.state import State
from spark_log.model import DataObject, Placed, Slice
from tests.unit.metadata.history import History, run


class ReplicaHistory(History):
    """A log at the newest level.  Broker 0 is there."""

    def __init__(self, *brokers: int) -> None:
        super().__init__()
        self.write(*bootstrap_records(State()))
        for broker in brokers:
            self.add(broker)

    def command(self, command: Command) -> Any:
        """Carry out a command; its reply."""
        return self.do(lambda state, now: command(state, now))

    def add(self, broker: int, *, rack: str = "", is_async: bool = False, keep_ms: int = 0) -> None:
        self.command(
            RegisterBroker(
                broker=broker,
                directory=f"d{broker}.{len(self.batches)}",
                url=f"/b{broker}",
                rack=rack,
                is_async=is_async,
                keep_ms=keep_ms,
            )
        )

    def renew(self, broker: int, *, lose_data: bool = False, is_async: bool = False) -> None:
        """Another disk for a broker."""
        new = f"d{broker}.{len(self.batches)}"
        self.command(
            RegisterBroker(
                broker=broker,
                directory=new,
                url=f"/b{broker}",
                replaces=True,
                lose_data=lose_data,
                is_async=is_async,
            )
        )

    def fence(self, broker: int) -> bool:
        return bool(self.command(FenceBroker(broker=broker, reason="it does not answer")))

    def back(self, broker: int, missing: tuple[str, ...] = ()) -> bool:
        epoch = epoch_of(self.state, broker) or 0
        return bool(self.command(ReturnBroker(broker=broker, epoch=epoch, missing=missing)))

    def topic(self, *replicas: tuple[int, ...], name: str = "t", **configs: str) -> str:
        """A topic with these replicas of its partitions; its id is its name."""
        given = {key.replace("_", "."): value for key, value in configs.items()}
        made = CreateTopic(name=name, partitions=len(replicas), topic_id=name, configs=given, replicas=replicas)
        return str(self.command(made))

    def group(self, topic_id: str = "t", partition: int = 0) -> PlacementGroup:
        return group_at(self.state, self.number(topic_id, partition))

    def number(self, topic_id: str = "t", partition: int = 0) -> int:
        return group_number(self.state, (topic_id, partition))

    def isr(self, topic_id: str = "t", partition: int = 0) -> tuple[int, ...]:
        return self.group(topic_id, partition).isr

    def held(self, brokers: Iterable[int]) -> tuple[tuple[int, int], ...]:
        """Brokers with their epochs of now."""
        return tuple((broker, epoch_of(self.state, broker) or 0) for broker in brokers)

    def upload_to(self, held: Iterable[int] | None = None, *keys: tuple[str, int], **fields: Any) -> r.CommitRecord:
        """A record in each partition, in an object for each, on these brokers; None: on all that writers put to."""
        keys = keys or (("t", 0),)
        epoch = fields.pop("upload_epoch", self.state.version)
        fields = {"producer": f"p{len(self.batches)}", "sequence": 0, "birth": self.state.version, **fields}
        name = f"data/{epoch:016x}/{len(self.batches)}-{fields['producer']}-{fields['sequence']}"
        groups = [self.group(*key) for key in keys]
        return r.CommitRecord(
            upload_epoch=epoch,
            objects=tuple(DataObject(f"{name}-{number}", 100, 90) for number in range(len(keys))),
            slices=tuple((number, run(*key, 1)) for number, key in enumerate(keys)),
            placed=tuple(
                Placed(self.number(*key), self.held((*group.isr, *group.joining) if held is None else held))
                for key, group in zip(keys, groups, strict=True)
            ),
            **fields,
        )

    def put(self, held: Iterable[int] | None = None, *keys: tuple[str, int], **fields: Any) -> tuple[str, ...]:
        """Commit such an upload; the names of its objects."""
        commit = self.upload_to(held, *keys, **fields)
        self.commit_record(commit)
        return tuple(made.name for made in commit.objects)

    def commit_record(self, commit: r.CommitRecord) -> Committed:
        return self.do(lambda state, now: decide_commit(state, commit, history=history_of(state)))

    def replaced(self, key: tuple[str, int], held: Mapping[int, int] | Iterable[int], **fields: Any) -> r.SwapRecord:
        """A swap of a partition's first two slices for one in a new object on these brokers."""
        part = self.state.partitions[key]
        old = [entry for entry in part.entries[:2] if isinstance(entry, Slice)]
        name = f"data/{self.state.version:016x}/merged-{len(self.batches)}"
        new = Slice(old[0].start, old[-1].end, name, 0, 100, 7, 1, 10, 20, 0)
        brokers = tuple(held.items()) if isinstance(held, Mapping) else self.held(held)
        swap = {
            "upload_epoch": self.state.version,
            "changes": (r.Change(*key, part.edition, new.start, new.end, (new,), ()),),
            "objects": (DataObject(name, 200, 190),),
            "added": {name: 1},
            "removed": dict.fromkeys((entry.object for entry in old), 1),
            "placed": (Placed(self.number(*key), brokers),),
        }
        return r.SwapRecord(**{**swap, **fields})  # type: ignore[arg-type]

    def swap_record(self, swap: r.SwapRecord) -> bool:
        return bool(self.do(lambda state, now: decide_swap(state, swap)))

    def copied(self, broker: int, *names: str, epoch: int | None = None) -> bool:
        return bool(self.command(Report(record=r.HeldRecord(copies=self._copies(broker, names, epoch)))))

    def lost(self, broker: int, *names: str, epoch: int | None = None) -> bool:
        return bool(self.command(Report(record=r.MissingRecord(copies=self._copies(broker, names, epoch)))))

    def _copies(self, broker: int, names: Iterable[str], epoch: int | None) -> tuple[r.Copy, ...]:
        at = (epoch_of(self.state, broker) or 0) if epoch is None else epoch
        return tuple(r.Copy(name, broker, at) for name in names)

    def join(self, broker: int, topic_id: str = "t", partition: int = 0) -> bool:
        return bool(self.command(JoinIsr(members=((self.number(topic_id, partition), broker),))))

    def brokers_of(self, name: str) -> tuple[int, ...]:
        """Brokers with a copy of an object, as the state has it."""
        return self.state.copies[self.state.objects[name].copies].brokers

    def is_void(self, record: r.AnyRecord) -> bool:
        """Whether a record would change nothing."""
        state = next_version(self.state, self.now)
        return replay_records(state, [record]) is state
