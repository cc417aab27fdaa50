"""A process of Python, as pylog needs it: time, threads that may hang, forks, and a quiet end.

`clock.py` is the time behind all protocols, and `threads.py` the threads: a simulation replaces both.  A call to a disk
or a bucket may hang for ever, so such calls run in daemon threads: `daemon_threads.py` brings their results to an event
loop, `daemon_tasks.py` to other threads.  `fork_safety.py` renews what a child process must not share with its parent.
`own_failures.py` tells the errors of this process from those of a root.

The rest is small: output to a closed pipe, pauses of the garbage collector, Python in Spark's driver, the switches of
debugging.  Nothing here knows what a log is.
"""
