"""Computes the digests of a node's states that all nodes compare, in a thread, one after another."""

from __future__ import annotations

from collections.abc import Callable

from spark_log.log_lines import logger
from spark_log.metadata.formats.state_digest import DIGEST_FORM
from spark_log.metadata.state import State
from spark_log.quorum.node.node import Node
from spark_log.quorum.node.node_host import NodeHost


class StateComparison:
    """Compares the states of other nodes with that of one node.  Belongs to its event loop."""

    def __init__(self, host: NodeHost, digest: Callable[[State], str], node: Node) -> None:
        """
        digest:  called in the thread.
        """
        self._threads = host.daemon_threads(1, "pylog-quorum-digest")
        self._digest, self._node = digest, node
        self._next: State | None = None
        """The newest state that waits.  Older ones are left out: a node that catches up has many."""
        self._is_busy = False

    async def add(self, state: State) -> None:
        self._next = state
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while (state_now := self._take()) is not None:
                digest = await self._threads.submit(self._digest, state_now)
                self._node.note_digest(DIGEST_FORM, state_now.version, digest)
        except Exception:  # the next one may succeed, and the node works without
            logger.exception("no digest of the state was computed")
        finally:
            self._is_busy = False

    def _take(self) -> State | None:
        state, self._next = self._next, None
        return state

    def close(self) -> None:
        self._threads.close()
