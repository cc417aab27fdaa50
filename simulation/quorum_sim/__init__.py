"""A simulation of quorums: replicas, disks, a network and faults, from one seed.  `__main__.py` is the command."""
