"""Machines for simulations, whose loops, threads and disks obey a seed; and real processes, roots and proxies for
tests.
"""
