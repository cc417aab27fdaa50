"""An actor that erases records, as `pylog topic erase` does, and runs again what was killed."""

from __future__ import annotations

import pyarrow as pa

from simulation.log_sim.content import Row, has_keys, row_of
from simulation.log_sim.promises.erased import Request
from simulation.log_sim.setting import Simulation
from simulation.verdict import Violation
from spark_log.errors import ConcurrentChange
from spark_log.journal.failure_isolation import Failures
from spark_log.journal.storage.opening import View
from spark_log.journal.store_operations import Sleep, Steps
from spark_log.metadata.restores import history_of
from spark_log.metadata.state import State
from spark_log.rewriting import erasing
from spark_log.segment.keys.key_set import KeySet
from spark_log.segment.reader import Place, batches_of_topic, decode_batch, parse_index
from spark_log.store.object_names import DATA

KEYS = ("key0", "key1", "key2", "key3", "key4")


def eraser(sim: Simulation) -> Steps[None]:
    """An operator with a list of erasures: most often the next one is one that has not ended."""
    while True:
        yield Sleep(sim.rng.choice((100, 1000, 3000)))
        begun = sim.oracle.erased.open()
        view = yield from sim.load()  # after that: an erasure's view has the records that it is to remove
        waiting = [one for one in begun if _is_there(view.state, one.topic_id)]
        if waiting and sim.rng.random() < 0.8:
            yield from _erase(sim, view, sim.rng.choice(waiting))
        elif request := _draw(sim, view.state):
            sim.oracle.erased.requests.append(request)
            yield from _erase(sim, view, request)


def _is_there(state: State, topic_id: str) -> bool:
    return topic_id in state.topics and not state.topics[topic_id].deleted


def _draw(sim: Simulation, state: State) -> Request | None:
    """One or two keys of a topic, up to its end or to earlier offsets."""
    topics = sorted({key[0] for key in state.partitions if has_keys(key) and _is_there(state, key[0])})
    if not topics:
        return None
    topic_id, to_end = sim.rng.choice(topics), sim.rng.random() < 0.7
    ends = {
        number: part.end if to_end else sim.rng.randint(0, part.end)
        for number, part in state.topic_partitions(topic_id)
    }
    return Request(topic_id, frozenset(sim.rng.sample(KEYS, sim.rng.randint(1, 2))), ends)


def _erase(sim: Simulation, view: View, request: Request) -> Steps[None]:
    """Another process may erase the same meanwhile."""
    failures = Failures("simulated")
    keys = KeySet(pa.array([key.encode() for key in sorted(request.keys)], pa.binary()), sim.rng)
    topic = view.state.topics[request.topic_id].name
    wanted = erasing.Erasing(
        topic=topic,
        topic_id=request.topic_id,
        ends=request.ends,
        history=history_of(view.state),
        keys=keys,
        failures=failures,
    )
    try:
        view, erased = yield from sim.decided(view, erasing.erase(view.state, sim.context, wanted))
    except ConcurrentChange:
        sim.oracle.seen["erasures put off"] += 1
        return
    sim.oracle.check_view(view)
    sim.oracle.seen["erased"] += erased.records
    if failures.errors:
        sim.oracle.seen["erasures with failures"] += 1
    elif _is_there(view.state, request.topic_id):
        request.version = view.state.version if request.version is None else min(request.version, view.state.version)
        sim.oracle.seen["erasures"] += 1


def finish(sim: Simulation) -> Steps[None]:
    """Run again what has not ended, alone."""
    for request in sim.oracle.erased.open():
        view = yield from sim.load()
        if _is_there(view.state, request.topic_id):
            yield from _erase(sim, view, request)
            if request.version is None:
                raise Violation(f"erased: an erasure of {request.topic_id} does not end, though nobody is beside it")


def check_copies(sim: Simulation) -> None:
    """No object has a copy of an erased record, also not in bytes that no slice refers to."""
    objects, stored = sim.world.store.files[DATA], dict[Row, str]()
    for name in sorted(name for name in objects if name.endswith(".seg")):
        data = memoryview(objects[name])
        row = sim.oracle.state.objects[name]
        index = parse_index(data[row.index_position :], name=name, object_size=row.size)
        for topic_id in {one.topic_id for one in sim.oracle.erased.requests}:
            for partition, ref in batches_of_topic(index, topic_id):
                place = Place(name, topic_id, topic_id, partition)
                block = data[ref.position : ref.position + ref.length]
                records = decode_batch(block, ref, index, ("headers",), place=place).records
                stored |= dict.fromkeys(map(row_of, records.column("headers").to_pylist()), name)
    sim.oracle.erased.check_copies(sim.oracle.rows, stored)
