"""Records of the metadata log that are there, and of which the log has another one in their versions, or none.

A client wrote after versions were lost, and then a later checkpoint was copied back: its record was replaced.  Or later
records were copied back: each names the batch that it follows, which is another one by now, so they are void.  In both
cases acknowledged records are not in the log.  A state knows the batches of its last versions (`State.line`).  A record
behind the end of the log, which no version leads to, is one of them, too (`storage/beyond_the_end.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from spark_log.errors import CorruptObject, SparkLogError
from spark_log.journal.lost_versions import GIVE_UP, LostVersions, note_loss, unnamed_in, versions_text
from spark_log.journal.storage.beyond_the_end import records_beyond
from spark_log.journal.storage.log_identity import restored_error
from spark_log.journal.storage.opening import WAVE_MAX, View, open_again, open_view, was_kept
from spark_log.journal.store_operations import Get, List, Steps
from spark_log.metadata.formats.batch_format import decode_batch
from spark_log.metadata.lines import mark_of
from spark_log.metadata.records import Batch, CommitRecord
from spark_log.metadata.restores import is_former
from spark_log.metadata.state import State
from spark_log.store.object_names import CHECKPOINTS, LOG, checkpoint_version, log_key, log_version
from spark_log.text import counted

MOVE = (
    "`pylog segment dump --records OBJECT` shows records, which you can append again. `pylog repair` moves the file away, "
    f"and its objects are kept until you run {GIVE_UP}"
)


class OtherLine(NamedTuple):
    """A record that is not of this log."""

    key: str
    version: int
    rows: int
    objects: tuple[str, ...]
    """The objects that this record names and the log does not."""
    end: int | None = None
    """Where the log ends, if that is before this version."""

    @property
    def text(self) -> str:
        what = f", with {counted(self.rows, 'record')} in {', '.join(self.objects)}" if self.objects else ""
        if self.end is not None:
            missing = versions_text(self.end + 1, self.version - 1)
            return (
                f"the log ends at version {self.end}, and {missing} before this one {'is' if missing[7] == ' ' else 'are'} not there: "
                f"a client that used the log while its folder was set back to an older copy has left this file, so the changes in it do not count{what}. If "
                f"nobody set the log back, these versions are lost: stop all clients and copy them from a copy or a mirror of the log"
            )
        return (
            f"the log has another version {self.version}: clients wrote after versions were lost, and files of a copy were put "
            f"beside theirs, so the changes in this file do not count{what}"
        )


def records_of_other_lines(state: State) -> Steps[list[OtherLine]]:
    """The records among the last versions of a state that are not those which it has replayed, in order."""
    found = yield from _not_of(state, (yield List(LOG)))
    if not found:
        return []
    # A record may have been deleted meanwhile, and a put that comes late may have taken its name.
    state = (yield from open_view()).state
    others = list[OtherLine]()
    for name, batch in (yield from _not_of(state, found)).items():
        others.append((yield from _other(state, batch, name)))
    return others


def _not_of(state: State, names: Iterable[str]) -> Steps[dict[str, Batch]]:
    """The records among `names` that a state does not have, and that nobody has deleted up to now."""
    names = [*names]
    first, found = state.version - len(state.line) + 1, {**(yield from records_beyond(state, names)).strays}
    names = [name for name in names if first <= (at := log_version(name)) <= state.version or at in state.strays]
    for at in range(0, len(names), WAVE_MAX):
        few = names[at : at + WAVE_MAX]
        for name, data in zip(few, (yield [Get(name) for name in few]), strict=True):
            with suppress(SparkLogError):  # `verify` reports a damaged one
                batch = None if data is None else decode_batch(data, name)
                if batch is not None and not _is_of(state, batch, log_version(name)):
                    found[name] = batch
    checkpoints = (yield List(CHECKPOINTS)) if found else []
    return {
        name: batch
        for name, batch in found.items()
        if (version := log_version(name)) > state.fence or was_kept(version, checkpoints)
    }


def in_line(view: View) -> Steps[View]:
    """The view, or the log opened again if a record after the newest checkpoint is another one by now.

    That of the view's version may have been lost, and copied back behind records that others wrote meanwhile.
    Raises LogRestored if the log has fewer versions.
    """
    state, known = view.state, checkpoint_version(view.checkpoint)
    versions = (version for version in range(known + 1, state.version + 1) if version not in state.strays)
    if not (yield from _not_of(state, map(log_key, versions))):
        return view
    opened = yield from open_again(view)
    if opened.state.version < state.version:
        raise restored_error(f"version {state.version}")
    return opened


def is_suspect(state: State) -> bool:
    """Whether a state itself shows that there may be such records: the others are found by reading the last records."""
    return bool(state.strays or state.set_backs)


def note_other_lines(state: State, now_ms: int) -> Steps[CorruptObject | None]:
    """The error if records are not of this log.  Their objects are noted, so that they are kept."""
    others = yield from records_of_other_lines(state)
    if not others:
        return None
    yield from note_objects(state, others, now_ms)
    more = f"; and {len(others) - 1} more, which `pylog verify` names" if len(others) > 1 else ""
    return CorruptObject(f"nothing is deleted, because of {others[0].key}: {others[0].text}{more}. {MOVE}")


def note_objects(state: State, others: Sequence[OtherLine], now_ms: int) -> Steps[None]:
    """Note the objects of such records as those of lost versions."""
    objects, versions = {name for one in others for name in one.objects}, [one.version for one in others]
    if objects:
        first, last = min(versions), max(versions)
        again = first if first <= state.version else 0  # a later one is of a client that had read the one before it
        after, upto = (first - 1, last) if again else (state.version, last - 1)
        lost = LostVersions(after=after, upto=upto, objects=tuple(sorted(objects)), again=again)
        yield from note_loss(state, lost, now_ms)


def _is_of(state: State, batch: Batch, version: int) -> bool:
    """Whether the log has this batch.  Those of a log before a restore are known to be void."""
    if version in state.strays:
        return False
    return state.line[version - state.version - 1] == mark_of(batch) or is_former(state, batch.history)


def _other(state: State, batch: Batch, name: str) -> Steps[OtherLine]:
    commits = [record for record in batch.records if isinstance(record, CommitRecord)]
    left = yield from unnamed_in(state, (made.name for commit in commits for made in commit.objects))
    rows = sum(run.rows for commit in commits for _, run in commit.slices)
    rows += sum(piece.end - piece.start for commit in commits for _, _, piece in commit.pieces)
    end = state.version if log_version(name) > state.version else None
    return OtherLine(name, log_version(name), rows, tuple(sorted(left)), end)
