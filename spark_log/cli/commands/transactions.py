"""`pylog transaction …`: transactional ids and their newest transactions."""

from __future__ import annotations

import click

from spark_log.cli.common.base import Noun, confirmed, guarded, pass_session, verb
from spark_log.cli.common.output import Table, emit_line, emit_parts, emit_rows
from spark_log.cli.common.session import CommandSession
from spark_log.display.producers import transaction_row

COLUMNS = ["transaction", "state", "epoch", "time", "timeout_ms"]


@click.group(cls=Noun)
def transaction() -> None:
    """List, describe and abort transactions.

    An open transaction delays no reader: its records are appended when it commits.
    """


@verb(transaction, "list")
@pass_session
def list_transactions(session: CommandSession) -> None:
    """List transactional ids with the state of their newest transaction, and the time of its last change.

    \b
    Example:
      pylog transaction list
    """
    emit_rows(session, COLUMNS, [transaction_row(found) for found in session.connect().admin.list_transactions()])


@verb(transaction, "describe")
@click.argument("transactional_id")
@pass_session
def describe_transaction(session: CommandSession, transactional_id: str) -> None:
    """Show the newest transaction of a transactional id, and the offsets of the records that it committed.

    \b
    Example:
      pylog transaction describe etl-1
    """
    found = session.connect().admin.describe_transactions([transactional_id])[transactional_id]
    offsets = [
        {"topic": tp.topic, "partition": tp.partition, "start": at.start, "end": at.stop}
        for tp, at in sorted(found.offsets.items())
    ]
    emit_parts(
        session, transaction_row(found.listing), {"offsets": Table(["topic", "partition", "start", "end"], offsets)}
    )


@verb(transaction, "abort")
@click.argument("transactional_id")
@guarded
@pass_session
def abort_transaction(session: CommandSession, transactional_id: str, dry_run: bool, yes: bool) -> None:
    """Abort an open transaction.  Its process can no longer commit it.

    \b
    Example:
      pylog transaction abort etl-1 --yes
    """
    admin = session.connect().admin
    found = admin.describe_transactions([transactional_id])[transactional_id].listing
    what = f"abort transaction {transactional_id} ({found.state}, epoch {found.producer_epoch})"
    if confirmed(what, dry_run=dry_run, yes=yes):
        admin.abort_transaction(transactional_id)
        emit_line(session, f"transaction {transactional_id} aborted", {"transaction": transactional_id})
