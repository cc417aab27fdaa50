"""Which changes wake which clients."""

from __future__ import annotations

from spark_log.metadata.commands import Append, CommitOffsets, CreateTopic, SeveralCommands
from spark_log.metadata.records import CommitRecord, GroupCommit
from spark_log.model import DataObject, Run
from spark_log.node.change_feed import ChangeFeed

POSITIONS = CommitOffsets(commit=GroupCommit("g", -1, ()))


def append(*topics: str) -> Append:
    name = f"data/{1:016x}/a.seg"
    runs = tuple((0, Run(topic, 0, 0, 1, 1, 1, 1, 0, 0)) for topic in topics)
    return Append(
        commit=CommitRecord(producer="p", sequence=0, upload_epoch=1, objects=(DataObject(name, 9, 1),), slices=runs)
    )


def test_records_are_news_to_those_who_wait_for_their_topic() -> None:
    """And to those who wait for anything."""
    feed = ChangeFeed()
    feed.note(5, None)
    feed.note(6, [append("a", "b"), POSITIONS])
    assert feed.has_changes(("a",), 5) and feed.has_changes(("b", "c"), 5) and feed.has_changes(None, 5)
    assert not feed.has_changes(("c",), 5) and not feed.has_changes((), 5) and not feed.has_changes(("a",), 6)


def test_positions_are_news_to_nobody_who_waits_for_records() -> None:
    """Groups that commit while others wait do not wake them."""
    feed = ChangeFeed()
    feed.note(5, None)
    feed.note(6, [POSITIONS])
    assert not feed.has_changes(("a",), 5) and feed.has_changes(None, 5)


def test_what_is_not_about_records_is_news_to_all() -> None:
    """A topic that is created may be what somebody waits for."""
    feed = ChangeFeed()
    feed.note(5, None)
    feed.note(6, [append("b"), SeveralCommands(commands=(CreateTopic(name="a", partitions=1, topic_id="1"),))])
    assert feed.has_changes(("a",), 5) and feed.has_changes((), 5)


def test_several_commands_in_one_touch_the_topics_of_all() -> None:
    """Records among them count as if they came alone."""
    feed = ChangeFeed()
    feed.note(5, None)
    feed.note(6, [SeveralCommands(commands=(append("a"), POSITIONS))])
    assert feed.has_changes(("a",), 5) and not feed.has_changes(("b",), 5)


def test_what_others_wrote_is_news_to_all() -> None:
    """Nobody knows what was in it."""
    feed = ChangeFeed()
    feed.note(5, None)
    feed.note(6, [append("b")])
    feed.note(9, None)
    assert feed.has_changes(("a",), 8)


def test_each_touched_topic_is_told_once() -> None:
    """However many versions came since it was asked; what nobody knows anything about is everything."""
    feed = ChangeFeed()
    feed.note(5, [append("a"), POSITIONS])
    feed.note(6, [append("b")])
    assert feed.drain() == {"a", "b"}
    assert feed.drain() == set()
    feed.note(7, [append("b")])
    feed.note(8, None)
    assert feed.drain() is None


def test_what_is_told_is_known_already() -> None:
    """A woken client that asks for the state must not wait again."""
    feed = ChangeFeed()
    feed.note(5, [append("a")])
    assert feed.drain() == {"a"} and feed.has_changes(("a",), 4)


def test_who_waits_for_others_has_no_news_however_far_behind() -> None:
    """Thousands of changes of other topics are not news for it."""
    feed = ChangeFeed()
    feed.note(5, None)
    for version in range(6, 2000):
        feed.note(version, [append("b")])
    assert not feed.has_changes(("a",), 5) and feed.has_changes(("a", "b"), 5)
