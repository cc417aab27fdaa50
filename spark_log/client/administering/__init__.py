"""Administering: Kafka's Admin operations, groups and transactional ids as an administrator sees them."""
