"""Operations on a log, by people and on the bad day: one function for each.

Each function calls `world.begin()` once, in which users create their topics and use them, and `world.later()` once, in
which they continue, in the log that they have at that moment.  It returns the log after the operation.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import spark_log
from spark_log import Log, TopicPartition
from spark_log.journal.journal import Journal
from spark_log.maintenance.maintain import maintain_once
from spark_log.metadata.topics.decide_topics import decide_set_configs
from spark_log.recovery.log_move import move_log
from spark_log.recovery.mirror import Mirror, begin_mirror
from spark_log.recovery.mirror_recovery import recover
from spark_log.recovery.repair import repair
from spark_log.replication.replicator import Replicator
from spark_log.serve.serve_quorum import RunningNode
from spark_log.store.local import LocalStore
from spark_log.store.object_names import CHECKPOINTS, FORMAT_KEY, LOG
from spark_log.store.open import open_store
from tests.crossings.feature import After, Feature
from tests.crossings.flow_features import STATE
from tests.recovery.test_backup import Place
from tests.replication.replicated_logs import add_broker
from tests.server.quorum.founding import Nodes, address, adopt, restore
from tests.services import Services

GONE = frozenset({"before-k1"})
"""Keys of the records that an erasure removes."""


@dataclass
class World:
    """A log, and what is used in it."""

    folder: Path
    kinds: Sequence[type[Feature]]
    stack: ExitStack
    """Closed at the end."""
    features: list[Feature] = field(init=False)
    log: Log = field(init=False)

    def __post_init__(self) -> None:
        self.features = [kind(self.folder, self.root) for kind in self.kinds]
        self.log = spark_log.connect(self.root, durability="os")

    @property
    def root(self) -> str:
        """The folder of the log."""
        return str(self.folder / "log")

    @property
    def topics(self) -> list[str]:
        return [topic for feature in self.features for topic in feature.topics]

    def set_configs(self, configs: dict[str, str | None]) -> None:
        self.log.journal.propose(lambda state, now: decide_set_configs(state, None, configs))

    def begin(self) -> None:
        """Users create their topics, and use them."""
        for feature in self.features:
            feature.create(self.log)
            feature.write(self.log, "before")
            feature.read(self.log, "before")

    def later(self, *, read: bool = True) -> None:
        """Users continue."""
        for feature in self.features:
            feature.create(self.log)
            feature.write(self.log, "later")
            if read:
                feature.read(self.log, "later")

    def open(self, url: str) -> None:
        """From now on, the log is there."""
        self.log = spark_log.connect(url, create=False)
        for feature in self.features:
            feature.url = url

    def after(self, url: str = "", **kind: Any) -> After:
        """The log at a URL, or where it was, to check."""
        if url:
            self.open(url)
        return After(self.log, self.features[0].url, **kind)


Operation = Callable[[World], After]


# ---------------------------------------------------------------------------------------------------------------- copies


def backup(world: World) -> After:
    """A backup, and a second one after more records.  The log does not know of them."""
    with_brokers(world)
    world.begin()
    place = Place(world.log, world.folder / "backups")
    place.make()
    world.later()
    place.make()
    return world.after()


def restored(world: World) -> After:
    """The log's folder is lost, and an older backup is restored there."""
    with_brokers(world)
    world.begin()
    place = Place(world.log, world.folder / "backups")
    place.make()
    world.later()
    shutil.move(world.root, world.folder / "lost")
    place.restored(Path(world.root))
    return world.after(world.root, is_older=True, is_where_it_was=False)


def begun_mirror(world: World) -> LocalStore:
    """A mirror that has the first records, but not the later ones."""
    with_brokers(world)
    world.begin()
    store = LocalStore(str(world.folder / "mirror"), "os")
    begin_mirror(world.log, store)
    Mirror(world.log, store).round()
    world.later()
    return store


def mirrored(world: World) -> After:
    """A mirror that follows the log."""
    store = begun_mirror(world)
    Mirror(world.log, store).round()
    assert spark_log.connect(store.url).journal.state.topics == world.log.journal.refresh().topics
    return world.after()


def recovered(world: World) -> After:
    """The log's folder is lost, and a mirror that is behind becomes the log."""
    store = begun_mirror(world)
    shutil.move(world.root, world.folder / "lost")
    recover(store, force=True)
    return world.after(store.url, is_older=True, is_where_it_was=False)


def set_back(world: World) -> After:
    """The log's folder is set back by a snapshot of the file system, while no process uses it."""
    world.begin()
    world.log.close()
    shutil.copytree(world.root, world.folder / "snapshot")
    world.later()
    world.log.close()
    shutil.move(world.root, world.folder / "lost")
    shutil.move(world.folder / "snapshot", world.root)
    return world.after(world.root, is_older=True, is_where_it_was=False)


def moved(world: World) -> After:
    """The log is moved to another folder."""
    world.begin()
    world.later()
    move_log(Log(Journal.open(open_store(world.root), create=False)), open_store(str(world.folder / "moved")))
    return world.after(str(world.folder / "moved"), is_where_it_was=False)


