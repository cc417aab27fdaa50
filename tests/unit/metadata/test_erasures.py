"""Erasures in the state: they end root by root, and a root that is not in use any more is not forgotten."""

from __future__ import annotations

from dataclasses import replace

from spark_log.client.admin.erasure_status import former_root
from spark_log.metadata.commands import AddFormerRoot, Report, ResetClock
from spark_log.metadata.erasures import METADATA, erased_at, erased_since, name_of_own, waits_for, wiped_upto
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint
from spark_log.metadata.maintenance.accepted_loss import renew
from spark_log.metadata.projection import apply, asking_for, delta, held_of, nothing_held
from spark_log.metadata.records import (
    DeleteTopicRecord,
    ErasedRecord,
    RegisterBrokerRecord,
    RemoveBrokerRecord,
    ResetReplicasRecord,
    WipedRecord,
)
from spark_log.metadata.renewed_ids import VERSIONS, renewed_id
from spark_log.metadata.state import ObjectRow
from tests.unit.metadata.history import History

OWN = (0, "")
DISK = (1, "d1")


def log_with_broker() -> History:
    log = History()
    log.write(RegisterBrokerRecord(broker=1, directory="d1", url="/b1"))
    return log


def wipe(log: History, root: tuple[int, str], upto: int | None = None) -> bool:
    version = log.state.fence if upto is None else upto
    return bool(log.do(Report(record=WipedRecord(broker=root[0], directory=root[1], upto=version))))


def test_an_erasure_is_open_until_each_root_is_wiped_beyond_its_version() -> None:
    """Copies that were deleted before the fence had passed it does not count."""
    log = log_with_broker()
    topic = log.create()
    assert erased_at(log.state, topic) == -1
    assert log.do(Report(record=ErasedRecord(topic_id=topic)))
    version = log.state.version
    assert erased_at(log.state, topic) == version
    assert [one.roots for one in log.state.erasures[topic].unfinished] == [(OWN, DISK)]
    assert not waits_for(log.state, DISK)
    assert not wipe(log, DISK, upto=version)
    log.pass_fence()
    assert log.state.fence >= version
    assert waits_for(log.state, DISK)
    assert wipe(log, DISK)
    assert [one.roots for one in log.state.erasures[topic].unfinished] == [(OWN,)]
    assert not waits_for(log.state, DISK)
    assert wipe(log, OWN)
    assert log.state.erasures[topic].unfinished == ()
    assert erased_at(log.state, topic) == version
    assert not wipe(log, OWN)


def test_the_row_of_a_deleted_topic_stays_while_a_root_may_have_copies() -> None:
    """A topic that is created again has another id, and knows nothing of it."""
    log = log_with_broker()
    topic = log.create()
    log.do(Report(record=ErasedRecord(topic_id=topic)))
    log.write(DeleteTopicRecord(topic_id=topic))
    assert topic not in log.state.topics
    log.pass_fence()
    wipe(log, OWN)
    assert topic in log.state.erasures
    wipe(log, DISK)
    assert topic not in log.state.erasures
    assert not log.do(Report(record=ErasedRecord(topic_id=topic)))


def test_a_root_that_is_registered_again_is_not_a_former_one() -> None:
    """Its broker was removed while it could not be reached.  An erasure there waits for the fence, as on any root."""
    log = log_with_broker()
    topic = log.create()
    log.write(RemoveBrokerRecord(broker=1))
    assert "d1" in log.state.former_roots
    log.write(RegisterBrokerRecord(broker=1, directory="d1", url="/b1"))
    assert "d1" not in log.state.former_roots
    log.do(Report(record=ErasedRecord(topic_id=topic)))
    assert not wipe(log, DISK, upto=log.state.version)
    log.pass_fence()
    assert wipe(log, DISK)


