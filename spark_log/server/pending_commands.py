"""The commands of one request to a coordinator, which wait for their outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from spark_log.errors import NotCoordinator, SparkLogError
from spark_log.journal.context import Proposal
from spark_log.journal.store_operations import Answered
from spark_log.metadata.state import State


class PendingCommands(NamedTuple):
    """None: the request is for the end of the log."""

    commands: list[Proposal]
    answer: Future[Answered]

    def complete(self) -> None:
        """Complete the future: all commands are done."""
        deposed = next((c.error for c in self.commands if isinstance(c.error, NotCoordinator)), None)
        with suppress(InvalidStateError):  # failed before, when this coordinator stepped down
            if deposed is not None:
                self.answer.set_exception(deposed)
            else:
                self.answer.set_result(Answered([c.reply if c.error is None else c.error for c in self.commands]))

    def give_up(self, error: SparkLogError) -> None:
        """Fail the future, unless it has just been completed."""
        with suppress(InvalidStateError):
            self.answer.set_exception(error)

    def reset(self) -> None:
        """The commands will be decided again: nothing was told or written."""
        for command in self.commands:
            command.reply, command.error, command.done = None, None, False


def pending_commands(commands: Sequence[Any], allow: Callable[[Any, State], None] | None) -> PendingCommands:
    """Commands of clients.

    allow:  as in `Service.submit`.
    """
    rules = [None if allow is None else partial(allow, command) for command in commands]
    some = [Proposal(command, check=True, allow=rule) for command, rule in zip(commands, rules, strict=True)]
    return PendingCommands(some, Future())


def commands_of(pending: Sequence[PendingCommands]) -> list[Proposal]:
    return [command for one in pending for command in one.commands]
