"""The coordinator with its groups, and upkeep: retention, merging, verification, repair."""
