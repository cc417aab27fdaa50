"""How long a client waits for coordinators that do not answer."""

from __future__ import annotations

from typing import NamedTuple

from spark_log.http.client_connection import CONNECT_S

FIRST_ANSWER_S = 6.0
"""Timeout for the first request (the log's id).  The coordinator answers it from memory, so a silent port fails
fast."""
CHECK_S = 3.0
"""After this long without a reply, the client checks whether the process answers `GET /health` within CONNECT_S.  A
suspended process or a half-open connection does not; a process that is busy, or whose storage is slow, does."""
QUICK_CHECK_S = 1.0
"""How long a client waits before the check, and for its answer, if the URL has several addresses: another node leads
a second after the leader hangs.  A change that was sent to the leader is sent again, and recognised."""
START_S = (0.1, 0.2, 0.4, 0.8, 1.6, 3.0)
"""Pauses between attempts if the address refuses connections or hangs up: the coordinator may be restarting."""


class ClientTimeouts(NamedTuple):
    """Seconds."""

    check_s: float = CHECK_S
    health_s: float = CONNECT_S
    first_answer_s: float = FIRST_ANSWER_S
    start_s: tuple[float, ...] = START_S


ONE_ADDRESS = ClientTimeouts()
SEVERAL_ADDRESSES = ClientTimeouts(check_s=QUICK_CHECK_S, health_s=QUICK_CHECK_S)
