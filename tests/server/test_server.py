"""The coordinator's port: who is let in, and what is answered."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import spark_log
from spark_log.client.producer.append import upload_rows
from spark_log.client.producer.commit import Identity, commit_uploads
from spark_log.errors import (
    AuthenticationFailed,
    AuthorizationFailed,
    CoordinatorNotAvailable,
    InconsistentClusterId,
    InvalidRequest,
    TopicAlreadyExists,
)
from spark_log.groups.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    Request,
    SyncGroupRequest,
)
from spark_log.http.address import Target, parse_target
from spark_log.http.connection_limits import ConnectionLimits
from spark_log.journal.store_operations import Ask
from spark_log.metadata.commands import AbortTransaction, Append, CreateTopic, InitProducer
from spark_log.metadata.groups.group_commands import DeleteOffsets
from spark_log.metadata.records import CommitRecord
from spark_log.metadata.replay import next_version, replay_records
from spark_log.metadata.state import State
from spark_log.model import DataObject, Run, TopicPartition
from spark_log.rpc.client import HttpLink
from spark_log.serve.serve import Running
from spark_log.server.server import Server
from spark_log.server.tokens import Grant, check_allowed, parse_tokens
from tests.cli.commands import Pylog
from tests.server.asking import (
    ADMIN,
    BILLING,
    BILLING_ADMIN,
    BILLING_TOPICS,
    GOOD,
    READ,
    TOKENS,
    WRITE,
    body_of,
    connect,
    request,
)
from tests.services import Services

# ----------------------------------------------------------------------------------------------------------------- tokens


@pytest.mark.parametrize("token", [None, "not-one-that-it-knows"])
def test_who_has_no_good_token_learns_nothing(guarded: str, token: str | None) -> None:
    """Not even where the log is."""
    with pytest.raises(AuthenticationFailed):
        connect(guarded, token)


# Promise: security.md#tokens-and-tls
def test_roles_include_the_ones_before_them(guarded: str) -> None:
    """A reader commits positions and writes no records, a writer appends and changes no configs, an admin does
    everything.
    """
    with connect(guarded, ADMIN) as log:
        log.append("roles", [{"value": b"x"}])
        log.admin.incremental_alter_configs({"roles": {"retention.ms": "1000"}})
    with connect(guarded, WRITE) as log:
        log.append("roles", [{"value": b"y"}])
        with pytest.raises(AuthorizationFailed, match="has the role write, and this needs the role admin"):
            log.admin.incremental_alter_configs({"roles": {"retention.ms": "1"}})
    with connect(guarded, READ) as log:
        consumer = log.consumer("roles", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
        assert sum(map(len, consumer.poll(5000).values())) == 2
        consumer.commit()
        consumer.close()
        with pytest.raises(AuthorizationFailed, match="has the role read, and this needs the role write"):
            log.append("roles", [{"value": b"z"}])


# Promise: security.md#tokens-and-tls, security.md#who-may-use-a-name
def test_a_token_may_be_for_some_topics(guarded: str) -> None:
    """The error names the forbidden topics, and a commit over several topics is rejected as a whole."""
    with connect(guarded, BILLING) as log:
        log.append("billing.invoices", [{"value": b"x"}])
        with pytest.raises(AuthorizationFailed, match=r"begin with billing. or bills, not 'orders'"):
            log.append("orders", [{"value": b"x"}])
    with connect(guarded, ADMIN) as log:
        log.admin.create_topics([spark_log.NewTopic("orders")])
    with connect(guarded, BILLING) as log:
        txn = log.transaction("billing.both").__enter__()
        txn.send("billing.invoices", b"1")
        txn.send("orders", b"1")
        with pytest.raises(AuthorizationFailed, match="'orders'"):
            txn.__exit__(None, None, None)
        assert log.read("billing.invoices").num_rows == 1


# Promise: security.md#tokens-and-tls
def test_a_token_is_not_sent_to_an_address_that_was_not_configured(guarded: str) -> None:
    """An embedded client that follows the log to a coordinator has no token for it, whatever its environment holds."""
    link = HttpLink(Target(("127.0.0.1:1",)), ADMIN)
    assert "Authorization" in link._headers("127.0.0.1:1")
    assert "Authorization" not in link._headers(guarded)
    with connect(guarded, ADMIN) as log:
        storage = log.url
    with (
        spark_log.connect(storage) as embedded,
        pytest.raises(AuthenticationFailed, match=f"open the log as pylog://{guarded}, with token="),
    ):
        embedded.append("roles", [{"value": b"x"}])


def test_who_may_read_the_storage_reads_on_without_a_token(guarded: str) -> None:
    """Without an answer from the coordinator, a client can still read the storage."""
    with connect(guarded, ADMIN) as log:
        storage = log.url
        with spark_log.connect(storage) as embedded:
            consumer = embedded.consumer("readable", auto_offset_reset="earliest")
            log.append("readable", [{"value": b"x"}])
            assert sum(map(len, consumer.poll(5000).values())) == 1
            consumer.close()


@pytest.mark.parametrize(
    "text",
    [
        "write",
        "write short",
        f"owner {ADMIN}",
        "write sha256:12345678901234567890",
        "write sha256:" + "zz" * 32,
        f"write {ADMIN} group:",
    ],
)
def test_a_token_that_is_none_is_refused_at_the_start(text: str) -> None:
    """With its name, and without showing it."""
    with pytest.raises(InvalidRequest, match="somebody") as refused:
        parse_tokens({"somebody": text})
    assert text.partition(" ")[2] not in str(refused.value) or " " not in text


def test_tokens_may_be_given_by_their_hash() -> None:
    """So that the file does not hold them."""
    digest = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
    assert parse_tokens({"me": f"read sha256:{digest}"}).grant("Bearer secret").role == "read"


def test_a_token_for_some_topics_joins_for_no_others(guarded: str) -> None:
    """And without one nobody is let into a group."""
    with connect(guarded, BILLING) as log, pytest.raises(AuthorizationFailed, match="'secret'"):
        log.consumer("secret", group_id="spies").poll(5000)
    with connect(guarded, READ) as log:
        link = HttpLink(parse_target(f"pylog://{guarded}"), None, log.cluster_id)
        asked = HeartbeatRequest(group_id="g", member_id="m", generation_id=1)
        with pytest.raises(AuthenticationFailed):
            link.ask_group(log.journal.state.coordinator, asked, 0)
        link.close()


PAID = TopicPartition("billing.paid", 0)
QUERY = "01234567-89ab-cdef-0123-456789abcdef"
OTHERS = r"the token 'billing' is for groups that begin with billing. or bills, not 'others'"


@pytest.fixture
def paid(guarded: str) -> Iterator[None]:
    """A topic that the token for some topics and groups is for, and a group that it is not for."""
    with connect(guarded, ADMIN) as log:
        if PAID.topic not in log.admin.list_topics():
            log.append(PAID.topic, [{"value": b"x"}])
        log.admin.alter_consumer_group_offsets("others", {PAID: 0})
        yield
        assert log.admin.list_consumer_group_offsets("others")[PAID].offset == 0


# Promise: security.md#tokens-and-tls, security.md#who-may-use-a-name
@pytest.mark.usefixtures("paid")
def test_a_token_for_some_groups_shares_and_commits_for_these(guarded: str) -> None:
    """As a consumer, in a transaction, with a bookmark and by the admin; positions of any group are for all to see."""
    with connect(guarded, BILLING) as log:
        with log.consumer(PAID.topic, group_id="billing.readers", auto_offset_reset="earliest") as consumer:
            assert consumer.poll(5000)
            consumer.commit()
        with log.transaction("billing.t") as txn:
            txn.commit_offsets("billing.etl", {PAID: 1})
        with log.bookmark("bills-nightly", PAID.topic):
            pass
        log.admin.alter_consumer_group_offsets("billing.readers", {PAID: 0})
        for group in ("billing.readers", "billing.etl", "bills-nightly", "others"):
            assert PAID in log.admin.list_consumer_group_offsets(group)


def test_what_a_token_is_not_for_is_refused_alone(guarded: str) -> None:
    """Threads of one client send their changes together: one that is refused takes no other with it."""
    with connect(guarded, BILLING) as log:
        link = HttpLink(parse_target(f"pylog://{guarded}"), BILLING, log.cluster_id)
        changes = [CreateTopic(name=name, partitions=1, topic_id=name) for name in ("others.new", "billing.new")]
        refused, made = link.ask(Ask(log.journal.state.coordinator, changes, log.journal.state.version)).outcomes
        link.close()
    assert isinstance(refused, AuthorizationFailed) and "not 'others.new'" in str(refused)
    with connect(guarded, READ) as log:
        assert log.journal.state.names["billing.new"] == made and "others.new" not in log.journal.state.names


def test_a_token_for_some_topics_is_for_all_groups(guarded: str) -> None:
    """Unless it names some: a reader of a topic may commit positions of it, in any group.  An admin's token is limited
    by topics.
    """
    with connect(guarded, ADMIN) as log:
        log.append(PAID.topic, [{"value": b"x"}])
    with connect(guarded, BILLING_TOPICS) as log:
        log.admin.alter_consumer_group_offsets("anybody", {PAID: 0})
        assert log.admin.list_consumer_group_offsets("anybody")[PAID].offset == 0
    command = DeleteOffsets(group="anybody")
    grant = Grant("billing-topics", "admin", ("billing.",))
    with pytest.raises(AuthorizationFailed, match="is for some topics, and this is about the whole log"):
        check_allowed(grant, command, State())


def _in_transaction(log: spark_log.Log) -> None:
    with log.transaction("billing.t") as txn:
        txn.commit_offsets("others", {PAID: 1})


def _with_a_bookmark(log: spark_log.Log) -> None:
    with log.bookmark("others", PAID.topic):
        pass


# Promise: security.md#tokens-and-tls, security.md#who-may-use-a-name
@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.transaction("other-tenant").__enter__(),
        lambda log: log.admin.fence_producers(["other-tenant"]),
        lambda log: log.admin.abort_transaction("other-tenant"),
        lambda log: log.append("billing.paid", [{"value": b"x"}], txn_app_id="other-tenant", txn_version=1),
    ],
    ids=["transaction", "fence", "abort", "application"],
)
def test_a_token_for_some_topics_uses_no_identity_of_others(
    guarded: str, change: Callable[[spark_log.Log], object]
) -> None:
    """It would fence, abort or commit as another tenant: the transaction that was open stays its owner's."""
    with connect(guarded, ADMIN) as admin:
        admin.append(PAID.topic, [{"value": b"x"}])
        with admin.transaction("other-tenant") as txn:
            refusal = "'billing-topics' is for producer identities that begin with billing., not 'other-tenant"
            with connect(guarded, BILLING_TOPICS) as log, pytest.raises(AuthorizationFailed, match=refusal):
                change(log)
            txn.append("others.audit", [{"value": b"1"}])
        assert txn.offsets


