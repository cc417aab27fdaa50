"""Members and coordinators that stop, restart, fail or are replaced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spark_log.errors import AuthenticationFailed, FencedInstanceId, IllegalGeneration, InvalidRequest
from spark_log.model import TopicPartition
from spark_log.server.tokens import parse_tokens
from tests.client.half_open import Proxy
from tests.client.team import ALL, Listener, Team
from tests.logged import logged
from tests.serve.test_serve import Process, free_port
from tests.services import Services

ROOT = Path(__file__).parents[2]


# Promise: service.md#groups
def test_a_consumer_that_does_not_poll_gives_its_partitions_up(team: Team) -> None:
    """max_poll_interval_ms: the others have them, and its commit is refused till it polls again."""
    listener = Listener()
    slow, quick = team.join(listener, max_poll_interval_ms=700, heartbeat_interval_ms=100), team.join()
    team.poll_until(team.is_shared)
    team.members.remove(slow)
    team.poll_until(lambda: quick.assignment() == ALL)
    with pytest.raises(IllegalGeneration):
        slow.commit({TopicPartition("t", 0): 7})
    team.members.append(slow)
    team.poll_until(team.is_shared)
    assert [what for what, _ in listener.told][-2:] == ["lost", "assigned"]


@pytest.mark.slow
def test_a_member_outlives_a_connection_that_went_dead(tmp_path: Path) -> None:
    """Another heartbeat, on another connection, reaches the coordinator within the session."""
    services, port = Services(), free_port()
    proxy = Proxy(port)
    try:
        services.start(tmp_path / "log", listen=f"127.0.0.1:{port}", advertise=f"127.0.0.1:{proxy.port}")
        team, listener = Team(f"pylog://127.0.0.1:{proxy.port}"), Listener()
        member = team.join(listener, session_timeout_ms=12_000)
        team.poll_until(lambda: member.assignment() == ALL)
        proxy.forget()
        until = time.monotonic() + 15
        while time.monotonic() < until:
            member.poll(500)
        assert listener.told == [("assigned", [0, 1, 2, 3])]
        member.commit({TopicPartition("t", 0): 0})
        member.close()
    finally:
        services.close()
        proxy.close()


# Promise: service.md#groups
def test_a_static_member_that_starts_again_has_its_partitions_and_nobody_rebalances(team: Team) -> None:
    """Within its session."""
    listener = Listener()
    team.join(listener, group_instance_id="a")
    static = team.join(group_instance_id="b")
    team.poll_until(team.is_shared)
    generation, had, told = team.generation(), static.assignment(), list(listener.told)
    team.members.remove(static)
    static.close()
    again = team.join(group_instance_id="b")
    team.poll_until(lambda: again.assignment() == had)
    assert (team.generation(), listener.told) == (generation, told)


# Promise: service.md#groups
def test_of_two_consumers_with_one_instance_id_the_older_one_ends(team: Team) -> None:
    """It says why, at every poll, and cannot commit."""
    old = team.join(group_instance_id="a")
    team.poll_until(team.is_shared)
    team.members.remove(old)
    new = team.join(group_instance_id="a")
    team.poll_until(lambda: new.assignment() == ALL)
    with pytest.raises(FencedInstanceId, match="'a'"):
        old.poll(5000)
    with pytest.raises(FencedInstanceId):
        old.poll()
    with pytest.raises(FencedInstanceId):
        old.commit({TopicPartition("t", 0): 1})
    old.close()
    assert new.assignment() == ALL


def test_what_the_coordinator_refuses_is_said_in_words(team: Team) -> None:
    """A session that is too short, and assignors that the others do not have."""
    short = team.join(session_timeout_ms=50, heartbeat_interval_ms=10)
    with pytest.raises(InvalidRequest, match="session_timeout_ms"):
        team.poll_until(team.is_shared)
    short.close()
    team.members.clear()
    team.join(partition_assignment_strategy="range")
    team.poll_until(team.is_shared)
    team.join(partition_assignment_strategy="sticky")
    with pytest.raises(InvalidRequest, match="support none of sticky"):
        team.poll_until(team.is_shared)


# Promise: service.md#groups
def test_a_restart_of_the_coordinator_is_no_rebalance(services: Services, tmp_path: Path) -> None:
    """The members keep generation and partitions, continue to read and commit; no listener is called."""
    running = services.start(tmp_path / "log")
    team, listener = Team(services.url(tmp_path / "log")), Listener()
    first, second = team.join(listener, heartbeat_interval_ms=100), team.join(heartbeat_interval_ms=100)
    team.poll_until(team.is_shared)
    generation, told = team.generation(), list(listener.told)
    had = first.assignment(), second.assignment()
    address = running.coordinator.address
    services.stop(running)
    time.sleep(0.3)
    services.start(tmp_path / "log", listen=address)
    team.fill()
    team.poll_until(lambda: len(team.got) == 20)
    time.sleep(0.5)
    team.poll_until(lambda: True)
    first.commit()
    second.commit()
    assert sum(at.offset for at in team.log.admin.list_consumer_group_offsets("g").values()) == 20
    assert (team.generation(), listener.told) == (generation, told)
    assert (first.assignment(), second.assignment()) == had
    team.members.remove(second)
    second.close()
    team.poll_until(lambda: first.assignment() == ALL)
    team.close()
    services.stop_all()


def test_heartbeats_that_are_refused_are_heard_of(services: Services, tmp_path: Path) -> None:
    """After a coordinator returns that rejects the consumer's token, the next poll raises its error, and its partitions
    are lost.
    """
    running = services.start(tmp_path / "log")
    team, listener = Team(services.url(tmp_path / "log")), Listener()
    consumer = team.join(listener, heartbeat_interval_ms=100)
    team.poll_until(team.is_shared)
    services.stop(running)
    services.start(
        tmp_path / "log", listen=running.coordinator.address, tokens=parse_tokens({"me": "admin a-token-of-the-tests"})
    )
    with pytest.raises(AuthenticationFailed, match="no token"):
        team.poll_until(lambda: False)
    assert listener.told[-1] == ("lost", [0, 1, 2, 3]) and consumer.assignment() == set()
    consumer.close(autocommit=False)
    services.stop_all()


MEMBER = """
import json, sys
import spark_log
consumer = spark_log.connect(sys.argv[1]).consumer(
    "t", group_id="g", auto_offset_reset="earliest", session_timeout_ms=1000, heartbeat_interval_ms=200,
    auto_commit_interval_ms=0,
)
while True:
    for tp, records in consumer.poll(100).items():
        print(json.dumps([tp.partition, [record.offset for record in records]]), flush=True)
