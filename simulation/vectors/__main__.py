"""Check the product's code against a file of test vectors.

    python -m simulation.vectors KIND FILE

Prints each failure with the expected and the actual value, then `N passed, M failed`.  The exit status is 1 if a case
failed or the file had none, 2 if the command was wrong.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from simulation.vectors.assignor_vectors import assignor_cases
from simulation.vectors.group_vectors import group_cases
from simulation.vectors.vector_case import Case
from spark_log.errors import InvalidRequest
from spark_log.segment.keys.murmur2 import murmur2, partition_for_key, to_positive
from spark_log.segment.partitioners import StickyPartitioner


def murmur2_cases(vectors: Mapping[str, Any]) -> Iterator[Case]:
    """The hash, its positive part and the partition of every key and count; then the sticky partitioner's cases."""
    for vector in vectors.get("vectors", ()):
        yield _key_case(vector)
    for vector in vectors.get("builtin_partitioner_for_null_keys", ()):
        if "sticky_batch_size" in vector:
            yield _sticky_case(vector)
        else:
            # Queue lengths and availability belong to a broker; pylog's partitions have neither.
            print(f"not run, because pylog's partitions have no queues and no leaders to wait for: {vector['source']}")


def _key_case(vector: Mapping[str, Any]) -> Case:
    keys = pa.array([bytes.fromhex(vector["key_hex"])], pa.binary())
    hashes = murmur2(keys)
    found = {
        "murmur2": int(hashes[0]),
        "murmur2_unsigned": int(hashes.view("uint32")[0]),
        "to_positive": int(to_positive(hashes)[0]),
        "partition": {count: int(partition_for_key(keys, int(count))[0]) for count in vector["partition"]},
    }
    return Case(f"key {vector['key_hex']!r}", {name: vector[name] for name in found}, found)


def _sticky_case(vector: Mapping[str, Any]) -> Case:
    """For records of the given sizes and one more: which of them change the partition, and whether the size is
    accepted.
    """
    size, records = vector["sticky_batch_size"], vector.get("record_sizes", [])
    name = f"{vector['source']}, sticky_batch_size {size}"
    if size < 1:
        return Case(name, ["refused", "accepted"], [_accepts(size), _accepts(1)])
    keys = pa.nulls(len(records) + 1, pa.binary())
    sizes = [*records, 1]
    values = pa.array([bytes(length) for length in sizes], pa.binary())
    partitions = StickyPartitioner(_Counting(), size).partition(keys, values, 1000)
    return Case(name, _one_by_one(sizes, size), partitions.tolist())


def _one_by_one(record_sizes: Sequence[int], batch_size: int) -> list[int]:
    """The rule, record by record: when a partition has its bytes, the next partition is drawn."""
    partition = produced = 0
    partitions = []
    for size in record_sizes:
        partitions.append(partition)
        produced += size
        if produced >= batch_size:
            partition, produced = partition + 1, 0
    return partitions


def _accepts(size: int) -> str:
    try:
        StickyPartitioner(_Counting(), size)
    except InvalidRequest:
        return "refused"
    return "accepted"


class _Counting(random.Random):
    """Draws 0, 1, 2, …, as the mock in Kafka's tests does."""

    _next = -1

    def randrange(self, *args: int) -> int:  # type: ignore[override]
        self._next += 1
        return self._next


KINDS: Mapping[str, Callable[[Mapping[str, Any]], Iterator[Case]]] = {
    "murmur2": murmur2_cases,
    "assignors": assignor_cases,
    "group_protocol": group_cases,
}


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2 or arguments[0] not in KINDS:
        print(
            f"usage: python -m simulation.vectors KIND FILE, with KIND one of: {', '.join(KINDS)}",
            file=sys.stderr,
        )
        return 2
    kind, file = arguments
    cases = list(KINDS[kind](json.loads(Path(file).read_text(encoding="utf-8"))))
    failed = [case for case in cases if not case.passed]
    for case in failed:
        print(f"FAILED {case.name}: expected {case.expected}, found {case.found}")
    print(f"{len(cases) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed or not cases else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