def quorum_restored(world: World) -> After:
    """The log's quorum loses its node, and is restored from the copy of the metadata."""
    store, services = open_store(world.root), world.stack.enter_context(closing(Services()))
    lost, new = (Nodes(world.folder, world.log.cluster_id, 1, name) for name in "ab")
    adopt(store, lost)
    with running(services, lost) as node:
        world.open(address([node]))
        world.begin()
        node.coordinator.root_snapshots.write()
        world.later()
        world.log.close()
    shutil.rmtree(lost.path(1))
    restore(store, new)
    return world.after(
        address([world.stack.enter_context(running(services, new))]), is_older=True, is_where_it_was=False
    )


@contextmanager
def running(services: Services, nodes: Nodes) -> Iterator[RunningNode]:
    """The node of a quorum, on the loop of these services."""
    context = nodes.running()
    (node,) = services.run(context.__aenter__())
    try:
        yield node
    finally:
        services.run(context.__aexit__(None, None, None))


# ---------------------------------------------------------------------------------------------------------------- repairs


def repaired(world: World) -> After:
    """`meta/format` and the newest checkpoint are lost, and `pylog repair` makes them again."""
    with_brokers(world)
    world.begin()
    world.log.close()
    store = LocalStore(world.root, "os")
    store.delete([FORMAT_KEY, *store.list(CHECKPOINTS)[-1:]])
    repair(store, is_alive=lambda holder: False)
    world.open(world.root)
    world.later()
    return world.after()


def loss_accepted(world: World) -> After:
    """A version is lost, and `pylog repair --accept-loss` continues without it."""
    with_brokers(world)
    world.begin()
    world.log.close()
    before = world.log.journal.refresh().version
    world.later()
    world.log.close()
    store = LocalStore(world.root, "os")
    lost = [key for key in store.list(LOG) if int(Path(key).name.partition(".")[0]) == before + 2]
    assert lost
    store.delete(lost)
    for key in store.list(CHECKPOINTS):
        if int(Path(key).name.partition(".")[0]) > before:
            store.delete([key])
    repair(store, is_alive=lambda holder: False, accept_loss=True)
    return world.after(world.root, is_older=True, is_where_it_was=False, is_same_topic=False)


# ------------------------------------------------------------------------------------------------------------ maintenance


def erased(world: World) -> After:
    """Records of a key are erased from all topics, and collected."""
    with_brokers(world)
    world.begin()
    for topic in world.topics:
        world.log.admin.erase_records(topic, sorted(GONE))
    world.set_configs({"gc.fence.age.ms": "1"})
    world.later()
    for _ in range(3):
        time.sleep(0.005)
        maintain_once(world.log)
    return world.after(gone=GONE, is_erased=True)


def compacted(world: World) -> After:
    """All topics are compacted."""
    with_brokers(world)
    world.begin()
    config: dict[str, str | None] = {
        "cleanup.policy": "compact",
        "segment.ms": "1",
        "min.cleanable.dirty.ratio": "0",
    }
    world.log.admin.incremental_alter_configs(dict.fromkeys(world.topics, config))
    world.set_configs({"gc.fence.age.ms": "1"})
    time.sleep(0.01)
    maintain_once(world.log)
    world.later()
    for _ in range(3):
        time.sleep(0.005)
        maintain_once(world.log)
    return world.after()


def created_again(world: World) -> After:
    """All topics are deleted, and created again under their names."""
    with_brokers(world)
    world.begin()
    world.log.admin.delete_topics(world.topics)
    world.later(read=False)
    return world.after(is_same_topic=False)


def retained(world: World) -> After:
    """Retention removes the first records, and their objects are collected.  A flow's state has no retention."""
    with_brokers(world)
    world.begin()
    world.log.admin.delete_records({TopicPartition(topic, 0): 2 for topic in world.topics if topic != STATE})
    world.set_configs({"gc.fence.age.ms": "1"})
    world.later()
    for _ in range(3):
        time.sleep(0.005)
        maintain_once(world.log)
    return world.after(gone=frozenset({"before-k0", "before-k1"}))


def with_brokers(world: World) -> None:
    """Each record has a second copy, on broker 1 or 2."""
    for broker in (1, 2):
        add_broker(world.log, broker, str(world.folder / f"broker-{broker}"))
    world.set_configs({"default.replication.factor": "2", "replica.lag.time.max.ms": "1"})


def fenced(world: World) -> After:
    """A broker is fenced by hand, and comes back."""
    with_brokers(world)
    world.begin()
    world.log.admin.fence_broker(2, "its disk is replaced")
    world.later()
    world.log.admin.unfence_broker(2)
    for _ in range(3):
        time.sleep(0.01)
        Replicator(world.log).round()
    return world.after()


OPERATIONS: dict[str, Operation] = {
    "backup": backup,
    "restore": restored,
    "mirror": mirrored,
    "recover": recovered,
    "set back": set_back,
    "move": moved,
    "quorum restore": quorum_restored,
    "repair": repaired,
    "accept loss": loss_accepted,
    "erase": erased,
    "compact": compacted,
    "create again": created_again,
    "retention": retained,
    "fenced broker": fenced,
}
