"""Query a topic with SQL, in DuckDB.

Prints:
    apple 3
    pear 1
"""

import json
import sys
import tempfile

import duckdb

import spark_log

with spark_log.connect(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()) as log:
    orders = [{"item": "apple", "amount": 2}, {"item": "pear", "amount": 1}, {"item": "apple", "amount": 1}]
    log.append("orders", [{"value": json.dumps(order)} for order in orders])

    reader = log.scan("orders", columns=["value"])  # DuckDB finds the stream by the name of the variable
    query = """
        select decode(value)::json ->> 'item' as item, sum((decode(value)::json ->> 'amount')::int) as amount
        from reader group by item order by item
    """
    for item, amount in duckdb.sql(query).fetchall():
        print(item, amount)
