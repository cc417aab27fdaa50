"""Write a frame to a topic, read it back, and query it with SQL.

Prints:
    alice 5
    bob 1
"""

import sys
import tempfile

from pyspark.sql import SparkSession

import spark_log  # noqa: F401 - before Spark starts: it tells Spark which Python has pylog

url = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()

orders = [("alice", '{"item": "apple", "amount": 3}'), ("bob", '{"item": "pear", "amount": 1}')]
orders = spark.createDataFrame([*orders, ("alice", '{"item": "fig", "amount": 2}')], "key string, value string")
orders.write.format("pylog").mode("append").option("topic", "orders").save(url)

spark.read.format("pylog").option("subscribe", "orders").load(url).createOrReplaceTempView("orders")
totals = spark.sql(
    """
    SELECT string(key) AS customer, sum(from_json(string(value), 'amount INT').amount) AS amount
    FROM orders GROUP BY key ORDER BY customer
    """
)
for row in totals.collect():
    print(row.customer, row.amount)
