"""The metadata log as values: records, the state that they add up to, and decisions about both.  Pure: no I/O, no
clock."""
