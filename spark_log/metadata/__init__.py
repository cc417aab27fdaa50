"""The metadata log as values: records, the state that they add up to, and decisions about both.  Pure: no I/O, no
clock.

`records.py` has the contents of the log, `state.py` the state at one version, and `replay.py` the only way from one to
the next: `replay(state, batch)`, total and deterministic.  A command (`commands.py`) is a decision as a value with its
arguments, so that another process can carry it out.  `decide_x(state, command, now_ms)` reads a state, and returns the
records of the command and a reply.  It changes nothing.  If its work is done already, as for a retry, it returns no
records; if the command is rejected, it raises an error of `spark_log.errors`.

Each concept has a folder with its commands, its decisions and its replay: `replicas`, `groups`, `topics`, `commits`,
`maintenance`.  `formats` has the bytes of batches, checkpoints and slice indexes, `maps` the large persistent maps, and
`invariants` the rules that each state and each step must keep.  `projection.py` is the part of a state that a client of
some topics gets.
"""
