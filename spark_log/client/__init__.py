"""The API of applications: `connect`, producers, consumers, readers and administration."""
