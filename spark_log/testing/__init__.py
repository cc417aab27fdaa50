"""Tools for tests, also of applications: store contracts, faulty stores, clocks, a Kafka broker, the simulations."""
