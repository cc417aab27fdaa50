"""The rules of the commit protocol, each removed in turn: the simulation has to notice."""

from __future__ import annotations

from typing import Any

from simulation.mutation import Mutation, Patch
from spark_log.journal.context import Proposal
from spark_log.journal.storage import commit_protocol, opening
from spark_log.journal.storage.opening import View
from spark_log.journal.store_operations import Get, List, Op, PutAnswer, PutNew, Steps
from spark_log.metadata import replay
from spark_log.metadata.formats.batch_format import decode_batch, encode_batch
from spark_log.metadata.records import Batch
from spark_log.store.object_names import CHECKPOINTS, checkpoint_version, log_key

Appended = Steps[tuple[View, dict[str, int]]]


def _carried(view: View, batch: Batch, newest: str) -> tuple[View, dict[str, int]]:
    return View(newest, replay.replay(view.state, batch)), {batch.id: view.state.version + 1}


def _read_last(view: View) -> Appended:
    seen: dict[str, int] = {}
    view = yield from opening.refresh(view, seen)
    return view, seen


def _believe(view: View, batch: Batch, *_: object) -> Appended:
    answer = yield PutNew(log_key(view.state.version + 1), encode_batch(batch))
    return _carried(view, batch, view.checkpoint) if answer is PutAnswer.CREATED else (yield from _read_last(view))


def _list_first(view: View, batch: Batch, *_: object) -> Appended:
    names = yield List(CHECKPOINTS)
    key, data = log_key(view.state.version + 1), encode_batch(batch)
    answer = yield PutNew(key, data)
    if (
        answer is PutAnswer.CREATED
        and (yield Get(key)) == data
        and opening.follows_checkpoint(view, max(names, default=""))
    ):
        return _carried(view, batch, max(names, default=""))
    return (yield from _read_last(view))


def _always_parallel(view: View, batch: Batch, *_: object) -> Appended:
    key, data = log_key(view.state.version + 1), encode_batch(batch)
    answer = yield PutNew(key, data)
    if answer is not PutAnswer.EXISTS:
        reads: list[Op] = [Get(key), List(CHECKPOINTS)]
        found, names = yield reads
        if found == data and opening.follows_checkpoint(view, newest := max(names, default="")):
            return _carried(view, batch, newest)
    return (yield from _read_last(view))


def _decide_unlisted(view: View, batch: Batch, *_: object) -> Appended:
    key = log_key(view.state.version + 1)
    if (yield PutNew(key, encode_batch(batch))) is PutAnswer.EXISTS:
        found = yield Get(key)
        if found is not None:
            other = decode_batch(found, key)
            return View(view.checkpoint, replay.replay(view.state, other)), {other.id: view.state.version + 1}
    return (yield from _read_last(view))


def _refresh_with_leftovers(view: View, *given: Any, **named: Any) -> Steps[View]:
    new = yield from opening.catch_up(view, *given, **named)
    return new if new is not None else (yield from opening.open_view())


def _follows_few_beyond(view: View, newest: str) -> bool:
    return checkpoint_version(newest) <= view.state.version + 3


_refuse_all = commit_protocol._refuse_all


def _refuse_all_certain(refused: Any, unseen: object) -> None:
    _refuse_all(refused, ())


_peek = opening.peek


def _peek_believing(view: View) -> Steps[View]:
    """Takes what it has read for confirmed."""
    found = yield from _peek(view)
    return found if found.unconfirmed is None else found._replace(state=found.newest, unconfirmed=None)


class _NeverRaised(Exception):
    """Takes the place of an error class, so that the error is not caught."""


_refuse = commit_protocol._refuse


def _refuse_for_certain(command: Proposal, error: Any, unseen: Any = ()) -> None:
    command.sent = False
    _refuse(command, error, unseen)


COMMIT_MUTATIONS = {
    "no_readback": Mutation(
        "a put that answers 'created' is read back",
        (Patch(commit_protocol, "append", _believe),),
    ),
    "no_start_over": Mutation(
        "the checkpoints are listed again after the log was read",
        tuple(Patch(module, "follows_checkpoint", lambda view, newest: True) for module in (opening, commit_protocol)),
    ),
    "follow_few_beyond": Mutation(
        "a newer checkpoint is accepted up to the version that was confirmed before, not beyond",
        # Not one above it: a record is deleted once the older of two checkpoints covers it, and the two rarely have one
        # version.
        tuple(Patch(module, "follows_checkpoint", _follows_few_beyond) for module in (opening, commit_protocol)),
    ),
    "leftovers_placed": Mutation(
        "batches that were read are forgotten when the log is opened anew",
        tuple(Patch(module, "refresh", _refresh_with_leftovers) for module in (opening, commit_protocol)),
    ),
    "peek_believed": Mutation(
        "records that a peek has found are confirmed by a listing without a checkpoint beyond the view before them",
        (Patch(opening, "peek", _peek_believing),),
    ),
    "peek_beyond_fence": Mutation(
        "nothing is decided on unconfirmed records of which one moves the fence",
        (Patch(opening, "moves_fence", lambda batch: False),),
    ),
    "certain_refusal": Mutation(
        "a refusal after a put that was not seen to fail says that it may be in",
        (Patch(commit_protocol, "_refuse_all", _refuse_all_certain),),
    ),
    "list_before_put": Mutation(
        "the listing of the read-back starts after the put",
        (Patch(commit_protocol, "append", _list_first),),
    ),
    "parallel_after_lost": Mutation(
        "read-back and listing run in parallel only if the put answered 'created'",
        (Patch(commit_protocol, "append", _always_parallel),),
    ),
    "decide_unlisted": Mutation(
        "version taken by another: the next batch is decided after a listing",
        (Patch(commit_protocol, "append", _decide_unlisted),),
    ),
    "certain_after_asking": Mutation(
        "a refusal after a request whose answer was lost says that it may be in",
        (Patch(commit_protocol, "_refuse", _refuse_for_certain),),
    ),
    "resumes_stale_state": Mutation(
        "after a coordinator's answer, the client's state has a coordinator, even if the log cannot be read",
        (Patch(commit_protocol, "StorageUnavailable", _NeverRaised),),
    ),
}
