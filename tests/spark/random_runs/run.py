"""One random run: operations on a log, on a stream from the log into the log, and on its checkpoint, each checked."""

from __future__ import annotations

import random
import shutil
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import spark_log
from spark_log.maintenance.maintain import maintain_once
from spark_log.model import TopicPartition
from spark_log.recovery.verify import verify
from tests.spark.random_runs.check import Check, Way, name_of
from tests.spark.random_runs.engines import Engine, Kept
from tests.spark.random_runs.model import (
    Batch,
    Identities,
    Loss,
    Model,
    Part,
    Record,
    Row,
    Source,
    Violation,
    read_checkpoint,
    require,
)

SINK = "out"
TOPICS = ("in-0", "in-1", "in-2")
HOUR_MS = 3_600_000
OLD_MS = 48 * HOUR_MS
KINDS = (
    "DataLoss",
    "UnknownTopicOrPartition",
    "SequenceConflict",
    "ProducerFenced",
    "CONCURRENT_STREAM_LOG_UPDATE",
    "assertion failed",
)
"""The last two are Spark's, of a checkpoint whose log of commits is ahead of its log of offsets."""


def kind_of(error: BaseException) -> str:
    """The class of an error, which Spark passes on inside its own message."""
    text = f"{type(error).__name__}: {error}"
    found = [kind for kind in KINDS if kind in text]
    if not found:
        raise Violation(f"an error of a class that nothing explains: {text[:3000]}") from error
    return found[0]


@dataclass
class Pending:
    """A frame that was loaded: what its first use settled."""

    frame: Kept
    topics: tuple[str, ...]
    by_pattern: bool
    fail: bool
    starts: dict[TopicPartition, int] | None
    """None: earliest."""
    ids: dict[str, str]
    ends: dict[TopicPartition, int]
    """At `load()`."""


@dataclass
class Result:
    """The outcome of a run."""

    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    steps: list[str] = field(default_factory=list)
    violation: str = ""


