"""Plain rows that commands print and the console shows: topics, groups, producers, configs, and the health of a log."""
