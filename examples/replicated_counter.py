"""A counter and a dictionary on three replicas, in one process, by the machine of `spark_log.quorum`.

The disks and the network are lists in memory.  docs/raft.md explains what a real one has to do.  No log is needed.

Prints:
    1 leads
        1: counter 3, {'colour': 'red'}
        2: counter 3, {'colour': 'red'}
        3: counter 3, {'colour': 'red'}
    2 leads, since 1 was killed
        1: counter 13, {'colour': 'blue'}
        2: counter 13, {'colour': 'blue'}
        3: counter 13, {'colour': 'blue'}
"""

import json
from random import Random

from spark_log.quorum.machine import Machine
from spark_log.quorum.messages import Kind, Message, ReplicaKey
from spark_log.quorum.ready import Config, Persist, Restored

VOTERS = tuple(ReplicaKey(number, f"disk-{number}") for number in (1, 2, 3))
network: list[Message] = []
now_ms = 0


class Replica:
    def __init__(self, key: ReplicaKey, disk: Restored) -> None:
        self.disk, self.counter, self.values = disk, 0, {}
        self.machine = Machine(key, disk, Config(), Random(key.id), now_ms)

    def work(self) -> None:
        """Write first, then send; apply what is committed."""
        ready = self.machine.ready()
        if ready.persist is not None:
            self.write(ready.persist)
            self.machine.persisted(ready.persist.number, now_ms)
        network.extend(ready.send)
        for entry in ready.committed:
            if entry.kind is Kind.DATA:
                command = json.loads(entry.data)
                self.counter += command.get("add", 0)
                self.values |= command.get("set", {})

    def write(self, persist: Persist) -> None:
        entries = self.disk.entries[: persist.truncate_to] + persist.entries
        state = {"epoch": persist.epoch, "voted": persist.voted, "high_watermark": persist.high_watermark}
        self.disk = Restored(voters=VOTERS, entries=entries, **state)


replicas = {key: Replica(key, Restored(voters=VOTERS)) for key in VOTERS}


def leader() -> ReplicaKey:
    return next(key for key, replica in replicas.items() if replica.machine.is_leader)


def run(ms: int) -> None:
    """Let time pass, one millisecond after another; each message takes one."""
    global now_ms
    for _ in range(ms):
        now_ms += 1
        arriving, network[:] = network[:], []
        for message in arriving:
            if message.target in replicas:
                replicas[message.target].machine.step(message, now_ms)
        for replica in replicas.values():
            replica.machine.tick(now_ms)
            replica.work()


def append(**command: object) -> None:
    replicas[leader()].machine.append([json.dumps(command).encode()], now_ms)
    run(100)


def show(title: str) -> None:
    print(title)
    for key, replica in sorted(replicas.items()):
        print(f"    {key.id}: counter {replica.counter}, {replica.values}")


run(2000)
first = leader()
append(add=1)
append(add=2, set={"colour": "red"})
show(f"{first.id} leads")

# The leader is killed, and the others elect another one.  From its disk it starts again, and gets what it has missed.
killed = replicas.pop(first)
run(3000)
append(add=10, set={"colour": "blue"})
replicas[first] = Replica(first, killed.disk)
run(2000)
show(f"{leader().id} leads, since {first.id} was killed")
