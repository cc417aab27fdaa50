"""A web service with FastAPI: it writes orders to a topic, and streams them as they are written.

As a program, it sends three orders to itself, and reads them.  To serve it: `ORDERS_LOG=/data/log uvicorn web:app`.

Prints:
    {'partition': 0, 'offset': 0}
    {'partition': 0, 'offset': 1}
    {'partition': 0, 'offset': 2}
    data: tea
    data: coffee
    data: cake
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

import spark_log
from spark_log import aio

URL = sys.argv[1] if __name__ == "__main__" and len(sys.argv) > 1 else os.environ.get("ORDERS_LOG", tempfile.mkdtemp())


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One log and one producer for all requests; at the end, all orders are in the log."""
    async with aio.connect(URL) as app.state.log, app.state.log.producer() as app.state.producer:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders")
async def order(item: str) -> dict[str, int]:
    """The answer is sent when the record is durable.  Orders that arrive together are committed together."""
    place = await app.state.producer.send("orders", item)
    return {"partition": place.partition, "offset": place.offset}


async def events(count: int | None) -> AsyncIterator[str]:
    """If the browser leaves, the loop is cancelled, and the consumer is closed."""
    async with app.state.log.consumer("orders", auto_offset_reset="earliest") as consumer:
        async for record in consumer:
            yield f"data: {record.value.decode()}\n\n"
            if record.offset + 1 == count:
                return


@app.get("/orders")
async def orders(count: int | None = None) -> StreamingResponse:
    """Server-sent events; without `count`, they do not end."""
    return StreamingResponse(events(count), media_type="text/event-stream")


async def main() -> None:
    spark_log.connect(URL).create_topic(spark_log.NewTopic("orders"))
    service = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://orders")
    async with app.router.lifespan_context(app), service as client:
        for item in ("tea", "coffee", "cake"):
            print((await client.post("/orders", params={"item": item})).json())
        print((await client.get("/orders", params={"count": 3})).text.replace("\n\n", "\n").strip())


if __name__ == "__main__":
    asyncio.run(main())
