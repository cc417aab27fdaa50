"""The base of commands: a decision as a value with all of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar, TypeAlias

import msgspec
from typing_extensions import Self

from spark_log.bounds import Int, Text
from spark_log.errors import InvalidRequest
from spark_log.metadata.decision import Decision
from spark_log.metadata.lines import is_of_plan
from spark_log.metadata.state import State
from spark_log.text import shown

HeldPosition: TypeAlias = tuple[Text, Text, Int]
"""(group, topic id, partition) of a position that is to stay."""
SHOWN_MAX = 200
"""Characters of a value in a message."""


class Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """Base of all commands."""

    role: ClassVar[str] = "admin"
    """The required role: read, write or admin, each including the ones before it."""

    def __call__(self, state: State, now_ms: int) -> Decision[Any]:
        """Decide the command."""
        raise NotImplementedError

    def topics(self, state: State) -> Sequence[str]:
        """Names of the topics that the command uses."""
        return ()

    def groups(self) -> Sequence[str]:
        """Groups whose members or positions the command uses."""
        return ()

    def producers(self) -> Sequence[str]:
        """Producer identities that the command commits under, takes over or ends."""
        return ()

    def pack(self, reply: Any) -> Any:
        """The reply as a JSON value."""
        return reply

    def unpack(self, packed: Any) -> Any:
        """The inverse of `pack`."""
        return packed

    def keeping(self, held: Callable[[], tuple[HeldPosition, ...]], copied: int | None = None) -> Self:
        """The command for a coordinator, which does not remove what is still needed.

        held:    positions that stay.  Called only if the command might remove some.
        copied:  as in `decide_fence`.
        """
        return self

    def parts(self) -> Sequence[Command]:
        """The commands that are decided: this one, or those of an atomic set."""
        return (self,)

    def check_types(self) -> None:
        """Raises InvalidRequest for a value of a wrong type: a record with it could not be read by any process.

        A coordinator finds it when it decodes the request; without one, nobody else would.
        """
        check_types_of(self)


class PlannedCommand(Command, frozen=True, kw_only=True):
    """Base of commands that are true only of the log whose state was read: they have its offsets, versions and epochs,
    or say what was written, deleted or found on the roots since then.

    They do nothing, with the reply `void`, if the log was restored from a copy since, or set back to an older one.
    """

    void: ClassVar[Any] = False
    """The reply in another log."""
    history: Text = ""
    """The history of the state by which it was planned, or that with its place in the line: `plan_of`."""

    def __call__(self, state: State, now_ms: int) -> Decision[Any]:
        return self.decide(state, now_ms) if is_of_plan(state, self.history) else Decision((), self.void)

    def decide(self, state: State, now_ms: int) -> Decision[Any]:
        """Decide the command in the log in which it was planned."""
        raise NotImplementedError


def check_types_of(message: msgspec.Struct) -> None:
    """Raises InvalidRequest as `Command.check_types`, for any message that becomes a part of a record."""
    try:
        _decoder(type(message)).decode(msgspec.json.encode(message))
    except (msgspec.ValidationError, TypeError, ValueError, OverflowError) as error:
        kind = str(type(message).__struct_config__.tag)
        raise InvalidRequest(f"{kind}: {_named(message, str(error)) or _unencoded(message, error)}") from error


@cache
def _decoder(kind: type[msgspec.Struct]) -> msgspec.json.Decoder[msgspec.Struct]:
    return msgspec.json.Decoder(kind)


def _named(command: msgspec.Struct, problem: str) -> str:
    """The problem of a value, after its name, and the value if it is not inside of another; empty if the name is not
    known."""
    text, _, where = problem.partition(" - at `$.")
    name = where.removesuffix("`")
    if not name:
        return ""
    if name in command.__struct_fields__:
        text = f"{text.partition(', got ')[0]}, got {shown(getattr(command, name))[:SHOWN_MAX]}"
    return f"{name}: {text[:1].lower()}{text[1:]}"


def _unencoded(command: msgspec.Struct, error: Exception) -> str:
    """The first value that cannot be encoded, and why."""
    for name in command.__struct_fields__:
        value = getattr(command, name)
        try:
            msgspec.json.encode(value)
        except UnicodeEncodeError:
            return f"{name}: {shown(value)[:SHOWN_MAX]} cannot be encoded as UTF-8: give text without lone surrogates"
        except (TypeError, ValueError, OverflowError):
            return f"{name}: {shown(value)[:SHOWN_MAX]} has a type that the log cannot store"
    return str(error)


def topic_names(state: State, ids: Sequence[str]) -> list[str]:
    """Names of topics, in order; ids of topics that are gone are left out."""
    return sorted({state.topics[topic_id].name for topic_id in ids if topic_id in state.topics})
