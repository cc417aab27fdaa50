"""Flows: a function turns records of some topics into records of others, and each has its effect exactly once.

`flow.py` starts and stops a flow in this process, and says how far it is.  Its tasks are members of one consumer group
(`task.py`): each polls a batch, applies the function to it (`batch_function.py`), and commits all outputs with the
positions of the batch in one record of the metadata log.  The generation of the group fences a task that was replaced.
`flow_options.py` has what a flow is given.

State by key is in a topic (`keyed_state.py`), whose records are in that commit.  A flow has no other state: a task that
does not know whether its commit was applied joins the group again, which fences that commit, and continues at the
group's committed positions.
"""
