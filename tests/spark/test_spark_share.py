"""Queries that share the partitions of a group by number: `group.members` and `group.member`.

The queries make Spark's calls in Spark's order over a checkpoint.  Real Spark runs those of the page
docs/tasks/share-a-topic.md.
"""

from __future__ import annotations

from typing import Any

import pytest
from pyspark_pylog.options.parse import read_options
from pyspark_pylog.progress.group_publisher import GroupProgress
from pyspark_pylog.progress.offset_format import Offset
from pyspark_pylog.source.resume import go_on

import spark_log
from spark_log import NewTopic, TopicPartition
from spark_log.errors import DataLoss, GroupInUse, IllegalGeneration, InvalidRequest
from spark_log.groups.member_share import Share
from spark_log.journal.journal import Journal
from tests.logged import logged
from tests.spark.builders import asked
from tests.spark.driver import Row, Stream, rows

MEMBERS = {"group.id": "g", "group.members": 2}


class Query(Stream):
    """A query with a number, over the checkpoint of an earlier one if there is one."""

    def __init__(self, url: str, number: int, before: Query | None = None, /, **options: Any) -> None:
        super().__init__(url, options.pop("topics", "t"), **{**MEMBERS, "group.member": number, **options})
        self.offsets = [] if before is None else list(before.offsets)

    def end(self) -> None:
        """Read all there is, publish it and leave the group."""
        self.restart("available-now").run()


def committed(log: spark_log.Log, topic: str = "t") -> dict[int, int]:
    """The group's positions in a topic, by partition."""
    state = log.journal.refresh()
    topic_id = state.names[topic]
    offsets = state.groups["g"].offsets if "g" in state.groups else {}
    return {number: at.offset for (of, number), at in sorted(offsets.items()) if of == topic_id}


def append(log: spark_log.Log, *partitions: int) -> None:
    """One record to each of these partitions."""
    log.append("t", [{"value": "x", "partition": number} for number in partitions])


@pytest.fixture
def filled(log: spark_log.Log) -> spark_log.Log:
    """Topic t with four partitions of 5 records."""
    log.admin.create_topics([NewTopic("t", 4)])
    append(log, *[number for number in range(4) for _ in range(5)])
    return log


def all_of(*partitions: int, first: int = 0, end: int = 5) -> list[Row]:
    return [row for number in partitions for row in rows(f"t-{number}", first, end)]


# Promise: tasks/share-a-topic.md#share-a-topic-among-queries
def test_queries_with_numbers_share_the_partitions_of_one_group(url: str, filled: spark_log.Log) -> None:
    """Each reads its own and publishes their positions in one group, whose members say which number they are."""
    queries = [Query(url, number) for number in range(2)]
    assert [sorted(query.batch() or []) for query in queries] == [all_of(0, 2), all_of(1, 3)]
    assert [query.batch() for query in queries] == [None, None]
    assert committed(filled) == dict.fromkeys(range(4), 5)
    members = filled.admin.describe_consumer_groups(["g"])["g"].members
    assert [member.owner.rpartition(", ")[2] for member in members] == ["number 0 of 2)", "number 1 of 2)"]
    assert [[tp.partition for tp in member.assignment or ()] for member in members] == [[0, 2], [1, 3]]
    with pytest.raises(GroupInUse, match=r"number 0 of 2"):
        filled.admin.alter_consumer_group_offsets("g", {TopicPartition("t", 0): 1})
    for query in queries:
        query.reader.stop()
    assert filled.admin.describe_consumer_groups(["g"])["g"].state == "Empty"


# Promise: tasks/share-a-topic.md#when-a-query-ends
def test_a_number_is_for_one_query(url: str, filled: spark_log.Log) -> None:
    """And the count is the same for all; a query without a number, or a consumer, waits for all of them."""
    query = Query(url, 0)
    query.plan()
    for other in Query(url, 0), Query(url, 1, **{"group.members": 3}):
        with pytest.raises(GroupInUse, match=r"number 0 of 2\) since .*each has another group.member and all have"):
            other.plan()
    with pytest.raises(GroupInUse, match="Two loads in one query need a group each"):
        Stream(url, **{"group.id": "g"}).plan()
    with pytest.raises(GroupInUse):
        filled.consumer("t", group_id="g").poll()
    again = Query(url, 0, query)
    assert sorted(again.read()) == all_of(0, 2)
    append(filled, 0)
    with pytest.raises(IllegalGeneration, match=r"was taken by a stream on .*number 0 of 2\)"):
        query.batch()


