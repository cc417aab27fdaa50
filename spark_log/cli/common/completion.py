"""Completion of names by the shell: topics, groups, profiles.

A name that cannot be found quickly is not offered.  If the log is slow, unavailable or damaged, completion returns
nothing and reports nothing.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from spark_log.cli.common.profiles import profile_names
from spark_log.cli.common.session import CommandSession
from spark_log.errors import SparkLogError

if TYPE_CHECKING:
    from spark_log.metadata.state import State

ANSWER_S = 2.5
"""Timeout for the log, which normally replies within a tenth of a second."""


def complete_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _of_log(ctx, lambda state: state.names, incomplete)


def complete_groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _of_log(ctx, lambda state: state.groups, incomplete)


def complete_profiles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        return _matching(profile_names(), incomplete)
    except SparkLogError:
        return []


def _of_log(ctx: click.Context, names: Callable[[State], Iterable[str]], incomplete: str) -> list[CompletionItem]:
    """Names in the log; none if reading fails or times out."""
    session = ctx.find_root().ensure_object(CommandSession)
    found: list[CompletionItem] = []
    imported = threading.Event()

    def find() -> None:
        try:
            imported.set()  # imports are slow on a busy machine and do not count towards the timeout
            found.extend(_matching(names(session.journal().state), incomplete))
        except Exception:  # noqa: BLE001  the user is typing: the command itself reports errors
            found.clear()
        finally:
            imported.set()

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    thread = threading.Thread(target=find, name="pylog-completion", daemon=True)
    thread.start()
    imported.wait()
    thread.join(ANSWER_S)
    return [] if thread.is_alive() else found


def _matching(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Shells print the names as they are, so one that cannot be printed is not offered."""
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete) and name.isprintable()]
