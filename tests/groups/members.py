"""A coordinator of one group and a manual clock, for tests: requests go in by name, answers are looked up."""

from __future__ import annotations

from spark_log.groups.group import Group, GroupConfig, StepOutcome
from spark_log.groups.messages import (
    Code,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    Journaled,
    LeaveGroupRequest,
    LeavingMember,
    MemberProtocol,
    OffsetCommitRequest,
    Request,
    Response,
    SyncGroupRequest,
    SyncGroupResponse,
)
from spark_log.groups.state_machine import next_deadline, step, tick

CONFIG = GroupConfig(initial_rebalance_delay_ms=3_000, min_session_timeout_ms=0)
RANGE = (MemberProtocol("range", b"orders"),)


class Coordinator:
    """The shell of one group; its journal answers immediately unless `holds` is set."""

    def __init__(self, config: GroupConfig = CONFIG) -> None:
        self.group: Group | None = None
        self.config = config
        self.now_ms = 0
        self.answers: dict[int, Response] = {}
        self.rosters: list[object] = []
        self.holds: list[int] | None = None
        """Tickets that the journal has not answered for, if it is slow."""
        self._ids = 0

    def send(self, request: Request) -> int:
        """The correlation id under which the answer is found."""
        self._ids += 1
        correlation_id = self._ids
        self._take(step(self.group, request, self.now_ms, correlation_id=correlation_id, config=self.config))
        return correlation_id

    def advance(self, ms: int) -> None:
        end = self.now_ms + ms
        while self.group is not None and (due := next_deadline(self.group)) is not None and due <= end:
            self.now_ms = max(due, self.now_ms)
            self._take(tick(self.group, self.now_ms, config=self.config))
        self.now_ms = end

    def journaled(self, ticket: int, error: Code = Code.NONE) -> None:
        self.send(Journaled(group_id="g", ticket=ticket, error=error))

    def _take(self, outcome: StepOutcome) -> None:
        self.group = outcome.group
        for reply in outcome.replies:
            assert reply.correlation_id not in self.answers, "a request is answered once"
            self.answers[reply.correlation_id] = reply.response
        for record in outcome.records:
            self.rosters.append(record.roster)
            if self.holds is None:
                self.journaled(record.ticket)
            else:
                self.holds.append(record.ticket)

    # ------------------------------------------------------------------------------------------------------- requests

    def join(
        self,
        member_id: str,
        *,
        new: bool = False,
        instance: str | None = None,
        protocols: tuple[MemberProtocol, ...] = RANGE,
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        skips: bool = True,
    ) -> int:
        """new: the member has no id yet and gets `member_id` immediately."""
        return self.send(
            JoinGroupRequest(
                group_id="g",
                member_id="" if new else member_id,
                new_member_id=member_id,
                group_instance_id=instance,
                protocols=protocols,
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=rebalance_ms,
                require_known_member_id=False,
                supports_skipping_assignment=skips,
            )
        )

    def sync(self, member_id: str, generation: int, assignments: dict[str, bytes] | None = None) -> int:
        return self.send(
            SyncGroupRequest(group_id="g", member_id=member_id, generation_id=generation, assignments=assignments or {})
        )

    def heartbeat(self, member_id: str, generation: int) -> Code:
        return self._code(self.send(HeartbeatRequest(group_id="g", member_id=member_id, generation_id=generation)))

    def leave(self, member_id: str, instance: str | None = None) -> int:
        return self.send(LeaveGroupRequest(group_id="g", members=(LeavingMember(member_id, instance),)))

    def commit(self, member_id: str, generation: int, instance: str | None = None) -> Code:
        return self._code(
            self.send(
                OffsetCommitRequest(
                    group_id="g", member_id=member_id, generation_id=generation, group_instance_id=instance
                )
            )
        )

    # -------------------------------------------------------------------------------------------------------- answers

    def _code(self, correlation_id: int) -> Code:
        return self.answers[correlation_id].error

    def joined(self, correlation_id: int) -> JoinGroupResponse:
        answer = self.answers[correlation_id]
        assert isinstance(answer, JoinGroupResponse)
        return answer

    def synced(self, correlation_id: int) -> SyncGroupResponse:
        answer = self.answers[correlation_id]
        assert isinstance(answer, SyncGroupResponse)
        return answer

    def waits(self, correlation_id: int) -> bool:
        return correlation_id not in self.answers


def stable(*names: str, config: GroupConfig = CONFIG) -> Coordinator:
    """A group in generation 1, each member assigned its own name."""
    at = Coordinator(config)
    for name in names:
        at.join(name, new=True)
    at.advance(6_000)
    for name in reversed(names):
        at.sync(name, 1, {name: name.encode() for name in names} if name == names[0] else None)
    return at
