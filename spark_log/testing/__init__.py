"""Tools for tests of applications that use a log, installed with the package: docs/test-your-jobs.md.

`fixtures.py` gives pytest a log for each test.  `flows.py` runs the function of a flow over rows, and returns what it
writes.

The folder `simulation` of a checkout has the tools that only pylog's own tests need: stores that fail, clocks that a
test advances, a real broker of Kafka, and the contract of a store.
"""
