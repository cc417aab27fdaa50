"""The tests that every `MetadataLog` must pass; subclasses inherit them:

    class TestMyLog(MetadataLogContract):
        @pytest.fixture
        def new(self) -> Callable[[], OpenLog]: return …

Each call of what the fixture `new` gives is another process that opens the same log.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec
import pytest

from spark_log.errors import TopicAlreadyExists
from spark_log.journal.context import Proposal
from spark_log.journal.metadata_log import LogView, MetadataLog, decided
from spark_log.journal.store_operations import Decide, Refresh, Steps
from spark_log.metadata.commands import CreateTopic, SetConfigs
from spark_log.metadata.state import State
from spark_log.store.object_names import PINS

Result = TypeVar("Result")


class OpenLog(NamedTuple):
    """A process with the log."""

    log: MetadataLog[Any]
    run: Callable[[Steps[Any]], Any]
    """Carries out steps."""

    def open(self) -> LogView:
        view: LogView = self.run(self.log.open())
        return view

    def create(self, view: LogView, *topics: str) -> LogView:
        """Create topics, each by a command of one batch."""
        commands = [_create(topic) for topic in topics]
        view = self.run(self.log.propose(view, commands))
        assert all(command.done and command.error is None for command in commands)
        return view


def _create(topic: str) -> Proposal:
    return Proposal(CreateTopic(name=topic, partitions=1, topic_id=uuid.uuid4().hex))


Q = f"{PINS}q"


def _claimed(version: int) -> bytes:
    return msgspec.json.encode({"version": version, "made_ms": 0})


class ClientLogContract:
    """The part without maintenance, for a log of clients.  Subclasses give the fixture `new`, which opens the same new
    log again at each call."""

    @pytest.fixture
    def new(self) -> Callable[[], OpenLog]:
        raise NotImplementedError("give a log")

    def test_a_new_log_is_empty(self, new: Callable[[], OpenLog]) -> None:
        """Its version is 0, and nothing is due."""
        one = new()
        view = one.open()
        assert view.state == State() and not one.log.is_due(view)
        assert one.run(one.log.status()).checkpoint == 0 and one.run(one.log.is_still_there())

    def test_commands_of_one_proposal_share_a_version(self, new: Callable[[], OpenLog]) -> None:
        """Each has its reply, and another process sees all of them."""
        one = new()
        view = one.create(one.open(), "a", "b")
        assert view.state.version == 1 and set(view.state.names) == {"a", "b"}
        other = new()
        assert other.open().state == view.state and other.log.cluster_id == one.log.cluster_id

    def test_a_rejected_command_leaves_the_others_alone(self, new: Callable[[], OpenLog]) -> None:
        """It has its error; a proposal of rejected commands writes nothing."""
        one = new()
        view = one.create(one.open(), "a")
        again, more = _create("a"), _create("b")
        view = one.run(one.log.propose(view, [again, more]))
        assert isinstance(again.error, TopicAlreadyExists) and more.error is None
        assert one.run(one.log.propose(view, [_create("a")])).state.version == view.state.version == 2

    def test_a_command_is_decided_at_the_end_of_the_log(self, new: Callable[[], OpenLog]) -> None:
        """Also if the view is older: another process has written since."""
        one, other = new(), new()
        old, view = one.open(), other.open()
        other.create(view, "a")
        late = _create("a")
        view = one.run(one.log.propose(old, [late]))
        assert isinstance(late.error, TopicAlreadyExists) and view.state.version == 1

    def test_what_was_acknowledged_is_read(self, new: Callable[[], OpenLog]) -> None:
        """By `refresh` and, here, by `look`; a view is not changed by it."""
        one, other = new(), new()
        old, view = one.open(), other.create(other.open(), "a")
        assert one.run(one.log.refresh(old)).state == view.state == one.run(one.log.look(old)).state
        assert old.state.version == 0
        assert one.run(one.log.look(view)).state == view.state

    def test_a_peek_is_for_the_next_change(self, new: Callable[[], OpenLog]) -> None:
        """It is decided on what the peek has seen, and is right whatever the log keeps unconfirmed."""
        one, other = new(), new()
        old, view = one.open(), other.open()
        for name in ("a", "b", "c"):
            view = other.create(view, name)
        seen = one.run(one.log.peek(old))
        assert seen.newest == view.state
        view = one.create(seen, "d")
        assert view.state == view.newest == other.run(other.log.refresh(view)).state and set(view.state.names) == set(
            "abcd"
        )

    def test_a_rejection_after_a_peek_is_confirmed(self, new: Callable[[], OpenLog]) -> None:
        """The view that it is decided on is at the end of the log, as is that of a later refresh."""
        one, other = new(), new()
        old, view = one.open(), other.create(other.open(), "a")
        again = _create("a")
        after = one.run(one.log.propose(one.run(one.log.peek(old)), [again]))
        assert isinstance(again.error, TopicAlreadyExists) and not again.error.maybe_applied
        assert after.state == after.newest == view.state

    def test_a_peek_does_not_hinder_reads(self, new: Callable[[], OpenLog]) -> None:
        """Nor changes of others meanwhile."""
        one, other = new(), new()
        old, view = one.open(), other.create(other.open(), "a")
        seen = one.run(one.log.peek(old))
        view = other.create(view, "b")
        assert one.run(one.log.refresh(seen)).state == one.run(one.log.look(seen)).state == view.state
        assert one.create(seen, "c").state.version == 3

    def test_the_newer_of_two_views(self, new: Callable[[], OpenLog]) -> None:
        """Whichever comes first."""
        one = new()
        old = one.open()
        view = one.create(old, "a")
        assert one.log.newer(old, view).state == one.log.newer(view, old).state == view.state

    def test_states_at_recent_versions(self, new: Callable[[], OpenLog]) -> None:
        """They are as they were then; there are none at later versions, which are not looked for one by one."""
        one = new()
        first = one.create(one.open(), "a")
        view = one.create(first, "b")
        assert one.run(one.log.state_at(1)) == first.state
        assert one.run(one.log.state_at(2)) == view.state
        assert [one.run(one.log.state_at(version)) for version in (3, 2**63 - 1)] == [None, None]

    def test_steps_decide_one_after_the_other(self, new: Callable[[], OpenLog]) -> None:
        """Each gets the state after its commands; a refresh gives what others have written."""
        one, other = new(), new()

        def steps() -> Steps[list[int]]:
            versions = [(yield Decide([_create("a")])).version]
            other.create(other.open(), "b")
            versions.append((yield Refresh()).version)
            versions.append((yield Decide([_create("c")])).version)
            return versions

        view, versions = one.run(decided(one.log, one.open(), steps()))
        assert versions == [1, 2, 3] and set(view.state.names) == {"a", "b", "c"}

    def test_steps_get_the_error_of_a_decision(self, new: Callable[[], OpenLog]) -> None:
        """They may handle it and continue."""
        one = new()

        def fail(state: State, now_ms: int) -> Any:
            raise ZeroDivisionError

        def steps() -> Steps[int]:
            try:
                yield Decide([Proposal(fail)])
            except ZeroDivisionError:
                return (yield Decide([_create("a")])).version
            return 0

        assert one.run(decided(one.log, one.open(), steps()))[1] == 1

    def test_steps_get_the_error_of_a_rejected_command(self, new: Callable[[], OpenLog]) -> None:
        """The commands beside it are applied, and the view has them."""
        one = new()
        old = one.create(one.open(), "a")

        def steps() -> Steps[int]:
            with pytest.raises(TopicAlreadyExists):
                yield Decide([_create("a"), _create("b")])
            return (yield Decide([_create("c")])).version

        view, version = one.run(decided(one.log, old, steps()))
        assert version == 3 and set(view.state.names) == {"a", "b", "c"}

    def test_the_first_claim_stays(self, new: Callable[[], OpenLog]) -> None:
        """Later callers get its value."""
        one, other = new(), new()
        first, second = _claimed(7), _claimed(8)
        assert one.run(one.log.claimed(Q)) is None
        assert one.run(one.log.claim(Q, first)) == first
        assert other.run(other.log.claim(Q, second)) == first
        assert other.run(other.log.claim(f"{Q}2", second)) == second
        assert one.run(one.log.claimed(Q)) == first


class MetadataLogContract(ClientLogContract):
    """The whole interface."""

    def test_states_before_two_checkpoints_are_not_known_any_more(self, new: Callable[[], OpenLog]) -> None:
        """Later ones are: tasks of a query that agreed on one can begin until the next checkpoint but one."""
        one = new()
        first = one.create(one.open(), "a")
        second = one.create(first, "b")
        view = one.run(one.log.checkpoint(second))
        assert [one.run(one.log.state_at(version)) for version in (1, 2)] == [first.state, second.state]
        third = one.create(view, "c")
        one.run(one.log.checkpoint(third))
        assert [one.run(one.log.state_at(version)) for version in (1, 2, 3)] == [None, second.state, third.state]

    def test_claims_expire_with_the_fence(self, new: Callable[[], OpenLog]) -> None:
        """Only those of versions at or below it."""
        one = new()
        for version in (0, 5):
            one.run(one.log.claim(f"{Q}{version}", _claimed(version)))
        assert one.run(one.log.expire_claims(State(fence=-1))) == 0
        assert one.run(one.log.expire_claims(State(fence=4))) == 1
        assert one.run(one.log.claim(f"{Q}5", b"new")) == _claimed(5)

    def test_a_checkpoint_is_written_once(self, new: Callable[[], OpenLog]) -> None:
        """It is due after so many versions; the log is the same afterwards, and opens from it."""
        one, other = new(), new()
        configs: dict[str, str | None] = {"metadata.checkpoint.interval": "2"}
        view = one.run(one.log.propose(one.open(), [Proposal(SetConfigs(name=None, changes=configs))]))
        assert not one.log.is_due(view)
        view = one.create(view, "a")
        assert one.log.is_due(view)
        stale = other.open()
        written = one.run(one.log.checkpoint(view))
        assert written.state == view.state and not one.log.is_due(written)
        assert one.run(one.log.status()).checkpoint == 2
        assert not other.log.is_due(other.run(other.log.look_again(stale)))
        assert one.run(one.log.checkpoint(written)) == written
        one.run(one.log.truncate(written))
        assert new().open().state == one.run(one.log.refresh(stale)).state == view.state

    def test_a_checkpoint_after_a_commit_replaces_the_older_ones(self, new: Callable[[], OpenLog]) -> None:
        """The log continues from it in every process."""
        one, other = new(), new()
        view, old = one.open(), other.open()
        for topic in ("a", "b", "c"):
            view = one.create(view, topic)
            view = one.run(one.log.checkpoint_and_truncate(view, view.state.fence))
        assert one.run(one.log.status()).checkpoint == 3
        assert other.create(old, "d").state.version == 4
        assert set(new().open().state.names) == {"a", "b", "c", "d"}