"""


# Promise: service.md#groups
def test_partitions_of_a_process_that_is_killed_go_to_the_others_when_its_session_is_over(team: Team) -> None:
    """Nothing is left out, and what it had committed is not read again."""
    process = subprocess.Popen(
        [sys.executable, "-c", MEMBER, team.url], cwd=ROOT, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        team.fill(4)
        theirs = [json.loads(process.stdout.readline()) for _ in range(4)]
        assert sorted(partition for partition, _ in theirs) == [0, 1, 2, 3]
        survivor = team.join(auto_commit_interval_ms=0)
        team.poll_until(lambda: len(survivor.assignment()) == 2)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(30)
        process.stdout.close()
    killed = time.monotonic()
    team.poll_until(lambda: survivor.assignment() == ALL)
    assert time.monotonic() - killed < 5
    team.fill(40)
    team.poll_until(lambda: len({at for at in team.got if at[2] >= 1}) == 40)
    assert [at for at in team.got if at[2] == 0] == [], "those had been committed by the one that was killed"


def test_a_coordinator_that_is_killed_and_started_again_has_its_groups(tmp_path: Path) -> None:
    """Real processes: members keep their partitions, read on meanwhile, and commit; no listener is called."""
    conf = tmp_path / "coordinator.ini"
    conf.write_text("[groups]\ninitial.rebalance.delay = 1ms\n")
    port = free_port()
    process = Process(tmp_path / "log", port, "--conf", str(conf), "--maintain-every", "never")
    team, listener = Team(f"pylog://{process.address}"), Listener()
    first, second = team.join(listener, enable_auto_commit=False), team.join(enable_auto_commit=False)
    team.poll_until(team.is_shared)
    generation, told = team.generation(), list(listener.told)
    team.fill(8)
    process.kill()
    team.poll_until(lambda: len(team.got) == 8)
    process = Process(tmp_path / "log", port, "--conf", str(conf), "--maintain-every", "never")
    team.fill(8)
    team.poll_until(lambda: len(team.got) == 16)
    first.commit()
    second.commit()
    assert sum(at.offset for at in team.log.admin.list_consumer_group_offsets("g").values()) == 16
    assert (team.generation(), listener.told) == (generation, told)
    team.close()
    assert process.terminate() == 0


# Promise: service.md#groups
def test_members_keep_their_partitions_when_a_standby_takes_over(
    services: Services, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator is killed and stays away.  The standby has the groups with their members, and accepts their
    positions.

    Each member logs once that it asks again, and once that it is answered.
    """
    first = Process(tmp_path / "log", free_port(), "--maintain-every", "never")
    standby = services.start(tmp_path / "log", takeover_ms=1000)
    team, listener = Team(f"pylog://{first.address},{standby.coordinator.address}"), Listener()
    one, other = (
        team.join(told, enable_auto_commit=False, heartbeat_interval_ms=200) for told in (listener, Listener())
    )
    team.poll_until(team.is_shared)
    generation, told = team.generation(), list(listener.told)
    first.kill()
    team.fill(8)
    assert standby.coordinator.leading
    team.poll_until(lambda: len(team.got) == 8)
    one.commit()
    other.commit()
    assert sum(at.offset for at in team.log.admin.list_consumer_group_offsets("g").values()) == 8
    assert (team.generation(), listener.told) == (generation, told)
    team.poll_until(lambda: len(logged(caplog, "answers again")) >= 2)
    away, again = logged(caplog, "no coordinator is available; retrying"), logged(caplog, "answers again")
    assert (len(away), len(again)) == (2, 2), [away, again]
    team.close()
    services.stop_all()