def identity(producer: str, topic_id: str, sequence: int = 0) -> Append:
    """A commit of one row under an identity."""
    run = Run(topic_id, 0, 0, 100, 7, 1, 1, 0, 0)
    name = f"data/{0:016x}/{topic_id}-{sequence}.seg"
    objects = (DataObject(name, 100, 90),)
    return Append(
        commit=CommitRecord(
            producer=producer, sequence=sequence, dense=False, upload_epoch=0, objects=objects, slices=((0, run),)
        )
    )


@pytest.mark.parametrize("producer", ["0123456789abcdef", f"query:{QUERY}", f"app:{QUERY}/totals:"])
def test_an_identity_that_was_drawn_belongs_to_who_may_write_its_topics(producer: str) -> None:
    """Of a plain writer or a query: the log shows it, and a commit under it would turn its owner's next one into a
    repeat.
    """
    grant = Grant("billing", "write", ("billing",))
    state = next_version(State(), 1)
    for name in ("billing", "others"):
        state = replay_records(state, CreateTopic(name=name, partitions=1, topic_id=f"id-{name}")(state, 1).records)
    check_allowed(grant, identity(producer, "id-billing"), state)
    state = replay_records(state, identity(producer, "id-others")(state, 1).records)
    assert producer in state.producers
    with pytest.raises(AuthorizationFailed, match="not 'others'"):
        check_allowed(grant, identity(producer, "id-billing", 1), state)
    check_allowed(Grant("everything", "write"), identity(producer, "id-billing", 1), state)


