"""Stand-ins for tests, benchmarks and simulations.

Machines whose loops, threads and disks obey a seed; and real processes, roots and proxies.  `stores.py` has stores that
fail, give wrong answers, count, or obey a file; `slow_store.py` has the latency of a bucket; `store_contract.py` is the
contract of each store.  `clocks.py` has clocks that a test advances, and `kafka.py` a real broker of Kafka.
"""