# Promise: tasks/share-a-topic.md#when-a-query-ends
def test_a_query_without_a_checkpoint_continues_where_its_number_stood(url: str, filled: spark_log.Log) -> None:
    """On any machine; and new partitions are read by the number that they belong to, from their first record."""
    Query(url, 1).end()
    append(filled, 0, 1, 2, 3)
    filled.admin.create_partitions({"t": 6})
    append(filled, 4, 5)
    query = Query(url, 1)
    assert sorted(query.run()) == [*all_of(1, 3, first=5, end=6), ("t-5", 0)]
    assert committed(filled) == {1: 6, 3: 6, 5: 1}


# Promise: tasks/share-a-topic.md#share-a-topic-among-queries
def test_more_queries_than_partitions_are_idle_until_there_are_more(url: str, filled: spark_log.Log) -> None:
    """They have no records, in each trigger, and hold their number."""
    query = Query(url, 5, **{"group.members": 6})
    assert query.batch() == [] and query.batch() is None
    filled.admin.create_partitions({"t": 6})
    append(filled, 5)
    assert query.batch() == [("t-5", 0)]
    query.end()
    Query(url, 6, **{"group.members": 7}).end()


def test_options_name_partitions_that_others_read(url: str, filled: spark_log.Log) -> None:
    """All queries can have the same starting offsets."""
    starts = '{"t":{"0":1,"1":2,"2":3,"3":4}}'
    assert Query(url, 1, startingOffsets=starts).reader.initialOffset()["t"] == {"1": 2, "3": 4}
    assert Query(url, 0, topics=None, assign='{"t":[0,1]}').reader.initialOffset()["t"] == {"0": 0}


# ----------------------------------------------------------------------------------------------------- another count


# Promise: tasks/share-a-topic.md#what-is-guaranteed
def test_after_a_clean_end_another_count_of_queries_reads_each_record_once(url: str, filled: spark_log.Log) -> None:
    """The old checkpoints serve on: partitions that come start at the group's position, those that go are left."""
    two = [Query(url, number, maxOffsetsPerTrigger=3) for number in range(2)]
    for query in two:
        query.batch()
        query.end()
    three = [Query(url, n, old, **{"group.members": 3}) for n, old in enumerate([*two, None])]
    assert [query.run() for query in three] == [[], [], []]
    append(filled, 0, 1, 2, 3)
    read = [sorted(query.run()) for query in three]
    assert read == [all_of(0, 3, first=5, end=6), all_of(1, first=5, end=6), all_of(2, first=5, end=6)]
    assert committed(filled) == dict.fromkeys(range(4), 6)
    assert not any(query.run() for query in three)
    assert three[0].offsets[-1]["t"] == {"0": 6, "3": 6}


# Promise: tasks/share-a-topic.md#what-is-guaranteed
def test_an_old_checkpoint_moves_no_position_back(
    url: str, filled: spark_log.Log, caplog: pytest.LogCaptureFixture
) -> None:
    """Records that others have read meanwhile are not read again, which is logged, unless the group is set back."""
    old = Query(url, 0)
    old.end()
    append(filled, 0, 2)
    new = Query(url, 0, **{"group.members": 1})
    new.run()
    new.reader.stop()
    assert committed(filled) == {0: 6, 1: 5, 2: 6, 3: 5}
    append(filled, 0)
    back = Query(url, 0, old)
    assert back.run() == [("t-0", 6)]
    assert committed(filled) == {0: 7, 1: 5, 2: 6, 3: 5}
    told = logged(caplog, "the checkpoint is at")
    assert [text.partition(": the query")[0] for text in told] == [
        f"t-{number}: the checkpoint is at 5, and group 'g' at 6" for number in (0, 2)
    ]
    back.reader.stop()
    filled.admin.alter_consumer_group_offsets("g", {TopicPartition("t", number): 0 for number in (0, 2)})
    assert sorted(Query(url, 0, old).run()) == [*all_of(0, first=5, end=7), *all_of(2, first=5, end=6)]


class Late(GroupProgress):
    """Joins as number 0 of 2, just after another query with this number has ended."""

    def __init__(self, other: Query) -> None:
        super().__init__("g", Share(0, 2))
        self._other: Query | None = other

    def join(self, journal: Journal, at: Offset) -> None:
        other, self._other = self._other, None
        if other is not None:
            other.end()
        super().join(journal, at)


