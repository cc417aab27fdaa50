"""Simulations of pylog's protocols with the real code: one seed decides everything.  In no wheel.

`log_sim` has the commit protocol with clients and maintenance, `replica_sim` brokers and the ISR, `quorum_sim` the
replicated log, `coordinator_sim` coordinators on a quorum; in the world of `log_sim`, `flow_sim` has flows with state,
and `gateway_sim` gateways with Kafka's idempotent producers.
Each has a `world` with the order of events, an `oracle` with the promises, and `mutations`: rules of the product that
are taken away, which it has to notice.
`command.py` is their command line: `python -m simulation.log_sim --seeds 500`.  `month.py` runs a small log for a
month, and `levels.py` stands for a pylog of tomorrow, with other levels of features.

`harness` has simulated machines, and real processes for tests.  `vectors` runs the product against test vectors.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The checkout: processes of tests start in it, to find this package."""
