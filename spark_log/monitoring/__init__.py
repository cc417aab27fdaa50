"""Metrics for Prometheus, and findings about a log's health.

`coordinator_metrics.py` has the metrics of a coordinator, `log_metrics.py` those of topics, groups and lag, and
`replica_metrics.py` those of brokers.  `embedded_metrics.py` is the same for a process without a coordinator.
`health_findings.py` has sentences about defects of brokers and replicas, each with its cure.

docs/monitoring.md lists the metrics.  Requests for them are answered in `server` and in `console`.
"""
