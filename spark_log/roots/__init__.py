"""Objects on several roots: the log's own root, and those of its brokers.

`broker_roots.py` has the roots of a log, and checks that each is the one that was registered.  `replica_puts.py` puts
an object on all replicas of its placement group in parallel, and `read_failover.py` reads it from one of them: what
happens when a root fails, or hangs.  `root_options.py` has the storage options of roots, of which secrets stay in each
process, and `root_threads.py` the threads that a hung root may keep.

These modules decide nothing about replicas: the ISR is in `metadata/replicas`, and copies that are made later in
`replication`.
"""
