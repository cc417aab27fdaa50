"""Records that a standby returns to clients."""

from __future__ import annotations

import threading

from spark_log.metadata.formats.batch_format import encode_batch
from spark_log.metadata.records import Batch, InitProducerRecord
from spark_log.metadata.state import Leadership
from spark_log.server.coordinator import Coordinator, LeaderStatus
from spark_log.store.memory import MemoryStore
from spark_log.store.object_names import log_key
from tests.processes import eventually
from tests.unit.journal.sample_journals import commit, create, numbers, open_log

LEFTOVER = encode_batch(Batch(id="late", time=1, epoch=1, records=(InitProducerRecord(producer="late"),)))


def test_a_standby_forgets_records_before_the_checkpoint_from_which_it_opened_the_log_again() -> None:
    """They may be leftovers: a late put may have taken the name of a record that was deleted."""
    store = MemoryStore(f"standby-{next(numbers)}")
    journal = open_log(store)
    create(journal)
    standby = Coordinator(store, host="here", ask_leader=lambda holder: LeaderStatus.LEADS)
    known = standby.state.version
    journal.take_over(0, "there:1", "there")
    for sequence in range(150):
        commit(journal, "p", sequence)
    store.put(log_key(known + 1), [LEFTOVER])
    standby.address = "here:1"
    thread = threading.Thread(target=standby.run)
    thread.start()
    try:
        eventually(lambda: standby.change_feed.version == journal.state.version)
        assert standby.state == journal.state
        assert LEFTOVER not in standby.after(known, known + 1, 1 << 20)
        commit(journal, "p", 150)
        eventually(lambda: standby.change_feed.version == journal.state.version)
        newest = journal.state.version
        assert list(standby.after(newest - 1, newest, 1 << 20)) == [store.get(log_key(newest))]
    finally:
        standby.stop()
        thread.join(30)


def test_a_standby_that_takes_over_a_log_that_went_on_forgets_them_too() -> None:
    """It was suspended between its last look at the log and the take-over."""
    store = MemoryStore(f"standby-{next(numbers)}")
    journal = open_log(store)
    create(journal)
    journal.take_over(0, "there:1", "there")
    known = journal.state.version

    def ask_leader(holder: Leadership) -> LeaderStatus:
        if journal.state.version == known:
            for sequence in range(150):
                commit(journal, "p", sequence)
            store.put(log_key(known + 1), [LEFTOVER])
        return LeaderStatus.STEPPED_DOWN

    standby = Coordinator(store, host="here", ask_leader=ask_leader)
    standby.address = "here:1"
    thread = threading.Thread(target=standby.run)
    thread.start()
    try:
        eventually(lambda: standby.leading)
        assert standby.state.version > known + 150
        assert LEFTOVER not in standby.after(known, known + 1, 1 << 20)
    finally:
        standby.stop()
        thread.join(30)