# Promise: security.md#who-may-use-a-name
def test_an_identity_with_a_topic_belongs_to_who_may_write_it() -> None:
    """Also before its first commit: query ids are on Spark's pages, and a higher version of another tenant's would make
    the query's own pass for old ones.
    """
    grant, state = Grant("billing", "write", ("billing",)), next_version(State(), 1)
    state = replay_records(state, CreateTopic(name="billing", partitions=1, topic_id="id")(state, 1).records)
    check_allowed(grant, identity(f"app:{QUERY}/totals:billing", "id"), state)
    with pytest.raises(AuthorizationFailed, match="not 'others'"):
        check_allowed(grant, identity(f"app:{QUERY}/totals:others", "id", 10**12), state)
    check_allowed(Grant("everything", "write"), identity(f"app:{QUERY}/totals:others", "id"), state)


def test_identities_may_have_prefixes_of_their_own() -> None:
    """As groups have; without them those of topics count."""
    tokens = parse_tokens({"etl": "write a-token-for-the-tests billing. producer:etl- producer:nightly"})
    grant = tokens.grant("Bearer a-token-for-the-tests")
    assert (grant.topics, grant.producers) == (("billing.",), ("etl-", "nightly"))
    for name in ("etl-1", "nightly"):
        check_allowed(grant, InitProducer(producer=f"txn:{name}"), State())
    with pytest.raises(AuthorizationFailed, match="begin with etl- or nightly, not 'billing.1'"):
        check_allowed(grant, InitProducer(producer="txn:billing.1"), State())
    for kind in ("txn", "sink"):  # only an application's name begins with the id of a query that Spark drew
        with pytest.raises(AuthorizationFailed, match=f"begin with etl- or nightly, not '{QUERY}/x'"):
            check_allowed(grant, identity(f"{kind}:{QUERY}/x", "id"), State())
    groups_only = Grant("readers", "write", groups=("g",))
    check_allowed(groups_only, InitProducer(producer="txn:anything"), State())


