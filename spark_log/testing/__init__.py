"""Tools for tests of applications that use a log, installed with the package.

`fixtures.py` gives pytest a log for each test, and `flows.py` runs a flow over rows: docs/test-your-jobs.md.
`stores.py` has stores that fail, give wrong
answers, count, or obey a file; `slow_store.py` has the latency of a bucket; `store_contract.py` is the contract of each
store, for one of yours.  `clocks.py` has clocks that a test advances, and `kafka.py` a real broker of Kafka.

The simulations, and what else only pylog's own tests need, are in the folder `simulation` of a checkout.
"""
