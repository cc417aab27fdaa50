"""Object stores: put-if-absent, ranged reads, durable writes.  The only package that imports fsspec."""
