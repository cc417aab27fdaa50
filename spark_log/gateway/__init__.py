"""Kafka's clients use a log: the process `pylog gateway`.

A connection sends frames (port.py).  Each frame is a request of some version, whose fields messages.py declares and
codec.py reads and writes; api.py has the requests that are served.  topics.py and list_offsets.py answer from the state
of the log, which followed_state.py keeps up to date.  fetch.py waits for records, and stored_batches.py reads them as
Arrow and keeps them as Kafka's record batches, which record_batch.py encodes.

produce.py queues what producers send.  rounds.py writes it: produced_batches.py reads Kafka's record batches as Arrow,
and sequences.py recognises those that were sent again.

groups/ has what is about consumer groups and committed offsets.

A gateway holds nothing that the log cannot give again, except for these sequences.
"""
