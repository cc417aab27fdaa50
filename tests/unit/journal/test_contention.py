"""Writers of several processes that commit all the time: each gets its turn."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from spark_log.journal import batch_decision
from spark_log.journal.context import Context, Proposal
from spark_log.journal.storage import commit_protocol
from spark_log.journal.storage.opening import View, open_view
from spark_log.journal.store_operations import PutNew, Sleep, Steps, Stores, run
from spark_log.metadata.decision import Decision
from spark_log.metadata.records import AnyRecord, CommitRecord
from spark_log.metadata.replay import next_version, replay_records
from spark_log.metadata.state import State
from spark_log.metadata.topics.decide_topics import decide_create_topic
from spark_log.model import DataObject, Run
from spark_log.runtime.debug import INVARIANTS_VARIABLE
from spark_log.store.memory import MemoryStore
from tests.unit.journal.sample_journals import TickingClock, commit, create, open_log


class Contended:
    """A log in which another process commits during each pause of a proposal, and whenever it is asked to."""

    def __init__(self) -> None:
        self.store = MemoryStore(uuid.uuid4().hex)
        self.other = open_log(self.store)
        create(self.other)
        self.commits = 0
        self.at_put: Callable[[], object] = lambda: None
        self.context = Context(TickingClock(), random.Random(1))

    def commit(self) -> None:
        """A commit of the other process."""
        commit(self.other, "busy", self.commits)
        self.commits += 1

    def propose(self, proposal: Proposal) -> View:
        """A proposal of this process."""
        stores, clock = Stores.of(self.store), TickingClock()
        view: View = run(open_view(), stores, clock)
        return run(self._beside(commit_protocol.propose(view, [proposal], self.context)), stores, clock)

    def _beside(self, steps: Steps[View]) -> Steps[View]:
        """The steps, with commits of the other process in the pauses, and `at_put` before each put."""
        reply: Any = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as ended:
                return ended.value
            if isinstance(step, Sleep):
                self.commit()
            if isinstance(step, PutNew):
                self.at_put()
            reply = yield step


def test_a_decision_is_made_on_what_was_read_after_the_pause() -> None:
    """Otherwise each decision would be made on a state to which the others have added by then."""
    log = Contended()
    decided: list[int] = []

    def decide(state: State, now_ms: int) -> Decision[Any]:
        if not decided:
            log.commit()  # so the first attempt loses
        decided.append(state.version)
        return decide_create_topic(state, "late", 1, {}, "id-late")

    proposal = Proposal(decide)
    view = log.propose(proposal)
    assert proposal.error is None and "late" in view.state.names
    assert len(decided) == 2 and decided[1] == decided[0] + 2


class Watched(tuple[AnyRecord, ...]):
    """Records that count how often somebody goes through them: for the batch, and for the replay."""

    looks = 0

    def __iter__(self) -> Iterator[AnyRecord]:
        self.looks += 1
        return super().__iter__()


def test_the_replay_of_another_attempt_comes_after_its_put() -> None:
    """It takes time in which others would win.  The first attempt is replayed before its put."""
    log, decided = Contended(), list[Watched]()

    def decide(state: State, now_ms: int) -> Decision[Any]:
        if not decided:
            log.commit()
        decision = decide_create_topic(state, "late", 1, {}, "id-late")
        decided.append(Watched(decision.records))
        return Decision(decided[-1], decision.reply)

    log.at_put = lambda: looks.append(decided[-1].looks)
    looks: list[int] = []
    assert "late" in log.propose(Proposal(decide)).state.names
    assert looks == [3, 2]  # the names are checked before
    assert decided[1].looks == 3


def test_a_command_of_another_process_is_always_replayed_before_its_put() -> None:
    """One that cannot be replayed would make the log unreadable."""
    state = Contended().other.state
    proposal = Proposal(lambda state, now_ms: decide_create_topic(state, "late", 1, {}, "id-late"), check=True)
    attempt, records, refused = batch_decision.decide_batch(state, [proposal], 1, again=True)
    assert records and not refused
    assert "late" in attempt.before.names


@pytest.mark.parametrize("again", [False, True])
def test_a_command_that_cannot_be_replayed_is_refused_alone(*, again: bool) -> None:
    """Those before and after it in the batch are written."""
    state = Contended().other.state

    def unknown(state: State, now_ms: int) -> Decision[Any]:
        return Decision([cast(AnyRecord, object())], None)

    def creation(name: str) -> Proposal:
        return Proposal(lambda state, now_ms: decide_create_topic(state, name, 1, {}, f"id-{name}"), check=True)

    commands = [creation("first"), Proposal(unknown, check=True), creation("second")]
    attempt, records, refused = batch_decision.decide_batch(state, commands, 1, again=again)
    assert [command for command, _ in refused] == [commands[1]]
    assert [command for command, _ in attempt.decisions] == [commands[0], commands[2]]
    after = attempt.state()
    assert "first" in after.names and "second" in after.names
    assert replay_records(next_version(state, 1), records).names == after.names


# Promise: service.md#as-a-service
@pytest.mark.parametrize("switch", ["0", "1"])
def test_a_change_that_would_break_a_rule_is_refused_alone_if_rules_are_checked(
    switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the name of the rule, and nothing of it is written; by default, changes are not checked."""
    monkeypatch.setenv(INVARIANTS_VARIABLE, switch)
    state = Contended().other.state
    row = CommitRecord(
        producer="p", sequence=0, birth=0, upload_epoch=0,
        objects=(DataObject("data/0000000000000000/a.seg", 100, 90),),
        slices=tuple((0, Run(state.names["t"], 0, 10 * number, 60, 7, 1, 1, 0, 0)) for number in range(2)),
    )  # fmt: skip
    commands = [
        Proposal(lambda state, now_ms: decide_create_topic(state, "first", 1, {}, "id-first")),
        Proposal(lambda state, now_ms: Decision([row], None)),
    ]
    attempt, _, refused = batch_decision.decide_batch(state, commands, 1, again=True)
    assert "first" in attempt.state().names
    assert len(attempt.state().producers) == (0 if refused else 1)
    texts = [str(error) for _, error in refused]
    assert len(texts) == int(switch) and all(
        "rule of the log: slices_share_no_bytes: t-0 and t-0" in one for one in texts
    )