def test_only_a_transactional_id_is_taken_over_or_ended() -> None:
    """A new epoch of a stream's identity would let the batch that Spark replays land twice."""
    for command in (InitProducer(producer=f"query:{QUERY}"), AbortTransaction(producer="sink:s")):
        with pytest.raises(InvalidRequest, match="is not a transactional id"):
            command(State(), 0)


@pytest.mark.usefixtures("paid")
@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.consumer(PAID.topic, group_id="others").poll(5000),
        lambda log: log.consumer(group_id="others").commit({PAID: 1}),
        lambda log: log.admin.alter_consumer_group_offsets("others", {PAID: 1}),
        _in_transaction,
        _with_a_bookmark,
    ],
    ids=["join", "commit", "alter", "transaction", "bookmark"],
)
def test_a_token_for_some_groups_changes_no_others(guarded: str, change: Callable[[spark_log.Log], object]) -> None:
    """In every way that it tries, the error names its groups, and nothing is done."""
    with connect(guarded, BILLING) as log, pytest.raises(AuthorizationFailed, match=OTHERS):
        change(log)


@pytest.mark.parametrize(
    "asked",
    [
        JoinGroupRequest(group_id="others", session_timeout_ms=6000, rebalance_timeout_ms=6000),
        SyncGroupRequest(group_id="others", member_id="m", generation_id=1),
        HeartbeatRequest(group_id="others", member_id="m", generation_id=1),
        LeaveGroupRequest(group_id="others", members=(LeavingMember("m"),)),
    ],
    ids=lambda asked: type(asked).__name__,
)
def test_a_token_for_some_groups_speaks_for_no_member_of_another(guarded: str, asked: Request) -> None:
    """It cannot have a member leave whose id it knows, for example."""
    with connect(guarded, BILLING) as log:
        link = HttpLink(parse_target(f"pylog://{guarded}"), BILLING, log.cluster_id)
        with pytest.raises(AuthorizationFailed, match=OTHERS):
            link.ask_group(log.journal.state.coordinator, asked, 0)
        link.close()


