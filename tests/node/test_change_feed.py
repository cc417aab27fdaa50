"""What wakes whom."""

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
    news = ChangeFeed()
    news.note(5, None)
    news.note(6, [append("a", "b"), POSITIONS])
    assert news.there_is(("a",), 5) and news.there_is(("b", "c"), 5) and news.there_is(None, 5)
    assert not news.there_is(("c",), 5) and not news.there_is((), 5) and not news.there_is(("a",), 6)


def test_positions_are_news_to_nobody_who_waits_for_records() -> None:
    """Groups that commit while others wait do not wake them."""
    news = ChangeFeed()
    news.note(5, None)
    news.note(6, [POSITIONS])
    assert not news.there_is(("a",), 5) and news.there_is(None, 5)


def test_what_is_not_about_records_is_news_to_all() -> None:
    """A topic that is created may be what somebody waits for."""
    news = ChangeFeed()
    news.note(5, None)
    news.note(6, [append("b"), SeveralCommands(commands=(CreateTopic(name="a", partitions=1, topic_id="1"),))])
    assert news.there_is(("a",), 5) and news.there_is((), 5)


def test_several_commands_in_one_touch_the_topics_of_all() -> None:
    """Records among them count as if they came alone."""
    news = ChangeFeed()
    news.note(5, None)
    news.note(6, [SeveralCommands(commands=(append("a"), POSITIONS))])
    assert news.there_is(("a",), 5) and not news.there_is(("b",), 5)


def test_what_others_wrote_is_news_to_all() -> None:
    """Nobody knows what was in it."""
    news = ChangeFeed()
    news.note(5, None)
    news.note(6, [append("b")])
    news.note(9, None)
    assert news.there_is(("a",), 8)


def test_each_touched_topic_is_told_once() -> None:
    """However many versions came since it was asked; what nobody knows anything about is everything."""
    news = ChangeFeed()
    news.note(5, [append("a"), POSITIONS])
    news.note(6, [append("b")])
    assert news.untold() == {"a", "b"}
    assert news.untold() == set()
    news.note(7, [append("b")])
    news.note(8, None)
    assert news.untold() is None


def test_what_is_told_is_known_already() -> None:
    """Who is woken by it and asks what there is must not wait on."""
    news = ChangeFeed()
    news.note(5, [append("a")])
    assert news.untold() == {"a"} and news.there_is(("a",), 4)


def test_who_waits_for_others_has_no_news_however_far_behind() -> None:
    """What came to other topics, by the thousand, is nothing to them."""
    news = ChangeFeed()
    news.note(5, None)
    for version in range(6, 2000):
        news.note(version, [append("b")])
    assert not news.there_is(("a",), 5) and news.there_is(("a", "b"), 5)
