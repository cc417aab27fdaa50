"""Consuming: consumers, their place in a group, and bookmarks of batch jobs."""