@pytest.mark.usefixtures("paid")
def test_an_administrator_of_some_groups_deletes_these_and_no_others(guarded: str) -> None:
    """Nor does anything that is about the whole log."""
    with connect(guarded, BILLING_ADMIN) as log:
        log.admin.alter_consumer_group_offsets("billing.old", {PAID: 0})
        log.admin.delete_consumer_groups(["billing.old"])
        assert "billing.old" not in {group.group_id for group in log.admin.list_consumer_groups()}
        for delete in (
            lambda: log.admin.delete_consumer_groups(["others"]),
            lambda: log.admin.delete_consumer_group_offsets("others", [PAID]),
            lambda: log.admin.remove_members_from_consumer_group("others"),
        ):
            with pytest.raises(AuthorizationFailed, match="groups that begin with billing., not 'others'"):
                delete()
        with pytest.raises(AuthorizationFailed, match="is for some topics and groups, and this is about the whole log"):
            log.admin.incremental_alter_configs({None: {"num.partitions": "2"}})


# -------------------------------------------------------------------------------------------------------------------- TLS


def test_tls_is_spoken_and_checked(services: Services, tmp_path: Path, certificate: tuple[str, str]) -> None:
    """A client with the right authority gets in; without TLS, or with another authority, it does not."""
    running = services.start(tmp_path / "log", certificate=certificate[0], key=certificate[1], tokens=TOKENS)
    address = running.coordinator.address
    with spark_log.connect(f"pylog://{address}?ca={certificate[0]}", token=WRITE) as log:
        log.append("t", [{"value": b"x"}])
        assert log.read("t").num_rows == 1
    with pytest.raises(CoordinatorNotAvailable, match="certificate"):
        spark_log.connect(f"pylog://{address}?ca=system", token=WRITE)
    with pytest.raises(InvalidRequest, match=rf"{address} requires TLS: give it as pylog://{address}\?ca=FILE"):
        spark_log.connect(f"pylog://{address}", token=WRITE)
    services.stop(running)


def test_who_follows_a_coordinator_that_speaks_tls_is_told_how(
    services: Services, tmp_path: Path, certificate: tuple[str, str]
) -> None:
    """The log does not say so; a change by the storage's URL is refused immediately and certainly not applied.  Reads
    continue.
    """
    running = services.start(tmp_path / "log", certificate=certificate[0], key=certificate[1], tokens=TOKENS)
    with spark_log.connect(f"pylog://{running.coordinator.address}?ca={certificate[0]}", token=WRITE) as served:
        served.append("t", [{"value": b"led"}])
    log = spark_log.connect(str(tmp_path / "log"), durability="os")
    with pytest.raises(InvalidRequest, match="requires TLS") as caught:
        log.append("t", [{"value": b"x"}])
    assert not caught.value.maybe_applied
    assert log.journal.poll().version == log.journal.state.version
    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        assert consumer.poll_arrow(5000).num_rows == 1
    assert Pylog(tmp_path / "log").ok("consume", "t") == "led\n"
    services.stop(running)
    assert log.append("t", [{"value": b"x"}]) == {spark_log.TopicPartition("t", 0): range(1, 2)}


# --------------------------------------------------------------------------------------------------------------- messages