def test_an_erasure_by_a_clock_that_was_ahead_ends_when_the_time_is_set_back() -> None:
    """Otherwise no file would be young enough until the wrong time has come."""
    log = log_with_broker()
    topic = log.create()
    right_ms, log.now = log.now, log.now + 10**12
    log.do(Report(record=ErasedRecord(topic_id=topic)))
    log.now = right_ms + 10
    log.do(ResetClock(force=True))
    assert [one.time for one in log.state.erasures[topic].unfinished] == [log.state.time]
    log.pass_fence()
    assert wiped_upto(log.state, DISK, oldest_ms=log.state.time) is not None


def test_a_complete_erasure_ends_the_incomplete_ones_of_its_topic() -> None:
    """Maintenance alone does not: records may be left."""
    log = History()
    topic, other = log.create(), log.create("other")
    for one in (topic, other):
        log.do(Report(record=ErasedRecord(topic_id=one, incomplete=True)))
    log.pass_fence()
    wipe(log, OWN)
    assert [one.roots for one in log.state.erasures[topic].unfinished] == [()]
    log.do(Report(record=ErasedRecord(topic_id=topic)))
    assert [one.incomplete for one in log.state.erasures[topic].unfinished] == [False]
    assert [one.incomplete for one in log.state.erasures[other].unfinished] == [True]


def test_the_end_of_an_erasure_replaces_its_beginning() -> None:
    """One that was killed is listed until a later one is complete, and one that began later meanwhile stays."""
    log = History()
    topic = log.create()

    def note(*, incomplete: bool = True, begins: str = "", ends: str = "") -> list[tuple[str, bool]]:
        log.do(Report(record=ErasedRecord(topic_id=topic, incomplete=incomplete, begins=begins, ends=ends)))
        return [(one.running, one.incomplete) for one in log.state.erasures[topic].unfinished]

    assert note(begins="killed") == [("killed", True)]
    assert note(begins="first") == [("killed", True), ("first", True)]
    assert note(begins="second") == [("killed", True), ("first", True), ("second", True)]
    assert note(incomplete=False, ends="first") == [("second", True), ("", False)]
    assert note(ends="second") == [("", False), ("", True)]


def test_an_erasure_whose_topic_is_deleted_while_it_runs_ends_and_waits_for_the_metadata() -> None:
    """Nobody knows any more whether the topic was typed.  One that was killed is not ended by maintenance."""
    log = History()
    topic = log.create()
    for name in ("killed", "runs"):
        log.do(Report(record=ErasedRecord(topic_id=topic, incomplete=True, begins=name)))
    log.write(DeleteTopicRecord(topic_id=topic))
    log.pass_fence()
    wipe(log, OWN)
    assert [(one.running, one.roots) for one in log.state.erasures[topic].unfinished] == [("killed", ()), ("runs", ())]
    assert log.do(Report(record=ErasedRecord(topic_id=topic, ends="runs")))
    assert [(one.running, one.roots) for one in log.state.erasures[topic].unfinished] == [("", (OWN, METADATA))]
    log.pass_fence()
    wipe(log, OWN)
    assert topic in log.state.erasures
    wipe(log, METADATA)
    assert topic not in log.state.erasures


def test_the_roots_of_removed_replaced_and_forgotten_brokers_are_known_until_somebody_says_that_they_are_empty() -> (
    None
):
    """An erasure before that waits for them."""
    log = log_with_broker()
    topic = log.create()
    log.do(Report(record=ErasedRecord(topic_id=topic)))
    log.write(RegisterBrokerRecord(broker=1, directory="d2", url="/b2"))
    log.write(RemoveBrokerRecord(broker=1))
    log.write(RegisterBrokerRecord(broker=3, directory="d3", url="/b3"))
    log.write(ResetReplicasRecord())
    known = {name: (row.broker, row.url) for name, row in log.state.former_roots.items()}
    assert known == {"d1": (1, "/b1"), "d2": (1, "/b2"), "d3": (3, "/b3")}
    assert wipe(log, DISK, upto=0)
    assert set(log.state.former_roots) == {"d2", "d3"}
    assert [one.roots for one in log.state.erasures[topic].unfinished] == [(OWN,)]
    assert not wipe(log, DISK, upto=0)


