"""Administering: Kafka's Admin operations, for topics, groups and transactional ids."""