def test_errors_arrive_as_what_they_were(small: Running) -> None:
    """With the value that is needed to recover."""
    with spark_log.connect(f"pylog://{small.coordinator.address}") as log:
        with pytest.raises(TopicAlreadyExists, match="'t' exists already"):
            log.admin.create_topics([spark_log.NewTopic("t")])
        with pytest.raises(spark_log.errors.OffsetOutOfRange) as out:
            log.admin.delete_records({spark_log.TopicPartition("t", 0): 10**6})
        assert (out.value.start, out.value.end) == (
            0,
            log.journal.state.partitions[log.journal.state.names["t"], 0].end,
        )


def test_a_batch_that_the_log_has_passed_is_refused_by_a_coordinator_as_well(small: Running) -> None:
    """And a version of an application is skipped, with the last one."""
    with spark_log.connect(f"pylog://{small.coordinator.address}") as log:
        epoch = log.journal.recent().version
        uploads = [upload_rows(log.journal, "t", [{"value": b"x"}], epoch)]
        for batch in (1, 2):
            last = commit_uploads(
                log.journal, Identity(producer="query:q", sequence=batch, dense=False), epoch, uploads
            )
            uploads = [upload_rows(log.journal, "t", [{"value": b"x"}], epoch)]
        older = Identity(producer="query:q", sequence=1, dense=False)
        with pytest.raises(spark_log.errors.SequenceConflict, match="commit 1 is older than the last one, 2") as raised:
            commit_uploads(log.journal, older, epoch, uploads)
        assert (raised.value.last, raised.value.version) == (2, last.version)
        skipped = commit_uploads(log.journal, replace(older, skip_older=True), epoch, uploads)
        assert skipped.repeated and skipped.last == 2


class Broken:
    """Groups of a coordinator with a bug."""

    def notice(self) -> None:
        """Nothing."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("a bug")


def test_a_bug_of_the_coordinator_may_have_done_what_was_asked(services: Services, small: Running) -> None:
    """The client of a change gets an uncertain error, and may retry; the client of a query gets a certain one."""
    server = Server(small.coordinator, Broken(), tokens=TOKENS, limits=ConnectionLimits())
    told, small.coordinator.on_change = small.coordinator.on_change, lambda: None
    port = services.run(server.start("127.0.0.1", 0, None))
    small.coordinator.on_change = told
    link = HttpLink(Target((f"127.0.0.1:{port}",)), ADMIN, small.coordinator.cluster_id)
    held = small.coordinator.state.coordinator._replace(address="")
    logging.getLogger("spark_log").setLevel(logging.CRITICAL + 1)
    try:
        with pytest.raises(CoordinatorNotAvailable, match="its log has the details") as change:
            link.ask(Ask(held, [CreateTopic(name="x", partitions=1, topic_id="x")], 0))
        with pytest.raises(CoordinatorNotAvailable) as question:
            link.groups(held)
    finally:
        logging.getLogger("spark_log").setLevel(logging.NOTSET)
        link.close()
        services.run(server.stop())
    assert (change.value.maybe_applied, question.value.maybe_applied) == (True, False)


def test_another_log_than_the_one_that_was_meant(small: Running, guarded: str) -> None:
    """A coordinator does nothing for who means another log."""
    wrong = body_of(small, GOOD).replace(small.coordinator.cluster_id.encode(), b"0" * 32)
    code, answer = request(small.coordinator.address, "POST", "/v1/commands", wrong)
    assert code == 409 and answer["error"] == InconsistentClusterId.__name__


# Promise: service.md#a-coordinator
def test_commits_that_arrive_together_share_a_record(small: Running) -> None:
    """While one record is on its way to the disk, the next one is filled."""
    address = f"pylog://{small.coordinator.address}"
    logs = [spark_log.connect(address) for _ in range(6)]
    before, began = small.coordinator.state.version, threading.Barrier(6)

    def work(log: spark_log.Log) -> None:
        began.wait()
        for _ in range(15):
            log.append("t", [{"value": b"x"}])

    threads = [threading.Thread(target=work, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for log in logs:
        log.close()
    assert 15 <= small.coordinator.state.version - before < 90
