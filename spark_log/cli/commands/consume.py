"""`pylog consume`."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from spark_log.cli.commands.topics import partitions_named
from spark_log.cli.common.base import LONG, PATTERN, POSITION, Failed, Verb, pass_session
from spark_log.cli.common.completion import complete_groups, complete_topics
from spark_log.cli.common.formats import FORMS, Printer, form_of_format, form_of_output
from spark_log.cli.common.output import RecordOutput, echo
from spark_log.cli.common.session import CommandSession
from spark_log.model import PROGRESS_TOPIC
from spark_log.positions import Earliest, Position
from spark_log.runtime.closed_pipe import discard_output

if TYPE_CHECKING:
    from types import FrameType

    import pyarrow as pa

    from spark_log.client.log import Log
    from spark_log.metadata.state import State
    from spark_log.model import TopicPartition

WAIT_SECONDS = 0.2
WAIT_MS = 200
COMMIT_MS = 1000


@contextmanager
def _reader_may_leave() -> Iterator[None]:
    """A reader that closes the pipe, as `head` does, has all that it wants: the command ends with success."""
    try:
        yield
    except BrokenPipeError:
        discard_output()


@click.command(cls=Verb)
@click.argument("topic", required=False, shell_complete=complete_topics)
@click.option(
    "--include", type=PATTERN, metavar="REGEX", help="Consume all topics whose whole name matches, instead of one."
)
@click.option(
    "-g",
    "--group",
    metavar="GROUP",
    shell_complete=complete_groups,
    help="Start at the committed offsets of this group, and commit.",
)
@click.option("-o", "--offset", "position", type=POSITION, help="Start at this position instead.")
@click.option("-p", "--partition", type=LONG, metavar="N", help="Consume this partition only.")
@click.option("-n", "--count", type=click.IntRange(min=0), metavar="N", help="Stop after N records.")
@click.option("-f", "--format", "form", metavar="FORMAT", help=f"How to print a record: {FORMS}.  The default is %v.")
@click.option("--follow", is_flag=True, help="Wait for more records at the end.")
@click.option(
    "--latest",
    is_flag=True,
    help="Print only the latest record of each key, and leave out deleted keys.",
)
@click.option("--client-rack", metavar="NAME", help="Read from the brokers in this rack first.")
@pass_session
@_reader_may_leave()
def consume(
    session: CommandSession,
    topic: str | None,
    include: re.Pattern[str] | None,
    group: str | None,
    position: Position | None,
    partition: int | None,
    count: int | None,
    form: str | None,
    follow: bool,
    latest: bool,
    client_rack: str | None,
) -> None:
    """Print the records of a topic, from the earliest to the end.

    Consumers that use the same group through a coordinator at the same time share the partitions.  With --partition
    there is no sharing.  Offsets of printed records are committed once a second and on exit, including Ctrl-C and
    SIGTERM.  --output json, yaml and csv print whole records; values of a topic with a schema are objects in JSON and
    YAML.  With --follow, the command waits for a topic that is deleted.  It reads one that is created again from its
    start.

    \b
    Example:
      pylog consume orders -o latest-100 -f '%p:%o %k %v\\n' --follow
      pylog consume --include 'orders|payments' -f '%t %v\\n'
      pylog consume customers --latest -f '%k %v\\n'
    """
    wanted = WantedTopics(topic, include)
    log: Log | None = None

    def is_typed(name: str) -> bool:
        assert log is not None, "records come from it"
        state = log.journal.state
        return state.names.get(name) in state.schemas

    columns, header, write = (
        form_of_output(session.output, is_typed) if form is None else form_of_format(form, is_typed)
    )
    log = session.connect(client_rack=client_rack or "")
    if latest:
        if topic is None or group is not None or position is not None or follow:
            raise click.UsageError("--latest needs TOPIC, and excludes --include, --group, --offset and --follow")
        with suppress(KeyboardInterrupt):
            _print_latest(log, topic, partition, columns, header, write, count)
        return
    RecordOutput().writelines([header])
    if include is not None and not follow and not wanted.matching(log.journal.refresh()):
        echo(f"no topic matches {include.pattern!r}: the whole name must match, as in 'aud.*'", err=True)
        return
    if topic == PROGRESS_TOPIC:
        if group is not None:
            raise click.UsageError(f"--group: no group has a position in {topic}; give --offset to start at a position")
        with suppress(KeyboardInterrupt):
            _print_progress(log, partition, position or Earliest(), columns, write, count, follow)
        return
    _Consumption(log, wanted, partition, group, position).print(columns, write, count, follow)


def _print_latest(
    log: Log,
    topic: str,
    partition: int | None,
    columns: Sequence[str],
    header: bytes,
    write: Printer,
    count: int | None,
) -> None:
    """Print the latest record of each key."""
    from spark_log.client.reader.latest import scan_latest

    partitions = None if partition is None else [partition]
    batches, out, left = scan_latest(log.journal, topic, partitions, "latest", columns, None), RecordOutput(), count
    out.writelines([header])
    while left != 0 and (batch := next(batches, None)) is not None:
        out.writelines(write(batch.slice(0, left)))
        left = None if left is None else max(0, left - batch.num_rows)
    out.flush()


def _print_progress(
    log: Log,
    partition: int | None,
    position: Position,
    columns: Sequence[str],
    write: Printer,
    count: int | None,
    follow: bool,
) -> None:
    """Print the committed offsets of groups; with `follow` also later commits."""
    from spark_log.client.reader.followed_log import FollowedLog
    from spark_log.client.reader.scan_batches import scan_schema
    from spark_log.metadata.groups.consumer_offsets import progress_of, progress_partitions, to_batch
    from spark_log.model import TopicPartition

    schema, out, left = scan_schema(columns), RecordOutput(), count
    progress = progress_of(log.journal.refresh())
    numbers = progress_partitions(None if partition is None else [partition])
    starts = progress.offsets_of(dict.fromkeys(numbers, position), log.journal.context.clock.now_ms())
    followed, absence = FollowedLog(log.journal.state), Absence(follow)
    while True:
        ends = dict.fromkeys(numbers, progress.end)
        records = progress.between(starts, ends)[:left]
        out.writelines(write(to_batch(records, schema)))
        out.flush()
        left = None if left is None else left - len(records)
        if not follow or left == 0:
            return
        if not records:
            time.sleep(WAIT_SECONDS)
        state = log.journal.state
        with absence.waited_for():
            state = log.journal.poll()
        reached = {TopicPartition(PROGRESS_TOPIC, n): ((PROGRESS_TOPIC, n), end) for n, end in ends.items()}
        moved = followed.moved(state, reached)
        starts, progress = ends | {tp.partition: at for tp, at in moved.items()}, progress_of(state)


class Absence:
    """A command that follows a log waits while its folder or partition is gone, as `tail -F` does, and says so once."""

    def __init__(self, follow: bool) -> None:
        self._follow = follow
        self._told = False

    @contextmanager
    def waited_for(self) -> Iterator[None]:
        """The body is left if the folder or the partition is gone.  Raises the error of that without --follow."""
        from spark_log.errors import LogRestored, UnknownTopicOrPartition, WrongRoot

        try:
            yield
            self._told = False
        except (LogRestored, UnknownTopicOrPartition, WrongRoot) as error:
            if not self._follow:
                raise
            if not self._told:
                echo(f"pylog: {error}: waiting for it", err=True)
            self._told = True
            time.sleep(WAIT_SECONDS)


class WantedTopics:
    """The topics to consume: one, or those that match a pattern.  Raises a usage error for both and for neither."""

    def __init__(self, topic: str | None, include: re.Pattern[str] | None) -> None:
        if (topic is None) == (include is None):
            raise click.UsageError("give either TOPIC or --include REGEX")
        self.topic, self.include = topic, include

    def partitions(self, log: Log, partition: int | None) -> list[TopicPartition]:
        """Raises UnknownTopicOrPartition if the given partition does not exist."""
        if self.topic is not None:
            return partitions_named(log, self.topic, partition)
        topics = self.matching(log.journal.refresh())
        return [tp for topic in topics for tp in partitions_named(log, topic, partition)]

    def matching(self, state: State) -> list[str]:
        if self.include is None:
            return [str(self.topic)]
        return [name for name in sorted(state.names) if self.include.fullmatch(name)]


@contextmanager
def _ended_by_sigterm() -> Iterator[threading.Event]:
    """SIGTERM ends the body like Ctrl-C, so that the consumer leaves its group immediately.

    A second signal does not interrupt that: `timeout` sends two, to its child and to its process group.  The event is
    set, too: an exception that a signal raises is lost if Python is in a callback then.
    """
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ended.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield ended
    finally:
        signal.signal(signal.SIGTERM, before)


class _Consumption:
    """One run of `pylog consume`: a consumer, of a group or of none, that is also its own rebalance listener."""

    def __init__(
        self, log: Log, wanted: WantedTopics, partition: int | None, group: str | None, position: Position | None
    ) -> None:
        self._log = log
        self._group = group
        self._position = position
        self._by_hand = wanted.partitions(log, partition)
        """Partitions to assign; none if topics are subscribed to."""
        self._unplaced = set(self._by_hand)
        """Partitions to move to the requested position.  Others were created later: they are read from their start."""
        self._ends: dict[TopicPartition, int] | None = None
        """End offsets to print up to without --follow; None: the assignment is not known, or has changed."""
        self._printed: dict[TopicPartition, int] = {}
        """Offsets up to which everything was printed."""
        self._consumer = log.consumer(
            group_id=group,
            client_id="pylog-consume",
            auto_offset_reset="earliest",
            auto_commit_interval_ms=COMMIT_MS,
            partition_assignment_strategy=["cooperative-sticky"],
            value_format="json",
        )
        if partition is None:
            self._by_hand.clear()
            self._subscribe(wanted)
        else:
            self._assign()

    def _subscribe(self, wanted: WantedTopics) -> None:
        if wanted.include is None:
            self._consumer.subscribe([str(wanted.topic)], listener=self)
        else:
            self._consumer.subscribe(pattern=wanted.include.pattern, listener=self)

    def _assign(self) -> None:
        self._consumer.assign(self._by_hand)
        self.on_partitions_assigned(self._by_hand)

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        from spark_log.client.reader.positions_to_offsets import resolve_starts

        if self._position is not None:
            new = self._unplaced.intersection(partitions)
            for tp, offset in resolve_starts(self._log.journal, dict.fromkeys(new, self._position)).items():
                self._consumer.seek(tp, offset)
            self._unplaced -= new
        self._ends = self._consumer.end_offsets(self._consumer.assignment())

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._ends = None  # the next assignment sets it

    def print(self, columns: Sequence[str], write: Printer, count: int | None, follow: bool) -> None:
        """Print records until the end or the count is reached.  A group commits exactly the printed records."""
        from spark_log.errors import IllegalGeneration

        with _ended_by_sigterm() as ended:
            try:
                with suppress(KeyboardInterrupt):
                    self._print(columns, write, count, follow, ended)
            except IllegalGeneration as error:
                if error.accepted_loss:
                    raise
                raise Failed(
                    f"another consumer took over group {self._group!r}: run the command again to take it back. Records that "
                    "were printed last may be printed again"
                ) from error
            finally:
                self._close()

    def _print(
        self, columns: Sequence[str], write: Printer, count: int | None, follow: bool, ended: threading.Event
    ) -> None:
        out, left, absence = RecordOutput(), count, Absence(follow)
        while not ended.is_set() and (left is None or left > 0) and (follow or not self._is_done()):
            with absence.waited_for():
                table = self._poll(left)
                for batch in table.select(columns).to_batches():
                    out.writelines(write(batch))
                out.flush()
                left = None if left is None else left - table.num_rows
                if not follow and not table.num_rows:
                    self._lower_ends()
                if self._group is not None:
                    self._printed = {tp: self._consumer.position(tp) for tp in self._consumer.assignment()}

    def _poll(self, most: int | None) -> pa.Table:
        """Some records; a group commits those of the poll before."""
        from spark_log.errors import UnknownTopicOrPartition

        try:
            return self._consumer.poll_arrow(WAIT_MS, max_records=most)
        except UnknownTopicOrPartition:
            if not self._by_hand:
                raise
            self._assign()  # the topic may have been created again
            return self._consumer.poll_arrow(WAIT_MS, max_records=most)

    def _lower_ends(self) -> None:
        """The log may have been set back, and not reach these ends.  Raises LogRestored while it lacks versions."""
        if self._ends:
            now = self._consumer.end_offsets(self._ends)
            self._ends = {tp: min(end, now[tp]) for tp, end in self._ends.items()}

    def _is_done(self) -> bool:
        ends = self._ends
        return ends is not None and all(self._consumer.position(tp) >= end for tp, end in ends.items())

    def _close(self) -> None:
        from spark_log.errors import IllegalGeneration, RebalanceInProgress

        mine = {tp: self._printed[tp] for tp in self._consumer.assignment() if tp in self._printed}
        try:
            if mine:
                self._consumer.commit(mine)
        except (IllegalGeneration, RebalanceInProgress):
            echo("pylog: the last records are not committed: the group's next consumer will print them again", err=True)
        finally:
            self._consumer.close(autocommit=False)
