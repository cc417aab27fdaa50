"""The operations of Kafka's Admin for topics, groups, brokers and transactional ids; and erasure.

`admin.py` has the public methods.  `descriptions.py` and the views beside it are what they return.  `brokers.py` adds,
returns and removes the roots of brokers.
"""