# Promise: tasks/share-a-topic.md#what-is-guaranteed
def test_a_query_sees_what_the_former_one_published_last(url: str, filled: spark_log.Log) -> None:
    """It looks where the group is when it has the number, not before: the former one may read on until then."""
    old = Query(url, 0)
    old.end()
    append(filled, 0)
    back = Query(url, 0, old)
    back.reader._progress = Late(Query(url, 0, old))
    assert back.run() == []


# Promise: tasks/share-a-topic.md#what-is-guaranteed
def test_a_batch_that_was_planned_is_read_again_whoever_owns_its_partitions_now(
    url: str, filled: spark_log.Log
) -> None:
    """Its records may be in the sink already.  Only the positions of partitions that it owns are published."""
    died = Query(url, 0)
    died.plan()
    died.reader.stop()
    again = Query(url, 0, died, **{"group.members": 4})
    assert sorted(again.read()) == all_of(0, 2)
    again.run()
    assert committed(filled) == {0: 5, 2: 0}
    assert Query(url, 2, **{"group.members": 4}).run() == all_of(2)


def test_records_that_a_share_has_not_read_and_that_are_gone_are_a_loss(url: str, filled: spark_log.Log) -> None:
    """In a partition that came from another query; a topic that was deleted is a loss to those who read it."""
    old = Query(url, 0)
    old.end()
    append(filled, 0, 2)
    filled.admin.delete_records({TopicPartition("t", 2): 6})
    with pytest.raises(DataLoss, match=r"offsets \[5, 6\) of t-2 are gone"):
        Query(url, 2, **{"group.members": 3}).plan()
    query = Query(url, 0, topics=None, subscribePattern="t", **{"group.id": "h"})
    query.batch()
    filled.admin.delete_topics(["t"])
    with pytest.raises(DataLoss, match="topic 't' was deleted"):
        query.batch()


def test_the_position_of_a_share_is_where_it_continues(filled: spark_log.Log) -> None:
    """The later one of the checkpoint and the group; where neither has one, the first record."""
    state = filled.journal.refresh()
    tps = [TopicPartition("t", number) for number in range(4)]
    options = read_options(asked("/log", "t"), streaming=True)
    at = Offset(ends={tps[0]: 3, tps[1]: 3}, ids={"t": state.names["t"]})
    starts, losses = go_on(state, options, at, tps, {tps[0]: 2, tps[1]: 4, tps[2]: 1})
    assert (list(starts.values()), losses) == ([3, 4, 1, 0], [])


# ------------------------------------------------------------------------------------------------------------ bad input


# Promise: tasks/share-a-topic.md#share-a-topic-among-queries
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"group.members": "2", "group.member": "0"}, "option group.members: needs group.id"),
        ({"group.member": "0"}, "option group.member: needs group.id"),
        ({"group.id": "g", "group.member": "0"}, "option group.member: needs group.members"),
        ({"group.id": "g", "group.members": "2"}, "option group.members: needs group.member, a number from 0 to 1"),
        ({**MEMBERS, "group.member": "2"}, "option group.member: 2 is not below group.members, 2: .* from 0 to 1"),
        ({**MEMBERS, "group.member": "x"}, "option group.member: 'x' is not a whole number"),
        ({**MEMBERS, "group.member": "-1"}, "option group.member: '-1' is not a whole number"),
        ({**MEMBERS, "group.members": "0"}, "option group.members: '0' is not the number of queries"),
        (
            {**MEMBERS, "group.members": "two"},
            "option group.members: 'two' is not the number of .*, such as 3; or auto",
        ),
        ({"group.id": "g", "group.members": "1001", "group.member": "0"}, "option group.members: 1001 is more than"),
        ({"group.mambers": "2"}, "option group.mambers is not known; did you mean group.members"),
    ],
)
def test_an_invalid_share_is_refused(options: dict[str, Any], sentence: str) -> None:
    """With the option and what it should be."""
    with pytest.raises(InvalidRequest, match=sentence):
        read_options(asked("/log", "t", **options), streaming=True)


# Promise: tasks/share-a-topic.md#share-a-topic-among-queries
@pytest.mark.parametrize("name", ["group.members", "group.member"])
def test_a_batch_has_no_share(name: str) -> None:
    """As it has no group; nor has the topic of the groups' progress."""
    with pytest.raises(InvalidRequest, match=f"option {name} is for streams"):
        read_options(asked("/log", "t", **{name: "1"}), streaming=False)
    with pytest.raises(InvalidRequest, match=f"option {name} has no meaning for __consumer_offsets"):
        read_options(asked("/log", "__consumer_offsets", **{name: "1"}), streaming=True)
