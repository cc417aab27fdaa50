"""Consumer groups in the log's state: committed offsets, owners, generations, and the rosters of shared groups.

The protocol between members is in `spark_log/groups`.
"""
