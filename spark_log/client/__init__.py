"""What applications use: `connect`, producers, consumers, readers and administration."""
