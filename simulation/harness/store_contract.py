"""The contract of every `ObjectStore`, as a pytest class: subclass it and provide a store.

    class TestMyStore(ObjectStoreContract):
        @pytest.fixture
        def store(self):
            return MyStore(…)

Override `raw_get` if the store has a way to read an object without the code under test.
"""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier

import pytest

from spark_log.errors import InvalidRequest, ObjectNotFound
from spark_log.store.base import ObjectStore
from spark_log.store.probe import probe

RACERS = 8
ROUNDS = 25
LARGE_BYTES = 20 << 20
MEETING_S = 60
"""Seconds that a process waits for the other one; after that the other one has died."""


class ObjectStoreContract:
    """Subclasses provide the fixture `store`, an empty store each time."""

    shared_by_processes = True
    """Whether another process sees the same objects."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        raise NotImplementedError("give a store")

    def raw_get(self, store: ObjectStore, key: str) -> bytes:
        """The bytes of an object, read without the code under test."""
        return store.get(key)

    def test_what_was_put_is_got(self, store: ObjectStore) -> None:
        """An object put in chunks reads as one, whole and by range."""
        store.put("data/0/a.seg", [b"hello ", memoryview(b"world")])
        assert self.raw_get(store, "data/0/a.seg") == b"hello world"
        assert store.get("data/0/a.seg") == b"hello world"
        assert store.get("data/0/a.seg", 6) == b"world"
        assert store.get("data/0/a.seg", 0, 5) == b"hello"
        assert store.size("data/0/a.seg") == 11
        store.put("data/0/b.seg", [b"b"])
        assert store.sizes("data/0/") == {"data/0/a.seg": 11, "data/0/b.seg": 1}
        assert (store.sizes("data/0/b"), store.sizes("none/")) == ({"data/0/b.seg": 1}, {})

    def test_a_range_ends_where_the_object_does(self, store: ObjectStore) -> None:
        """A read beyond the end returns what exists."""
        store.put("a", [b"12345"])
        assert (store.get("a", 3, 99), store.get("a", 2, 2), store.get("a", 99, 120)) == (b"45", b"", b"")

    def test_an_object_that_is_not_there_is_told_by_its_key(self, store: ObjectStore) -> None:
        """`get` raises with the key, `size` returns None, a listing is empty, a delete succeeds."""
        with pytest.raises(ObjectNotFound) as raised:
            store.get("data/none", 0, 5)
        assert raised.value.key == "data/none"
        assert store.size("data/none") is None
        assert store.list("nothing/") == []
        store.delete(["data/none"])

    def test_a_listing_shows_each_put_at_once_and_sorted(self, store: ObjectStore) -> None:
        """No cache hides a change."""
        for number in (2, 0, 1):
            store.put(f"meta/log/{number:03}", [b"x"])
            assert f"meta/log/{number:03}" in store.list("meta/log/")
        store.put("meta/logs", [b"not below the prefix"])
        store.put("meta/log/deep/er", [b"x"])
        assert store.list("meta/log/") == ["meta/log/000", "meta/log/001", "meta/log/002", "meta/log/deep/er"]

    def test_when_an_object_was_written_is_told_by_the_storage_s_clock(self, store: ObjectStore) -> None:
        """In milliseconds, or None; here the store uses this machine's clock."""
        store.put("a", [b"1"])
        written = store.written_ms("a")
        assert written is None or abs(time.time() * 1000 - written) < 60_000
        assert store.written_ms("b") is None

    def test_put_overwrites_whole(self, store: ObjectStore) -> None:
        """A shorter object leaves no tail of the longer one."""
        store.put("meta/format", [b"a long one"])
        store.put("meta/format", [b"short"])
        assert self.raw_get(store, "meta/format") == b"short"

    def test_a_large_put_streams(self, store: ObjectStore) -> None:
        """Chunks come from a generator and are not held."""
        store.put("large", (bytes([number]) * (1 << 20) for number in range(LARGE_BYTES >> 20)))
        assert store.size("large") == LARGE_BYTES
        assert store.get("large", (7 << 20) - 1, (7 << 20) + 1) == b"\x06\x07"

    def test_a_put_is_invisible_until_it_is_whole(self, store: ObjectStore) -> None:
        """Neither the name nor the bytes are visible before the last chunk."""
        seen: list[object] = []

        def chunks() -> Iterator[bytes]:
            for _ in range(LARGE_BYTES >> 20):
                yield b"x" * (1 << 20)
            seen.extend((store.size("data/0/slow"), store.list("data/")))

        store.put("data/0/slow", chunks())
        assert seen == [None, []]
        assert store.list("data/") == ["data/0/slow"]

    def test_a_folder_is_no_object(self, store: ObjectStore) -> None:
        """An object is not a folder: nothing is listed below it."""
        store.put("data/0/a", [b"x"])
        assert (store.size("data/0"), store.size("data")) == (None, None)

    def test_a_folder_that_was_emptied_can_be_used_again(self, store: ObjectStore) -> None:
        """A listing is sorted while others delete in the folder."""
        with ThreadPoolExecutor(RACERS) as pool:

            def put_and_delete(racer: int) -> None:
                for number in range(ROUNDS):
                    store.put(f"data/0/{racer}-{number}", [b"x"])
                    store.delete([f"data/0/{racer}-{number}"])

            list(pool.map(put_and_delete, range(RACERS)))
        assert store.list("data/") == []

    def test_delete_takes_many_and_may_be_repeated(self, store: ObjectStore) -> None:
        """Deleting an object twice succeeds."""
        keys = [f"d/{number}" for number in range(5)]
        for key in keys:
            store.put(key, [b"x"])
        store.delete(keys[:4])
        store.delete(keys)
        assert store.list("d/") == []

    @pytest.mark.parametrize("count", [1, LARGE_BYTES // 1000])
    def test_a_failed_source_leaves_nothing_visible(self, store: ObjectStore, count: int) -> None:
        """An upload whose chunks end with an error creates no object, in one part or in several."""

        def chunks() -> Iterator[bytes]:
            yield from (b"x" * 1000 for _ in range(count))
            raise ValueError("the source broke")

        with pytest.raises(ValueError, match="the source broke"):
            store.put("data/half", chunks())
        assert store.size("data/half") is None
        assert store.list("data/") == []

    def test_put_new_takes_a_free_name_once(self, store: ObjectStore) -> None:
        """The second put is refused, and the first content remains."""
        assert store.put_new("meta/log/1", b"first")
        assert not store.put_new("meta/log/1", b"second, and longer")
        assert self.raw_get(store, "meta/log/1") == b"first"

    def test_equal_content_does_not_make_a_second_winner(self, store: ObjectStore) -> None:
        """A bytes object that is put a second time is refused as well."""
        data = b"x"
        assert [store.put_new("meta/log/1", data), store.put_new("meta/log/1", data)] == [True, False]

    def test_an_empty_object_is_not_put_exclusively(self, store: ObjectStore) -> None:
        """S3's library drops the condition for such a put, so it is not allowed."""
        with pytest.raises(InvalidRequest, match="empty"):
            store.put_new("meta/log/1", b"")

    def test_of_eight_threads_that_race_one_wins(self, store: ObjectStore) -> None:
        """In every round one process wins, and the content is the winner's."""
        with ThreadPoolExecutor(RACERS) as pool:
            for number in range(ROUNDS):
                key = f"race/{number}"
                answers = list(pool.map(lambda racer, key=key: store.put_new(key, b"%d" % racer), range(RACERS)))
                assert answers.count(True) == 1
                assert self.raw_get(store, key) == b"%d" % answers.index(True)

    def test_of_two_processes_with_eight_threads_each_one_wins(self, store: ObjectStore) -> None:
        """Race for each of many names; the processes meet before each one."""
        if not self.shared_by_processes:
            pytest.skip("this store lives in one process")
        context = get_context("spawn")
        meeting = context.Barrier(2)
        with context.Pool(2, _meet_at, (meeting,)) as pool:
            answers = pool.starmap(_race, [(pickle.dumps(store), number) for number in range(2)], chunksize=1)
        for number, (first, second) in enumerate(zip(*answers, strict=True)):
            assert len(first + second) == 1
            assert self.raw_get(store, f"two/{number}") == (first + second)[0]

    def test_a_store_travels_by_pickle(self, store: ObjectStore) -> None:
        """Spark sends the store to its tasks."""
        store.put("a", [b"x"])
        assert pickle.loads(pickle.dumps(store)).get("a") == b"x"

    @pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # the test needs a process with threads
    def test_a_forked_child_can_use_it(self, store: ObjectStore) -> None:
        """Spark forks its workers after the parent has used the store."""
        store.put("a", [b"x"])
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            status = 1
            try:
                status = 0 if store.get("a") == b"x" else 2
            finally:
                os._exit(status)  # do not return into pytest from here
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    @pytest.mark.parametrize("key", ["/etc/passwd", "../up", "a/../../up", "a//b", "", "a/", "./a", "a\\b"])
    def test_a_key_that_could_leave_the_root_is_refused(self, store: ObjectStore, key: str) -> None:
        """Every operation names the key in its error."""
        for ask in (store.get, store.size, lambda key: store.put(key, [b"x"]), lambda key: store.put_new(key, b"x")):
            with pytest.raises(InvalidRequest, match="relative path"):
                ask(key)

    def test_a_listing_by_the_beginning_of_names(self, store: ObjectStore) -> None:
        """In a folder with one folder per upload epoch, some of them are listed, and nothing else."""
        for key in ("data/01a/x", "data/01b/x", "data/01b/y", "data/02/x", "data/01", "dat/01/x"):
            store.put(key, [b"x"])
        assert store.list("data/01") == ["data/01", "data/01a/x", "data/01b/x", "data/01b/y"]
        assert store.list("data/01b") == ["data/01b/x", "data/01b/y"]
        assert store.list("data/03") == store.list("none/0") == []

    @pytest.mark.parametrize("prefix", ["../", "/", "a/../../", "", "data", "../a", "a/../b"])
    def test_a_listing_stays_below_the_root(self, store: ObjectStore, prefix: str) -> None:
        """A key with a folder's prefix stays inside the folder."""
        with pytest.raises(InvalidRequest, match=r"prefix|relative path"):
            store.list(prefix)

    def test_the_probe_accepts_it_and_cleans_up(self, store: ObjectStore) -> None:
        """The probe deletes its objects."""
        probe(store, nonce="n")
        assert store.list("meta/") == []

    def test_the_fingerprint_is_stable(self, store: ObjectStore) -> None:
        """The probe's report names the implementation."""
        assert store.fingerprint() == pickle.loads(pickle.dumps(store)).fingerprint() != ""


_meeting: Barrier


def _meet_at(meeting: Barrier) -> None:
    global _meeting
    _meeting = meeting


def _race(pickled: bytes, process: int) -> list[list[bytes]]:
    """The content of each name whose creation succeeded in a thread of this process."""
    store: ObjectStore = pickle.loads(pickled)
    sent = [b"%d-%d" % (process, thread) for thread in range(RACERS)]
    won = []
    with ThreadPoolExecutor(RACERS) as pool:
        for number in range(ROUNDS):
            _meeting.wait(MEETING_S)
            answers = pool.map(lambda data, key=f"two/{number}": store.put_new(key, data), sent)
            won.append([data for data, answer in zip(sent, answers, strict=True) if answer])
    return won
