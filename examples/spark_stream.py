"""Copy a topic and count by key, as streams, exactly once.

Prints:
    copied 3
    totals alice=2 bob=1
"""

import sys
import tempfile

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_log

folder = tempfile.mkdtemp()
url = sys.argv[1] if len(sys.argv) > 1 else f"{folder}/log"
spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()

log = spark_log.connect(url)
orders = [{"key": key, "value": "an order"} for key in ("alice", "bob", "alice")]
log.append("orders", orders, txn_app_id="example", txn_version=1)  # a second run adds nothing

stream = spark.readStream.format("pylog").option("subscribe", "orders").option("startingOffsets", "earliest").load(url)

# `availableNow` reads what is there and stops; leave the trigger out for a stream that runs on.
copy = stream.writeStream.format("pylog").option("topic", "copy").option("checkpointLocation", f"{folder}/copy")
copy.trigger(availableNow=True).start(url).awaitTermination()

counts = stream.groupBy("key").count().select("key", F.col("count").cast("string").alias("value"))
totals = counts.writeStream.foreachBatch(spark_log.sink(url, topic="totals")).outputMode("update")
totals.option("checkpointLocation", f"{folder}/totals").trigger(availableNow=True).start().awaitTermination()

print("copied", log.read("copy").num_rows)
last = {row["key"].decode(): row["value"].decode() for row in log.read("totals").to_pylist()}
print("totals", " ".join(f"{key}={last[key]}" for key in sorted(last)))