class Run:
    """Everything that one seed works on."""

    def __init__(self, engine: Engine, folder: Path, seed: int) -> None:
        self.engine, self.folder, self.seed = engine, folder, seed
        self.rng = random.Random(seed)
        self.result = Result(seed)
        self.url = str(folder / "log")
        self.log = spark_log.connect(self.url, durability="os")
        self.log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
        self.model = Model()
        self.identities = Identities()
        by_pattern = self.rng.random() < 0.6
        self.source = Source(TOPICS if by_pattern else TOPICS[:2], by_pattern)
        self.limit = self.rng.choice((None, None, 1, 3, 7))
        self.way = Way(producer_id=self.rng.choice((None, "copy-0")))
        self.planned: dict[str, Batch] = {}
        """By the text of a file of offsets, which has the time of the batch."""
        self.checkpoints = 0
        self.backups: list[tuple[Path, int]] = []
        self.frames: list[Pending] = []
        self.versions: dict[str, tuple[int, int]] = {}
        """Of topics: the last version that was written, and its rows."""
        self.names = 0
        self.last_error = ""
        for name in self.source.topics:
            self._create(name)

    # ------------------------------------------------------------------------------------------------------------ steps

    def steps(self, count: int) -> Result:
        """So many operations.  The result holds the violation, if one is found."""
        operations = self._operations()
        names, weights = list(operations), [weight for weight, _ in operations.values()]
        try:
            for _ in range(count):
                name = self.rng.choices(names, weights)[0]
                self._step(name, operations[name][1])
            self._finish()
        except Exception as error:  # noqa: BLE001  whatever it is, the seed that leads to it is to be told
            trace = "" if isinstance(error, Violation) else f"\n{traceback.format_exc()}"
            self.result.violation = f"{type(error).__name__}: {error}{trace}"
        return self.result

    def _operations(self) -> dict[str, tuple[int, Callable[[], str | None]]]:
        return {
            "append": (32, self.append),
            "append by Spark": (6, self.append_by_spark),
            "append a version": (3, self.append_version),
            "run the query": (30, self.run_query),
            "create or delete a topic": (6, self.create_or_delete),
            "create a topic again": (3, self.recreate),
            "add partitions": (3, self.add_partitions),
            "trim": (5, self.trim),
            "maintain": (5, self.maintain),
            "lose files of the checkpoint": (5, self.lose_files),
            "copy the checkpoint": (3, self.back_up),
            "restore the checkpoint": (3, self.restore),
            "begin a new checkpoint": (1, self.new_checkpoint),
            "change the sink": (4, self.change_sink),
            "read": (6, self.read),
            "load a frame": (4, self.load),
            "use a frame again": (5, self.read_again),
        }

    def _step(self, name: str, operation: Callable[[], str | None]) -> None:
        self.result.steps.append(name)
        told = operation()
        self.result.counts[name] += 1
        if told:
            self.result.steps[-1] = f"{name}: {told}"
        self.check_log()

    def _finish(self) -> None:
        """The documented ways out lead to a query that runs."""
        for _ in range(8):
            self._step("run the query", self.run_query)
            if not self.last_error:
                break
        require(not self.last_error, f"the query still fails after the ways out: {self.last_error}")
        for name in sorted(self.model.topics):
            self._step("read", lambda name=name: self._read_by_log(name))
        problems = verify(self.log, deep=True)
        require(problems == [], f"pylog verify finds {problems}")

    # ----------------------------------------------------------------------------------------------------------- topics

    def _create(self, name: str) -> None:
        partitions = self.rng.randint(1, 3)
        configs = {"retention.ms": str(24 * HOUR_MS)} if self.rng.random() < 0.3 else {}
        self.log.admin.create_topics([spark_log.NewTopic(name, partitions, configs=configs)])
        self.model.create(name, self.log.admin.describe_topics([name])[name].topic_id, partitions)

    def _delete(self, name: str) -> None:
        self.log.admin.delete_topics([name])
        del self.model.topics[name]

    def create_or_delete(self) -> str:
        name = self.rng.choice(self.source.topics)
        if name in self.model.topics:
            self._delete(name)
            return f"delete {name}"
        self._create(name)
        return f"create {name}"

    def recreate(self) -> str | None:
        name = self._some_topic()
        if name is None:
            return None
        self._delete(name)
        self._create(name)
        return name

    def add_partitions(self) -> str | None:
        name = self._some_topic()
        if name is None or len(self.model.topics[name].parts) >= 5:
            return None
        total = len(self.model.topics[name].parts) + self.rng.randint(1, 2)
        self.log.admin.create_partitions({name: total})
        self.model.topics[name].parts += [Part() for _ in range(total - len(self.model.topics[name].parts))]
        return f"{name} to {total}"

    def trim(self) -> str | None:
        return self._trim(self._some_topic())

    def _trim(self, name: str | None) -> str | None:
        if name is None:
            return None
        number = self.rng.randrange(len(self.model.topics[name].parts))
        part = self.model.topics[name].parts[number]
        to = self.rng.randint(part.start, part.end)
        self.log.admin.delete_records({TopicPartition(name, number): to})
        part.start = to
        return f"{name}-{number} to {to}"

    def maintain(self) -> str:
        report = maintain_once(self.log)
        described = self.log.admin.describe_topics()
        for tp, _, part in self.model.named(self.model.topics):
            start = described[tp.topic].partitions[tp.partition].start
            require(part.start <= start, f"the start of {tp} moved back from {part.start} to {start}")
            gone = part.records[part.start : start]
            require(all(record.is_old for record in gone), f"retention removed records of {tp} that are not old")
            part.start = start
        return f"{report.expired_records} expired, {report.merged_slices} merged, {report.collected} collected"

    def change_sink(self) -> str | None:
        """Changes by others of the topic that the query writes."""
        if SINK not in self.model.topics:
            return None
        match self.rng.randrange(4):
            case 0:
                self._delete(SINK)
                return "delete"
            case 1:
                return self._trim(SINK)
            case 2 if len(self.model.topics[SINK].parts) < 4:
                total = len(self.model.topics[SINK].parts) + 1
                self.log.admin.create_partitions({SINK: total})
                self.model.topics[SINK].parts.append(Part())
                return f"{total} partitions"
        return self._append(SINK)

    def _some_topic(self) -> str | None:
        there = sorted(set(self.source.topics) & self.model.topics.keys())
        return self.rng.choice(there) if there else None

    # ---------------------------------------------------------------------------------------------------------- appends

    def append(self) -> str | None:
        name = self._some_topic()
        return None if name is None else self._append(name)

    def _drawn(self, name: str, *, is_old: bool = False) -> list[tuple[int, Record]]:
        partitions = len(self.model.topics[name].parts)
        records = self.model.new_records(self.rng.randint(1, 6), is_old=is_old)
        return [(self.rng.randrange(partitions), record) for record in records]

    def _keep(self, name: str, records: Iterable[tuple[int, Record]]) -> None:
        for number, record in records:
            self.model.topics[name].parts[number].records.append(record)

    def _append(self, name: str) -> str:
        is_old = self.rng.random() < 0.3
        records = self._drawn(name, is_old=is_old)
        rows = [{"value": record.value, "partition": number} for number, record in records]
        if is_old:
            now_ms = self.log.journal.context.clock.now_ms()
            rows = [{**row, "timestamp": now_ms - OLD_MS} for row in rows]
        given = self.log.append(name, rows)
        counts = Counter(number for number, _ in records)
        ends = {number: self.model.topics[name].parts[number].end for number in counts}
        expected = {TopicPartition(name, p): range(ends[p], ends[p] + count) for p, count in counts.items()}
        require(given == expected, f"append gave {given}, expected {expected}")
        self._keep(name, records)
        return f"{len(rows)} {'old ' if is_old else ''}to {name}"

    def append_by_spark(self) -> str | None:
        name = self._some_topic()
        if name is None:
            return None
        records = self._drawn(name)
        self.engine.append(self.url, records, {"topic": name})
        self._keep(name, records)
        return f"{len(records)} to {name}"

    def append_version(self) -> str | None:
        """A version of an application, and sometimes the last one again: that adds nothing, and is a conflict with
        other rows.
        """
        name = self._some_topic()
        if name is None:
            return None
        records = self._drawn(name)
        last, rows = self.versions.get(name, (0, 0))
        again = last > 0 and self.rng.random() < 0.4
        version = last if again else last + 1
        try:
            self.engine.append(self.url, records, {"topic": name, "txnAppId": "app", "txnVersion": str(version)})
        except Exception as error:  # noqa: BLE001  judged here
            require(
                kind_of(error) == "SequenceConflict" and again and len(records) != rows, f"nothing explains {error}"
            )
            return f"version {version} to {name} with other rows"
        require(
            not again or len(records) == rows, f"version {version} with {len(records)} rows passed for one with {rows}"
        )
        if not again:
            self.versions[name] = version, len(records)
            self._keep(name, records)
        return f"version {version} to {name}"

    # ------------------------------------------------------------------------------------------------------- checkpoint

    @property
    def checkpoint(self) -> Path:
        return self.folder / f"checkpoint-{self.checkpoints}"

    def lose_files(self) -> str | None:
        """The newest, as a power cut does it that comes before they are on the disk."""
        found = read_checkpoint(self.checkpoint)
        if found.latest < 0:
            return None
        offsets = self.rng.choice((0, 0, 1, 1, 2, 3))
        commits = self.rng.choice((offsets, offsets, offsets + 1, 1, 2))
        self._forget("offsets", sorted(found.offsets)[len(found.offsets) - min(offsets, len(found.offsets)) :])
        lost = sorted(found.commits)
        self._forget("commits", lost[len(lost) - min(commits, len(lost)) :])
        return f"{offsets} of offsets, {commits} of commits"

    def _forget(self, kind: str, batches: Iterable[int]) -> None:
        for number in batches:
            for name in (str(number), f".{number}.crc"):
                (self.checkpoint / kind / name).unlink(missing_ok=True)

    def back_up(self) -> str | None:
        if not self.checkpoint.exists():
            return None
        target = self.folder / f"backup-{len(self.backups)}"
        shutil.copytree(self.checkpoint, target)
        self.backups.append((target, self.checkpoints))
        return target.name

    def restore(self) -> str | None:
        ours = [path for path, number in self.backups if number == self.checkpoints]
        if not ours:
            return None
        backup = self.rng.choice(ours)
        shutil.rmtree(self.checkpoint)
        shutil.copytree(backup, self.checkpoint)
        return backup.name

    def new_checkpoint(self) -> str:
        """A query of another id; with a producerId it takes that over."""
        self.checkpoints += 1
        starting = self.rng.choice(("earliest", "latest"))
        self.source = Source(self.source.topics, self.source.by_pattern, starting)
        return starting

    # ------------------------------------------------------------------------------------------------------------ query

    def run_query(self) -> str:
        self._take_a_way_out()
        way, before = self.way, read_checkpoint(self.checkpoint)
        error = self._copy(way)
        after = read_checkpoint(self.checkpoint)
        self.last_error = kind_of(error) if error else ""
        check = Check(self, way, before, after, str(error), self.last_error)
        check.run()
        done = f"{len(check.executed)} batches, {sum(map(len, check.written.values()))} rows"
        self.result.counts[f"ended with {self.last_error}" if error else "ended well"] += 1
        self.result.counts["batches"] += len(check.executed)
        return f"{way} {done}{', ' + self.last_error if error else ''}"

    def _copy(self, way: Way) -> Exception | None:
        asked = "subscribePattern" if self.source.by_pattern else "subscribe"
        what = "^in-" if self.source.by_pattern else ",".join(self.source.topics)
        read = {asked: what, "failOnDataLoss": str(way.fail_on_data_loss).lower()}
        read["startingOffsets"] = self.source.starting
        if self.limit is not None:
            read["maxOffsetsPerTrigger"] = str(self.limit)
        write = {"topic": SINK}
        if way.skip_older:
            write["onOlderBatch"] = "skip"
        if way.producer_id:
            write["producerId"] = way.producer_id
        try:
            self.engine.copy(self.url, self.checkpoint, read, write)
        except Exception as error:  # noqa: BLE001  judged by the caller
            return error
        return None

    def _take_a_way_out(self) -> None:
        """Mostly the remedy that the documentation gives for the last error."""
        error, knows = self.last_error, self.rng.random() < 0.8
        self.way = Way(fail_on_data_loss=self.rng.random() < 0.7, producer_id=self.way.producer_id)
        if not knows:
            return
        if error in ("DataLoss", "UnknownTopicOrPartition"):
            self.way.fail_on_data_loss = False
            if not self.source.by_pattern:
                for name in sorted(set(self.source.topics) - self.model.topics.keys()):
                    self._create(name)
        elif error == "SequenceConflict" and self.rng.random() < 0.5:
            self.way.skip_older = True
            self.way.fail_on_data_loss = False
        elif error in ("SequenceConflict", "ProducerFenced"):
            self.names += 1
            self.way.producer_id = f"copy-{self.names}"
            self.way.fail_on_data_loss = False
        elif error in KINDS[-2:]:
            found = read_checkpoint(self.checkpoint)
            self._forget("commits", [number for number in found.commits if number >= found.latest])

    def observe_sink(self) -> dict[str, list[str]]:
        """The values that were added to the sink, by key in the order of the log; they are in the model from now on."""
        described = self.log.admin.describe_topics().get(SINK)
        if described is None:
            return {}
        known = self.model.topics.get(SINK)
        if known is None or known.id != described.topic_id:
            self.model.create(SINK, described.topic_id, len(described.partitions))
        found: dict[str, list[str]] = defaultdict(list)
        places: dict[str, int] = {}
        for number, part in enumerate(self.model.topics[SINK].parts):
            table = self.log.read(SINK, partition=number, start=part.end, end="latest")
            for row in table.to_pylist():
                key, value = row["key"].decode(), row["value"].decode()
                require(places.setdefault(key, number) == number, f"rows of {key} are in two partitions of the sink")
                part.records.append(Record(key, value))
                found[key].append(value)
        return dict(found)

    # ------------------------------------------------------------------------------------------------------------ reads

    def read(self) -> str | None:
        name = self._some_topic() if self.rng.random() < 0.7 else SINK
        if name is None or name not in self.model.topics:
            return None
        if self.rng.random() < 0.4:
            return self._read_by_log(name)
        pending = self._load((name,), by_pattern=False)
        return self._check_frame(pending)

    def _read_by_log(self, name: str) -> str:
        number = self.rng.randrange(len(self.model.topics[name].parts))
        part = self.model.topics[name].parts[number]
        found = self.log.read(name, partition=number).to_pylist()
        expected = [(n, part.records[n].value.encode()) for n in range(part.start, part.end)]
        require([(row["offset"], row["value"]) for row in found] == expected, f"read of {name}-{number} differs")
        return f"{name}-{number}, {len(found)} rows"

    def load(self) -> str | None:
        by_pattern = self.rng.random() < 0.5
        name = self._some_topic()
        if name is None:
            return None
        self.frames.append(self._load(TOPICS if by_pattern else (name,), by_pattern=by_pattern))
        self.frames = self.frames[-5:]
        return f"{'pattern' if by_pattern else name}"

    def _load(self, topics: tuple[str, ...], *, by_pattern: bool) -> Pending:
        there = {tp: (topic, part) for tp, topic, part in self.model.named(topics)}
        fail = self.rng.random() < 0.5
        read = {"subscribePattern": "^in-"} if by_pattern else {"subscribe": topics[0]}
        read["failOnDataLoss"] = str(fail).lower()
        starts = None
        if self.rng.random() < 0.4:
            back = self.rng.randint(1, 4)
            read["startingOffsets"] = f"latest-{back}"
            starts = {tp: max(part.start, part.end - back) for tp, (_, part) in there.items()}
        ids = {tp.topic: topic.id for tp, (topic, _) in there.items()}
        ends = {tp: part.end for tp, (_, part) in there.items()}
        return Pending(self.engine.load(self.url, read), topics, by_pattern, fail, starts, ids, ends)

    def read_again(self) -> str | None:
        return self._check_frame(self.rng.choice(self.frames)) if self.frames else None

    def _check_frame(self, frame: Pending) -> str:
        """The rows of a frame, or its error, are what docs/spark-read.md promises for what happened since `load()`."""
        expected, losses = self._expected(frame)
        missing = [] if frame.by_pattern else [name for name in frame.topics if name not in self.model.topics]
        try:
            found = frame.frame.rows()
        except Exception as error:  # noqa: BLE001  judged here
            kind = kind_of(error)
            self.result.counts[f"a read ended with {kind}"] += 1
            if kind == "UnknownTopicOrPartition":
                require(bool(missing) and missing[0] in str(error), f"nothing explains {error}")
            else:
                require(kind == "DataLoss" and frame.fail and bool(losses), f"nothing explains {error}")
                require(any(name_of(loss.tp) in str(error) for loss in losses), f"{error} names none of {losses}")
            return kind
        require(not missing, f"a frame of {missing}, which is deleted, was read")
        require(not (losses and frame.fail), f"records are lost, and failOnDataLoss=true read on: {losses}")
        require(found == expected, f"a frame gave {found}, expected {expected}")
        return f"{len(found)} rows"

    def _expected(self, frame: Pending) -> tuple[list[Row], list[Loss]]:
        rows: list[Row] = []
        losses = []
        for tp, topic, part in self.model.named(frame.topics):
            start = part.start
            if frame.starts is not None:
                known = frame.ids.get(tp.topic) == topic.id
                start = frame.starts.get(tp, 0) if known else 0
                if start < part.start:
                    losses.append(Loss(tp, "trimmed"))
                    start = part.start
            rows += [Row(tp.topic, tp.partition, n, part.records[n].value) for n in range(start, part.end)]
        for tp, start in (frame.starts or {}).items():
            gone = self.model.living(tp.topic, frame.ids[tp.topic], tp.partition) is None
            if gone and start < frame.ends[tp]:
                losses.append(Loss(tp, "deleted"))
        return sorted(rows), losses

    # ---------------------------------------------------------------------------------------------------------- the log

    def check_log(self) -> None:
        """The log has the topics, partitions and offsets of the model."""
        described = self.log.admin.describe_topics()
        names = {name for name in described if not name.startswith("__")}
        require(names == self.model.topics.keys(), f"topics {sorted(names)}, expected {sorted(self.model.topics)}")
        for name, topic in self.model.topics.items():
            found = [(part.start, part.end) for part in described[name].partitions]
            expected = [(part.start, part.end) for part in topic.parts]
            require(found == expected, f"{name} has {found}, expected {expected}")
