"""The true content of a simulated log, and the promises that are checked at every step.

After each record and each version, the rules of `metadata/invariants` hold as well; a violation begins with the name of
its rule.

acked       an acknowledged commit is in the log at that moment, at the acknowledged offsets
failed      a commit that was certainly refused never appears
twice       no commit and no object appears twice
offsets     every partition is gap-free, and a read at a version returns exactly the records of that version
dangling    no object that the state refers to is deleted, and every reference has its object
counts      the objects' counts of live slices equal a recount
open        the newest two checkpoints and all records above the older one exist
grace       an object dropped less than the fence age ago (minus the clock skew) exists, and so does a record above the
            fence
state       the result of a load, and the content of a checkpoint, is the fold of the log at that version
decided     a batch takes effect only directly after the state on which it was decided, and none of its records is void
fenced      a fenced producer or holder commits nothing, and neither does a consumer of an older generation; epochs and
            generations are never reused, whatever was forgotten in between
clock       no batch is stamped by a clock that is far ahead
timeout     no transaction commits after its timeout
expired     no producer is forgotten before its retention time
covered     a swap that omits records is void
trimmed     a partition starts at an offset that a trim requested
retained    retention removes what is too old or too large, and nothing else; a slice of which records were removed is
            not older than the records that are left, nor younger than all that it had
compacted   the latest record of a key is there, or it is a tombstone whose time is over, and no older one is there;
            before the cleaner point, keys are unique; a stream sees the latest record of each key
young       a pass leaves out records that are too young
erased      after an erasure has ended, no read finds its records, and a fence age later no object has a copy; one that
            was killed ends when it is run again; it removes nothing else, and moves no record
fresh       a view that is read has everything that was in the log when the read began
idle        an idle log keeps nothing unneeded, and writes nothing (`idle.py`)
positions   positions of a fenced group never go back
progress    a reader of progress records has the same positions as the groups
led         while a coordinator leads, only that coordinator writes; every takeover has a new epoch
begun       where objects are, no other log begins after `meta/`, or `meta/format`, was lost
skipped     a reader's position in a topic is not beyond what it has read there, if the topic was created again, too
whole       a mirror is the log at an earlier version, whenever it is killed, and the log of that version when recovered
histories   in a restored log, no reader skips a record, and none is beyond the copy without being told (`restored.py`)
held        a group passes to another member only after the session of its owner has expired
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace as with_values

from simulation.log_sim.constants import CLOCK_SKEW_MAX_MS, Constants
from simulation.log_sim.content import Codec, PlacedRows, Row, has_keys, is_compacted
from simulation.log_sim.memoized_functions import MemoizedFunctions
from simulation.log_sim.promises.compacted import Compacted
from simulation.log_sim.promises.delivered import Delivered
from simulation.log_sim.promises.erased import Erased
from simulation.log_sim.promises.identities import Identities, Identity, identity
from simulation.log_sim.promises.retained import Retained
from simulation.verdict import Violation
from spark_log.configs.settings import cluster_config
from spark_log.journal.storage.opening import KEPT_CHECKPOINTS, View
from spark_log.metadata import records as r
from spark_log.metadata import replay
from spark_log.metadata.commits.decide_commits import Committed
from spark_log.metadata.formats.slice_index import decode_piece, slices_of
from spark_log.metadata.groups.consumer_offsets import PARTITIONS, progress_of
from spark_log.metadata.invariants import check_state, check_step
from spark_log.metadata.invariants.partitions import count_references, wrong_counts
from spark_log.metadata.records import Piece
from spark_log.metadata.state import GroupState, State, TopicKey
from spark_log.model import Slice
from spark_log.store.object_names import CHECKPOINTS, DATA, LOG, checkpoint_version

LINK = b"link "
"""The prefix of a checkpoint that refers to another one: the name, a line end, then the checkpoint.  Only a mutation
writes it.
"""


class Oracle:
    """A batch counts if its version directly follows the last one that counts."""

    def __init__(
        self, codec: Codec, grace: int, constants: Constants, ahead_ms: int, memoized: MemoizedFunctions
    ) -> None:
        """
        ahead_ms:  how far the clock of a process may be ahead.
        """
        self.files: Mapping[str, Mapping[str, Any]] = {}
        self.states = [memoized.state_in(None, "")]
        self.memoized = memoized
        self._compared: dict[int, State] = {}
        """States that are those of the log, by their identities."""
        self.rows: dict[TopicKey, list[Row]] = {}
        self.committed: dict[Identity, tuple[int, dict[TopicKey, range]]] = {}
        self.failed: set[str] = set()
        self.seen = Counter[str]()
        self.damaged: dict[str, int] = {}
        """Checkpoints, and when they were damaged."""
        self._refused_payloads: set[str] = set()
        self.identities = Identities(constants)
        self.retained = Retained(self._read_piece)
        self.compacted = Compacted(ahead_ms)
        self.erased = Erased()
        self.delivered = Delivered()
        self._codec, self._grace, self._answer_ms = codec, grace, constants.answer_ms
        self._named: dict[str, int] = {}
        self._dropped_at: dict[str, int] = {}
        self._positions: dict[tuple[str, str, int], int] = {}
        self._followed: dict[str, str | None] = {}
        self._leaders: dict[int, str] = {}
        self._leads = self._last_leader = 0
        self._inside: dict[Piece, list[Slice]] = {}

    @property
    def state(self) -> State:
        return self.states[-1]

    # ---------------------------------------------------------------------------------------------- what the store does

    def written(self, key: str, content: Any, decided: State | None, now: int) -> None:
        if key.startswith(CHECKPOINTS):
            self.seen["checkpoints"] += 1
            self.check_state(self.memoized.state_in(unlinked(content), key), key)
        elif key.startswith(LOG):
            if int(key.removeprefix(LOG)[:20]) == self.state.version + 1:
                self._place(self.memoized.decode_batch(content, key), decided, now)
            else:
                self.seen["leftovers"] += 1

    def deleted(self, key: str, now: int) -> None:
        self.seen["deletes"] += 1
        newest = sorted(self.files[CHECKPOINTS])[-KEPT_CHECKPOINTS:]
        older = newest[0] if len(newest) == KEPT_CHECKPOINTS else ""
        if key.startswith(DATA):
            if key in self.referenced():
                raise Violation(f"dangling: {key} deleted, version {self.state.version} refers to it")
            if key in self.state.dropped_lists:
                raise Violation(f"dangling: {key} deleted, version {self.state.version} has it as a list")
            if now < self._dropped_at.get(key, 0) + self._grace:
                raise Violation(f"grace: {key} deleted {now - self._dropped_at[key]} ms after it was dropped")
        elif key.startswith(LOG):
            version = int(key.removeprefix(LOG)[:20])
            if version > checkpoint_version(older):
                raise Violation(f"open: {key} deleted, the newest checkpoints are {newest}")
            if version > self.state.fence:
                raise Violation(f"grace: {key} deleted, the fence is at {self.state.fence}")
        elif not key.startswith(CHECKPOINTS):
            return
        elif key > older:
            raise Violation(f"open: {key} deleted, one of the newest checkpoints")
        elif any(linked(self.files[CHECKPOINTS][name]) == key for name in newest):
            raise Violation(f"open: {newest} need {key}")

    def _place(self, batch: r.Batch, decided: State | None, now: int) -> None:
        state = replay.next_version(self.state, batch.time)
        if batch.time > now + CLOCK_SKEW_MAX_MS:
            raise Violation(
                f"clock: version {state.version} is stamped {batch.time - now} ms ahead of the store's clock"
            )
        if decided is not None and decided != replay.next_version(self.state, decided.time):
            raise Violation(f"decided: version {state.version} was decided on another state")
        check_rules(check_step(self.state, state))
        for record in batch.records:
            self._check_led(record, batch.epoch)
            if isinstance(record, r.JoinGroupRecord):
                self._check_free(record, state, batch.time)
            after = replay.replay_records(state, [record])
            self.seen[type(record).__name__] += 1
            if after is state:
                raise Violation(f"decided: {type(record).__name__} at version {state.version} is void")
            check_rules(check_step(state, after))
            self._note(record, state, after)
            if isinstance(record, r.CleanedRecord):
                self._note_cleaned(record, state, after, now)
            state = after
        before = self.state
        self.states.append(state := self.memoized.replay(before, batch))
        check_rules(check_step(before, state))
        check_rules(check_state(state))
        for name in self.memoized.objects(before).keys() - self.memoized.objects(state).keys():
            self._dropped_at[name] = now
        self._check_counts()
        self.retained.check(state)
        if state.progressed > before.progressed:
            self._follow(before.progressed + 1)

    def _follow(self, start: int) -> None:
        """Check the next step of a reader of progress records."""
        progress = progress_of(self.state)
        starts, ends = dict.fromkeys(range(PARTITIONS), start), dict.fromkeys(range(PARTITIONS), progress.end)
        self._followed |= {record.key: record.value for record in progress.between(starts, ends)}
        known = {key: value for key, value in self._followed.items() if value is not None}
        if known != {record.key: record.value for record in progress.records if record.value is not None}:
            raise Violation(f"progress: records from {start} on do not lead to the positions of {progress.version}")

    # -------------------------------------------------------------------------------------------------- what records do

    def _note(self, record: r.AnyRecord, before: State, after: State) -> None:
        match record:
            case r.CommitRecord():
                self._note_commit(record, after)
            case r.InitProducerRecord():
                self.identities.init(record, after)
            case r.ExpireProducersRecord():
                configs = ("streaming.identity.retention.ms", "producer.id.expiration.ms")
                stream, plain = (cluster_config(before.configs, name) for name in configs)
                self.identities.expire(record, before, after, (stream, plain))
            case r.JoinGroupRecord():
                self.identities.next_generation(record.group, after.groups[record.group].generation)
            case r.GroupGenerationRecord():
                self.identities.next_generation(record.group, record.roster.generation)
            case r.CommitOffsetsRecord():
                self._note_positions(record.commits)
            case r.DeleteOffsetsRecord() | r.DeleteTopicRecord():
                self._positions = {
                    (group, topic_id, number): offset
                    for (group, topic_id, number), offset in self._positions.items()
                    if group in after.groups and (topic_id, number) in after.groups[group].offsets
                }
            case r.TrimRecord():
                self.retained.place(record, before)
            case r.SwapRecord():
                self._note_swap(record, before)
            case r.ListDroppedRecord():
                self._check_there([record.object])

    def _new_slices(self, change: r.Change, before: State) -> list[Slice]:
        inside = [piece for entry in change.pieces for piece in self._read_piece(entry)]
        return [piece for piece in [*change.slices, *inside] if piece.object not in before.objects]

    def _note_cleaned(self, record: r.CleanedRecord, before: State, after: State, now: int) -> None:
        for one in record.partitions:
            rows = self.rows[one[:2]]
            self.compacted.check_pass(one, before, rows, self.erased.removable(one[:2], rows), now)
        self.compacted.place(record, after)

    def _note_swap(self, swap: r.SwapRecord, before: State) -> None:
        for change in swap.changes:
            if has_keys(change[:2]):
                for piece in self._new_slices(change, before):
                    self.retained.check_time(change[:2], piece, self._rows_in(change[:2], piece))
            self._check_there(piece.object for piece in change.slices)
            self._check_there(piece.object for piece in change.pieces)
            part, deleted = before.partitions[change[:2]], before.topics[change.topic_id].deleted
            if change.slices and change.end > part.start and not deleted:
                short = with_values(swap, changes=(change._replace(slices=change.slices[:-1], pieces=()),))
                if replay.replay_records(before, [short]) is not before:
                    raise Violation(f"covered: a swap that leaves out records of {change[:2]} is not void")

    def _rows_in(self, key: TopicKey, piece: Slice) -> list[Row]:
        content = self.files[DATA][piece.object][piece.position : piece.position + piece.length]
        return [row for _, row in self._codec.decode(content, piece, key)]

    def _check_led(self, record: r.AnyRecord, epoch: int) -> None:
        if isinstance(record, r.TakeOverRecord):
            if record.epoch != self._last_leader + 1:
                raise Violation(f"led: {record.address} took over with epoch {record.epoch} after {self._last_leader}")
            self._leads = self._last_leader = record.epoch
            self._leaders[record.epoch] = record.address
        elif isinstance(record, r.ReleaseRecord):
            self._leads, self._last_leader = 0, record.epoch
        elif epoch != self._leads:
            raise Violation(f"led: a {type(record).__name__} was written with epoch {epoch}, {self._leads} has the log")

    def _check_free(self, join: r.JoinGroupRecord, before: State, now: int) -> None:
        group = before.groups.get(join.group, GroupState())
        if group.session is None or join.token == group.session.token:
            return
        if now < group.seen + group.session.timeout_ms:
            raise Violation(f"held: {join.group} was taken from {group.session.token} at {now}, seen at {group.seen}")
        self.seen["takeovers"] += 1

    def _note_commit(self, commit: r.CommitRecord, after: State) -> None:
        who = identity(commit)
        if who in self.committed:
            raise Violation(f"twice: {who} is in the log twice")
        for o in commit.objects:
            if o.name in self._named:
                raise Violation(f"twice: {o.name} of {who} was committed at version {self._named[o.name]} before")
            if o.name in self.failed:
                raise Violation(f"failed: {who} was refused and is in the log")
            self._named[o.name] = after.version
        self._check_there(o.name for o in commit.objects)
        self.identities.commit(commit, after)
        self.committed[who] = after.version, self._append(commit, after)
        self._note_positions(commit.groups)

    def _append(self, commit: r.CommitRecord, after: State) -> dict[TopicKey, range]:
        ranges: dict[TopicKey, range] = {}
        for topic_id, number, piece in self._slices(commit):
            key = (topic_id, number)
            rows = self.rows.setdefault(key, [])
            start = ranges[key].start if key in ranges else len(rows)
            new = self._rows_in(key, piece)
            if refused := self._refused_payloads & {row.payload for row in new}:
                raise Violation(f"failed: {refused} was refused and is in the log")
            rows += new
            self.retained.append(key, new, after)
            ranges[key] = range(start, len(rows))
        return ranges

    def has_pieces(self, state: State) -> bool:
        """Whether a state refers to index objects, which may be deleted before they are read."""
        return any(isinstance(entry, Piece) for part in state.partitions.values() for entry in part.entries)

    def _slices(self, commit: r.CommitRecord) -> Iterator[tuple[str, int, Slice]]:
        for number, run in commit.slices:
            name = commit.objects[number].name
            yield (
                run.topic_id,
                run.partition,
                Slice(0, run.rows, name, run.position, run.length, run.crc, run.batches, run.min_us, run.max_us),
            )
        for topic_id, partition, piece in commit.pieces:
            for inner in self._read_piece(piece):
                yield topic_id, partition, inner

    def _note_positions(self, commits: tuple[r.GroupCommit, ...]) -> None:
        self.delivered.check(commits)
        for commit in commits:
            if commit.generation == -1:
                continue
            if commit.generation != self.identities.generation(commit.group):
                raise Violation(f"fenced: generation {commit.generation} of {commit.group} committed positions")
            for entry in commit.offsets:
                key = (commit.group, entry.topic_id, entry.partition)
                if entry.offset < self._positions.get(key, 0):
                    raise Violation(f"positions: {key} went back from {self._positions[key]} to {entry.offset}")
                self._positions[key] = entry.offset

    # -------------------------------------------------------------------------------------------- what actors were told

    def check_view(self, view: View, since: int = 0) -> None:
        """An actor has read a view.  since: version of the log when the read began."""
        self.check_state(view.state, "a load")
        if view.state.version < since:
            raise Violation(
                f"fresh: a load ended at version {view.state.version}, the log was at {since} when it began"
            )

    def ack(self, commit: r.CommitRecord, reply: Committed) -> None:
        """A writer got the acknowledgement of a commit, with its offsets."""
        if identity(commit) not in self.committed:
            raise Violation(f"acked: {identity(commit)} is not in the log")
        version, ranges = self.committed[identity(commit)]
        if reply.repeated:
            self.identities.recall(commit, reply, self.state.time)
        if (reply.ranges or not reply.repeated) and (reply.version, reply.ranges) != (version, ranges):
            raise Violation(f"acked: {identity(commit)} is at {version} {ranges}, not at {reply}")
        self.seen["acked"] += 1

    def ack_leader(self, epoch: int, address: str) -> None:
        """A coordinator got the acknowledgement that it leads."""
        if self._leaders.get(epoch) != address:
            raise Violation(
                f"led: {address} thinks that it leads with epoch {epoch}, which is {self._leaders.get(epoch)}"
            )

    def ack_generation(self, group: str, generation: int) -> None:
        if generation > self.identities.generation(group):
            raise Violation(f"acked: generation {generation} of {group} is not in the log")

    def refuse(self, commit: r.CommitRecord) -> None:
        """A writer was told that a commit certainly failed."""
        if identity(commit) in self.committed and self._named_by(commit):
            raise Violation(f"failed: {identity(commit)} was refused and is in the log")
        self.failed.update(o.name for o in commit.objects)
        self.seen["refused"] += 1

    def ack_rows(self, rows: Sequence[Row], offsets: Mapping[TopicKey, range]) -> None:
        """A client got the offsets of its rows; none if they were forgotten before its retry was answered."""
        found = [row for key, span in offsets.items() for row in self.rows.get(key, [])[span.start : span.stop]]
        if not offsets and self.state.time > rows[0].time_ms + self._answer_ms:
            found = [row for kept in self.rows.values() for row in kept if row.payload == rows[0].payload]
        if sorted(found) != sorted(rows):
            raise Violation(f"acked: {rows[0].payload} is not at {dict(offsets)}")
        self.seen["acked"] += 1

    def refuse_rows(self, rows: Sequence[Row]) -> None:
        """A client was told that its rows are certainly not in the log."""
        self._refused_payloads.add(rows[0].payload)
        if any(row.payload == rows[0].payload for kept in self.rows.values() for row in kept):
            raise Violation(f"failed: {rows[0].payload} was refused and is in the log")
        self.seen["refused"] += 1

    def _named_by(self, commit: r.CommitRecord) -> bool:
        return any(o.name in self._named for o in commit.objects)

    def check_read(self, key: TopicKey, start: int, rows: list[Row]) -> None:
        """A reader got these rows at offset `start`."""
        if self.rows.get(key, [])[start : start + len(rows)] != rows:
            raise Violation(f"offsets: {key} from {start} is not what was committed")

    def check_partition(self, key: TopicKey, state: State, found: PlacedRows) -> None:
        """A reader got these rows of a whole partition at a version."""
        part, rows = state.partitions[key], self.rows.get(key, [])
        offsets = [offset for offset, _ in found]
        erased = self.erased.removable(key, rows)
        self.erased.check(key, state.version, rows, offsets)
        if any(rows[offset] != row for offset, row in found):
            raise Violation(f"offsets: {key} is not what was committed")
        if is_compacted(key):
            self.compacted.check(key, state, rows, offsets, erased)
        elif offsets != sorted(set(offsets)) or set(range(part.start, part.end)) - erased - set(offsets):
            raise Violation(f"offsets: {len(rows)} rows of {key} in [{part.start}, {part.end})")

    # ----------------------------------------------------------------------------------------------------------- checks

    def check_state(self, state: State, where: str) -> None:
        if id(state) in self._compared:
            return
        if state.version >= len(self.states) or self.states[state.version] != state:
            raise Violation(f"state: {where} at version {state.version} is not the fold of the log")
        self._compared[id(state)] = state

    def _check_there(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.files[DATA]:
                raise Violation(f"dangling: version {self.state.version + 1} names {name}, which does not exist")

    def _check_counts(self) -> None:
        if wrong := sorted(wrong_counts(self.state, self.referenced())):
            raise Violation(f"counts: version {self.state.version} has {wrong}")
        for key, rows in self.rows.items():
            part = self.state.partitions.get(key)
            if part is not None and part.end != len(rows):
                raise Violation(f"offsets: {key} ends at {part.end}, not at {len(rows)}")

    def referenced(self) -> Counter[str]:
        """Live slices by object, counted from the entries and from what is in indexes."""
        return count_references(self.state, self._read_piece)

    def _read_piece(self, piece: Piece) -> list[Slice]:
        known = self._inside.get(piece)
        if known is None:
            if piece.object not in self.files[DATA]:
                raise Violation(f"dangling: version {self.state.version} refers to {piece.object}, which is gone")
            data = self.files[DATA][piece.object][piece.position : piece.position + piece.length]
            known = self._inside[piece] = slices_of(decode_piece(piece, data))
        return known


def check_rules(broken: Iterable[str]) -> None:
    """Raises Violation for the first rule of `metadata/invariants` that is broken."""
    for text in broken:
        raise Violation(text)


def linked(content: bytes) -> str:
    """The checkpoint that a checkpoint refers to."""
    return content.partition(b"\n")[0].removeprefix(LINK).decode() if content.startswith(LINK) else ""


def unlinked(content: bytes) -> bytes:
    return content.partition(b"\n")[2] if content.startswith(LINK) else content
