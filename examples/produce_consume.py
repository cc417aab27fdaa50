"""Send records one by one, read some of them as a group, and see what the group has not read.

Prints:
    sent to orders, offset 9
    read 0 1 2 3
    lag 6
"""

import sys
import tempfile

import spark_log

with spark_log.connect(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()) as log:
    with log.producer() as producer:
        sent = [producer.send("orders", str(number).encode(), key=b"alice") for number in range(10)]
        place = sent[-1].result(10)  # waits until the record is durable
        print(f"sent to {place.topic}, offset {place.offset}")

    settings = {"group_id": "billing", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    with log.consumer("orders", **settings) as consumer:
        records = [record for part in consumer.poll(timeout_ms=5000, max_records=4).values() for record in part]
        print("read", *(record.value.decode() for record in records))
        consumer.commit()
        print("lag", sum(consumer.lag().values()))
