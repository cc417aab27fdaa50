"""What Spark's Python processes spend between the tasks that they serve, kept small.

The same few serve all micro-batches of a query, its tasks and the driver's questions to the sink.  After each they collect all
garbage, which walks whatever was imported: 12 to 35 ms of CPU, where a micro-batch of one record is 2 to 4 ms of work.
"""

from __future__ import annotations

import gc
import sys
from functools import cache

from spark_log.net.prompt import be_prompt


def settle() -> None:
    """At the beginning of whatever Spark asks for."""
    be_prompt()
    _freeze(len(sys.modules))


@cache
def _freeze(modules: int) -> None:
    """What is loaded by now will not go away, and is not walked again.  Once more when there are more modules: some come late."""
    gc.collect()
    gc.freeze()
