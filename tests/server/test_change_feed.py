"""Which changes wake which clients."""

from __future__ import annotations

from spark_log.server.change_feed import ChangeFeed


def test_records_are_news_to_those_who_wait_for_their_topic() -> None:
    """And to those who wait for anything."""
    feed = ChangeFeed()
    feed.note(5, None)
    feed.note(6, ["a", "b"])
    assert feed.has_changes(("a",), 5) and feed.has_changes(("b", "c"), 5) and feed.has_changes(None, 5)
    assert not feed.has_changes(("c",), 5) and not feed.has_changes((), 5) and not feed.has_changes(("a",), 6)


def test_positions_are_news_to_nobody_who_waits_for_records() -> None:
    """Groups that commit while others wait do not wake them."""
    feed = ChangeFeed()
    feed.note(5, None)
    feed.note(6, [])
    assert not feed.has_changes(("a",), 5) and feed.has_changes(None, 5)


def test_what_others_wrote_is_news_to_all() -> None:
    """Nobody knows what was in it."""
    feed = ChangeFeed()
    feed.note(5, None)
    feed.note(6, ["b"])
    feed.note(9, None)
    assert feed.has_changes(("a",), 8)


def test_each_touched_topic_is_told_once() -> None:
    """However many versions came since it was asked; what nobody knows anything about is everything."""
    feed = ChangeFeed()
    feed.note(5, ["a"])
    feed.note(6, ["b"])
    assert feed.drain() == {"a", "b"}
    assert feed.drain() == set()
    feed.note(7, ["b"])
    feed.note(8, None)
    assert feed.drain() is None


def test_what_is_told_is_known_already() -> None:
    """A woken client that asks for the state must not wait again."""
    feed = ChangeFeed()
    feed.note(5, ["a"])
    assert feed.drain() == {"a"} and feed.has_changes(("a",), 4)


def test_who_waits_for_others_has_no_news_however_far_behind() -> None:
    """Thousands of changes of other topics are not news for it."""
    feed = ChangeFeed()
    feed.note(5, None)
    for version in range(6, 2000):
        feed.note(version, ["b"])
    assert not feed.has_changes(("a",), 5) and feed.has_changes(("a", "b"), 5)
