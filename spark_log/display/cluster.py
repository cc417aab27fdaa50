"""A log in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_log.client.log import Log


def info_fields(log: Log) -> dict[str, Any]:
    """The log in numbers."""
    from spark_log.metadata.features import METADATA_VERSION
    from spark_log.metadata.maps.column_map import stored_bytes

    state = log.journal.refresh()
    return {
        "url": log.url,
        "cluster_id": log.cluster_id,
        "version": state.version,
        "metadata_level": state.levels[METADATA_VERSION],
        "checkpoint": log.journal.run(log.journal.metadata_log.status()).checkpoint,
        "fence": state.fence,
        "coordinator": state.coordinator.address,
        "coordinator_epoch": state.coordinator.epoch,
        "topics": len(state.names),
        "partitions": len(state.partitions),
        "records": sum(part.readable_end - part.start for part in state.partitions.values()),
        "objects": len(state.objects),
        "bytes": stored_bytes(state.objects),
        "groups": len(state.groups),
        "producers": len(state.producers),
    }
