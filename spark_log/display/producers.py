"""Rows of producers and of transactional ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_log.positions import format_timestamp_ms

if TYPE_CHECKING:
    from spark_log.client.admin.transactional_ids import TransactionListing
    from spark_log.metadata.state import State


def producer_rows(state: State) -> list[dict[str, Any]]:
    """A row per producer, by name."""
    return [
        {
            "producer": name,
            "kind": "plain" if found.plain else "named",
            "epoch": found.epoch,
            "sequence": found.last,
            "holder": found.holder or None,
            "version": found.version,
            "time": format_timestamp_ms(found.time),
        }
        for name, found in sorted(state.producers.items())
    ]


def transaction_row(found: TransactionListing) -> dict[str, Any]:
    """The row of a transactional id, with its newest transaction."""
    return {
        "transaction": found.transactional_id,
        "state": found.state,
        "epoch": found.producer_epoch,
        "time": format_timestamp_ms(found.last_change_ms),
        "timeout_ms": found.timeout_ms or None,
    }
