"""Kafka's consumer groups at a gateway: members, committed offsets, and the administration of groups.

group_machine.py asks the state machine of groups, which is the coordinator's, or runs in this process if the log has no
coordinator.  member_requests.py, committed_offsets.py and group_admin.py answer requests, whose fields
group_messages.py and position_messages.py declare.  consumer_protocol.py translates subscriptions and assignments
between Kafka's form and the log's, so that members of both kinds share a group.
"""
