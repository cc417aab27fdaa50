"""The metadata log on storage: opening it, following it, proposing changes, checkpoints, garbage collection."""