def test_the_roots_of_the_log_of_which_this_one_is_a_copy_are_not_to_be_deleted() -> None:
    """It may be in use.  Those that the copy has itself later are to be."""
    log = log_with_broker()
    log.write(RegisterBrokerRecord(broker=2, directory="d2", url="/b2"))
    log.write(RemoveBrokerRecord(broker=2))
    log.write(ResetReplicasRecord())
    assert set(log.state.former_roots) == {"d1", "d2"}
    for directory in ("d1", "d2"):
        assert "leave the files alone" in former_root(log.state, directory)
    log.write(RegisterBrokerRecord(broker=3, directory="d3", url="/b3"))
    log.write(RegisterBrokerRecord(broker=3, directory="d4", url="/b3"))
    assert "/b3, which was the root of broker 3" in former_root(log.state, "d3")
    assert ": delete that folder, and run" in former_root(log.state, "d3")  # broker 3 uses the disk
    log.write(RemoveBrokerRecord(broker=3))
    assert "destroy the disk" in former_root(log.state, "d4")


def test_an_open_erasure_also_waits_for_the_place_from_which_the_log_has_moved() -> None:
    """A later one does not, and names it.  If the log returns to that place, its folder is empty."""
    log = log_with_broker()
    topic, former = log.create(), (0, name_of_own("file:///former"))
    log.do(Report(record=ErasedRecord(topic_id=topic)))
    assert log.do(AddFormerRoot(url="file:///former"))
    assert not log.do(AddFormerRoot(url="file:///former"))
    log.do(Report(record=ErasedRecord(topic_id=topic)))
    assert [one.roots for one in log.state.erasures[topic].unfinished] == [(OWN, DISK, former), (OWN, DISK)]
    assert "the log's own root" in former_root(log.state, former[1])
    assert wipe(log, former, upto=0)
    assert [one.roots for one in log.state.erasures[topic].unfinished] == [(OWN, DISK), (OWN, DISK)]
    assert not log.state.former_roots


def test_a_checkpoint_a_client_of_some_topics_and_a_renewed_log_know_erasures() -> None:
    """The client gets the rows of its topics; the renewed log has them under the new ids."""
    log = log_with_broker()
    topic, other = log.create(), log.create("other")
    for one in (topic, other):
        log.do(Report(record=ErasedRecord(topic_id=one)))
    log.write(RemoveBrokerRecord(broker=1))
    read = decode_checkpoint(encode_checkpoint(log.state), "x")
    assert (read.erasures, read.former_roots) == (log.state.erasures, log.state.former_roots)
    held = asking_for(nothing_held(), ["t"], [])
    client = apply(held, delta(log.state, "head", held_of(held), ""))
    assert set(client.erasures) == {topic}
    after = renew(log.state, 1_000_000_000, {topic: "new", other: "newer"}, [])
    assert set(after.erasures) == {"new", "newer"}
    assert after.former_roots == log.state.former_roots


def test_erasures_are_known_by_the_ids_that_topics_had_before_a_loss_was_accepted() -> None:
    """To plans and copies of before: whether the erasure was before the loss, or after it."""
    log = History()
    topic, other, third = log.create(), log.create("other"), log.create("third")
    copy = log.state
    log.do(Report(record=ErasedRecord(topic_id=topic)))
    log.states.append(renew(log.state, VERSIONS, {one: renewed_id(one, VERSIONS) for one in copy.topics}, []))
    log.do(Report(record=ErasedRecord(topic_id=renewed_id(other, VERSIONS), incomplete=True)))
    assert copy.version < erased_at(log.state, topic) < VERSIONS < erased_at(log.state, other)
    assert erased_at(log.state, third) == -1
    changed = replace(copy, objects=copy.objects.update({"data/replaced": ObjectRow(1, 1, 1)}))
    assert erased_since(copy, log.state).keys() == {other}
    assert erased_since(changed, log.state).keys() == {topic, other}
