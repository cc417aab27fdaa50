"""Things that users keep in a log, and expect to find again after any operation on the log: one class for each.

Each feature has its own topics, and all values are unique.  So a check sees each record that is skipped, doubled, or
replaced by another one.
"""

from __future__ import annotations

from tests.crossings.client_features import (
    Bookmarks,
    Groups,
    PendingWrites,
    Producers,
    Schemas,
    Transactions,
    Views,
)
from tests.crossings.flow_features import KeyedStates
from tests.crossings.gateway_features import KafkaClients
from tests.crossings.spark_features import Exports, MirrorSources, MirrorTargets, Pins, StoppedStreams, Streams

FEATURES = (
    Transactions,
    Producers,
    PendingWrites,
    Streams,
    StoppedStreams,
    Groups,
    KafkaClients,
    KeyedStates,
    Bookmarks,
    Exports,
    MirrorSources,
    MirrorTargets,
    Pins,
    Schemas,
    Views,
)
