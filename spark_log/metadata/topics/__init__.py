"""Topics, their partitions, their configs and their schemas: decisions, and schemas in the state."""
