"""Producers, transactions and appends: from rows to objects to one commit.

A batch goes through `topic_rules.py` (what the topic allows), `topic_partitions.py`, `upload.py` (its objects), and
`commit.py` (one record for all of them, under an identity that makes a retry harmless).  `producer.py` collects single
records, `accumulator.py` holds them, and `delivery.py` writes them.
"""
