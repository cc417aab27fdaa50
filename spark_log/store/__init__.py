"""Object stores: put-if-absent, ranged reads, durable writes.  The only package that imports fsspec.

`base.py` is the interface: whole objects under names, read by range, created exclusively.  `local.py` is a directory,
`remote.py` a bucket, `memory.py` a dict for tests, and `open.py` chooses by the URL.  `retry.py` is the one place that
retries, by the errors that `transient.py` knows.  It is a `StoreWrapper`, as all stores around another one.  `probe.py`
checks that a storage creates exclusively before a log uses it; `simulation/harness/store_contract.py` has the contract
of all stores.

`object_names.py` has the names of a log's objects, and lists them.  Objects on several roots are in `roots`.
"""
