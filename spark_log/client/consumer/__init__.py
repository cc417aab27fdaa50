"""Consumers: records or Arrow tables of partitions, from a group's committed offset onwards.

`consumer.py` is the public class.  `assignment.py` has its partitions, `fetch_positions.py` its positions, and
`membership.py` and `group_member.py` its place in a group, alone or shared through a coordinator.
"""
