"""What keeps a log going: the coordinator, its groups, and upkeep (retention, merging, verification, repair)."""
