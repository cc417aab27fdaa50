"""The answers to requests that commit, read and delete the positions of groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_log.errors import GroupInUse, IllegalGeneration, SparkLogError
from spark_log.gateway.error_codes import (
    GROUP_AUTHORIZATION_FAILED,
    GROUP_ID_NOT_FOUND,
    GROUP_SUBSCRIBED_TO_TOPIC,
    ILLEGAL_GENERATION,
    INVALID_REQUEST,
    NONE,
    OFFSET_METADATA_TOO_LARGE,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from spark_log.gateway.followed_state import FollowedState
from spark_log.gateway.groups.group_codes import group_code_of
from spark_log.gateway.groups.group_machine import GroupMachine
from spark_log.gateway.groups.member_requests import MemberRequests
from spark_log.gateway.groups.position_messages import (
    CommitPositionsRequest,
    CommitPositionsResponse,
    CommittedOfGroup,
    CommittedPosition,
    CommittedPositions,
    DeletePositionsRequest,
    DeletePositionsResponse,
    FetchPositionsRequest,
    FetchPositionsResponse,
    PartitionResult,
    PartitionResults,
    PositionsAsked,
    PositionsToDelete,
    PositionToCommit,
)
from spark_log.gateway.groups.served_groups import ServedGroups
from spark_log.gateway.leader_epochs import end_of_epoch, leader_epoch
from spark_log.groups.messages import Code
from spark_log.groups.offset_deletion import check_metadata
from spark_log.metadata.groups.group_commands import UNFENCED, CommitOffsets, Committer, DeleteOffsets
from spark_log.metadata.records import GroupCommit, OffsetEntry
from spark_log.metadata.restores import history_of
from spark_log.metadata.state import GroupPosition, GroupState, State, TopicKey
from spark_log.positions import OFFSET_MAX

GROUPS_SINCE = 8
"""The version of OffsetFetch that names several groups."""
POSITIONS_MAX = 50_000
"""After so many positions, a response has no further groups: a group may have many, and a request many groups."""


class GroupPositions:
    """Belongs to one event loop."""

    def __init__(
        self, machine: GroupMachine, members: MemberRequests, followed: FollowedState, served: ServedGroups
    ) -> None:
        self._machine = machine
        self._members = members
        self._followed = followed
        self._served = served

    # ----------------------------------------------------------------------------------------------------------- commit

    async def commit(self, request: CommitPositionsRequest, version: int) -> CommitPositionsResponse:
        state = await self._followed.recent()
        if any(topic.name not in state.names for topic in request.topics):
            state = await self._followed.newest()  # one of them may be new
        may = self._served.may_change(state, request.group_id)
        codes: dict[tuple[str, int], int] = {}
        entries: dict[TopicKey, OffsetEntry] = {}
        for topic in request.topics:
            code, topic_id = self._served.topics.by_name(state, topic.name) if may else (GROUP_AUTHORIZATION_FAILED, "")
            count = state.topics[topic_id].partitions if code == NONE else 0
            for one in topic.partitions:
                found = code or _fault(one, count) or _epoch_fault(state, topic_id, one)
                codes[topic.name, one.partition_index] = found
                if not found:
                    key = topic_id, one.partition_index
                    entries[key] = OffsetEntry(*key, one.committed_offset, one.committed_metadata or "")
        failed = await self._commit(request, tuple(entries.values()), history_of(state)) if entries else NONE
        return CommitPositionsResponse(
            topics=[
                PartitionResults(
                    name=topic.name,
                    partitions=[
                        PartitionResult(
                            partition_index=one.partition_index,
                            error_code=codes[topic.name, one.partition_index] or failed,
                        )
                        for one in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    async def _commit(self, request: CommitPositionsRequest, entries: tuple[OffsetEntry, ...], history: str) -> int:
        """The error code for all positions.

        history:  of the state in which they were checked.
        """
        member, instance = request.member_id, request.group_instance_id
        generation = max(request.generation_id, UNFENCED)
        is_member = generation != UNFENCED or member or instance is not None
        command = CommitOffsets(
            commit=GroupCommit(request.group_id, generation, entries),
            by=Committer(member, instance) if is_member else None,
            live_only=True,
            history=history,
        )
        try:
            await self._machine.change(command)
        except IllegalGeneration:
            # A client that is not a member any more joins as a new one: only the machine knows that.
            code = await self._members.error_of_member(request.group_id, member, generation, instance)
            return ILLEGAL_GENERATION if code in (NONE, REBALANCE_IN_PROGRESS) else code
        except SparkLogError as error:
            return group_code_of(error)
        return NONE

    # ------------------------------------------------------------------------------------------------------------ fetch

    async def fetch(self, request: FetchPositionsRequest, version: int) -> FetchPositionsResponse:
        state = await self._followed.newest()
        if version < GROUPS_SINCE:
            return FetchPositionsResponse(topics=self._of_group(state, request.group_id, request.topics))
        found: dict[str, CommittedOfGroup] = {}
        size = 0
        for one in request.groups:
            if one.group_id in found:
                continue
            if size >= POSITIONS_MAX:
                found[one.group_id] = CommittedOfGroup(group_id=one.group_id, error_code=INVALID_REQUEST)
                continue
            topics = self._of_group(state, one.group_id, one.topics)
            found[one.group_id] = CommittedOfGroup(group_id=one.group_id, topics=topics)
            size += sum(len(topic.partitions) for topic in topics)
        return FetchPositionsResponse(groups=list(found.values()))

    def _of_group(
        self, state: State, group_id: str, asked: Sequence[PositionsAsked] | None
    ) -> list[CommittedPositions]:
        offsets = state.groups.get(group_id, GroupState()).offsets
        if asked is None:
            asked = self._all_of(state, offsets)
        return [
            CommittedPositions(
                name=topic.name,
                partitions=[
                    _position(
                        number, offsets.get((topic_id, number)), code if code != UNKNOWN_TOPIC_OR_PARTITION else NONE
                    )
                    for number in topic.partition_indexes
                ],
            )
            for topic in asked
            for code, topic_id in [self._served.topics.by_name(state, topic.name)]
        ]

    def _all_of(self, state: State, offsets: Mapping[TopicKey, GroupPosition]) -> list[PositionsAsked]:
        found: dict[str, list[int]] = {}
        for topic_id, number in sorted(offsets):
            topic = state.live_topic(topic_id)
            if topic is not None and self._served.topics.serves(topic.name):
                found.setdefault(topic.name, []).append(number)
        return [PositionsAsked(name=name, partition_indexes=numbers) for name, numbers in sorted(found.items())]

    # ----------------------------------------------------------------------------------------------------------- delete

    async def delete(self, request: DeletePositionsRequest, version: int) -> DeletePositionsResponse:
        state = await self._followed.newest()
        if not self._served.may_change(state, request.group_id):
            return DeletePositionsResponse(error_code=GROUP_AUTHORIZATION_FAILED)
        if request.group_id not in state.groups:
            return DeletePositionsResponse(error_code=GROUP_ID_NOT_FOUND)
        return DeletePositionsResponse(
            topics=[
                PartitionResults(
                    name=topic.name,
                    partitions=[
                        PartitionResult(partition_index=one.partition_index, error_code=code)
                        for one in topic.partitions
                    ],
                )
                for topic in request.topics
                for code in [await self._delete(state, request.group_id, topic)]
            ]
        )

    async def _delete(self, state: State, group_id: str, topic: PositionsToDelete) -> int:
        """The error code for the partitions of a topic."""
        code, topic_id = self._served.topics.by_name(state, topic.name)
        keys = tuple((topic_id, one.partition_index) for one in topic.partitions if one.partition_index >= 0)
        if code != NONE or not keys:
            return code
        try:
            await self._machine.change(DeleteOffsets(group=group_id, partitions=keys, known=True))
        except GroupInUse:
            return GROUP_SUBSCRIBED_TO_TOPIC
        except SparkLogError as error:
            return group_code_of(error)
        return NONE


def _fault(one: PositionToCommit, partitions: int) -> int:
    """The error code of a position that cannot be committed."""
    if not 0 <= one.partition_index < partitions:
        return UNKNOWN_TOPIC_OR_PARTITION
    if not 0 <= one.committed_offset <= OFFSET_MAX:
        return INVALID_REQUEST
    fits = check_metadata(one.committed_metadata or "") is Code.NONE
    return NONE if fits else OFFSET_METADATA_TOO_LARGE


def _epoch_fault(state: State, topic_id: str, one: PositionToCommit) -> int:
    """The error code of a position among records that are gone: of a topic that was deleted, or before a restore."""
    epoch = one.committed_leader_epoch
    if epoch < 0 or epoch >= leader_epoch(state, topic_id):
        return NONE
    _, end = end_of_epoch(state, (topic_id, one.partition_index), epoch)
    return NONE if one.committed_offset <= end else UNKNOWN_TOPIC_OR_PARTITION


def _position(number: int, at: GroupPosition | None, code: int) -> CommittedPosition:
    """Without a position, the offset is -1."""
    if code != NONE or at is None:
        return CommittedPosition(partition_index=number, metadata="", error_code=code)
    return CommittedPosition(partition_index=number, committed_offset=at.offset, metadata=at.metadata)
