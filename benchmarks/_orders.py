"""Orders of a web shop, as they are logged: twenty columns of what such records have.

The figures of typed topics depend on the data, so it is described here and stays as it is.  In 50,000 orders:

* numbers that grow (`order_id`), customers of whom some buy often, quantities, prices with two decimals, and a tax
  that follows from the price;
* words from small sets, some of them frequent: country, currency, status, payment, category, device;
* text: the name of one of 2,000 products and its SKU, an URL path, the IP address, a user agent out of 60, and in one
  of eight orders a comment of 4 to 30 words, which are as frequent as words are (Zipf);
* a random session of 32 hexadecimal digits, which nothing compresses below 16 bytes;
* the time of the last change, about an hour after that of the order.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_log.schema.topic_schema import as_schema

SCHEMA = as_schema(
    "order_id BIGINT, customer_id BIGINT, country STRING, currency STRING, status STRING, payment STRING, "
    "category STRING, device STRING, sku STRING, product STRING, quantity INT, price DOUBLE, tax DOUBLE, "
    "gift BOOLEAN, session STRING, ip STRING, path STRING, user_agent STRING, comment STRING, changed TIMESTAMP"
)
COUNTRIES = ["DE", "FR", "GB", "IT", "ES", "NL", "PL", "SE", "AT", "CH", "BE", "PT", "DK", "CZ", "IE"]
CURRENCIES = {"GB": "GBP", "PL": "PLN", "SE": "SEK", "CH": "CHF", "DK": "DKK", "CZ": "CZK"}
STATUSES = ["delivered", "shipped", "paid", "created", "returned", "cancelled"]
PAYMENTS = ["card", "paypal", "invoice", "transfer", "gift card"]
CATEGORIES = [f"{a} & {b}" for a in ("home", "garden", "office", "sports") for b in ("tools", "wear", "toys", "books")]
DEVICES = ["mobile", "desktop", "tablet", "app"]
SYLLABLES = ["ka", "lo", "mi", "ren", "sta", "ver", "on", "el", "di", "tor", "pan", "ul", "gre", "sin", "fa", "bo"]
START_US = 1_769_853_600_000_000


def orders(count: int, seed: int = 1) -> pa.Table:
    """Orders: `count` rows, which the seed decides."""
    rng = np.random.default_rng(seed)
    vocabulary = np.array(["".join(rng.choice(SYLLABLES, n)) for n in rng.integers(1, 5, 3000)])
    products = np.array([" ".join(rng.choice(vocabulary, 3)) for _ in range(2000)])
    product = _often(rng, 2000, count)
    country = np.array(COUNTRIES)[_often(rng, len(COUNTRIES), count)]
    price = np.round(rng.lognormal(3.2, 0.9, 2000), 2)[product]
    quantity = np.minimum(rng.geometric(0.6, count), 20)
    at = START_US + np.cumsum(rng.exponential(20_000, count).astype(np.int64))
    agents = np.array([_agent(rng) for _ in range(60)])
    columns: dict[str, object] = {
        "order_id": 48_000_000 + np.arange(count) * 3 + rng.integers(0, 3, count),
        "customer_id": 1_000_000 + _often(rng, 200_000, count) * 7,
        "country": country,
        "currency": np.array([CURRENCIES.get(name, "EUR") for name in country]),
        "status": np.array(STATUSES)[_often(rng, len(STATUSES), count)],
        "payment": np.array(PAYMENTS)[_often(rng, len(PAYMENTS), count)],
        "category": np.array(CATEGORIES)[product % len(CATEGORIES)],
        "device": np.array(DEVICES)[_often(rng, len(DEVICES), count)],
        "sku": np.array([f"SKU-{number * 7919 % 100_000:05}" for number in range(2000)])[product],
        "product": products[product],
        "quantity": quantity,
        "price": price,
        "tax": np.round(price * quantity * 0.19, 2),
        "gift": rng.random(count) < 0.04,
        "session": np.array([rng.bytes(16).hex() for _ in range(count)]),
        "ip": np.array([".".join(map(str, four)) for four in rng.integers(1, 255, (count, 4)).tolist()]),
        "path": np.array([f"/shop/{CATEGORIES[n % 16].split()[0]}/item/{n}?ref={n % 9}" for n in range(2000)])[product],
        "user_agent": agents[_often(rng, 60, count)],
        "comment": _comments(rng, vocabulary, count),
        "changed": at + rng.exponential(3_600_000_000, count).astype(np.int64),
    }
    made = {name: pa.array(values, type=_plain(SCHEMA.field(name).type)) for name, values in columns.items()}
    return pa.table({name: array.cast(SCHEMA.field(name).type) for name, array in made.items()})


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def _often(rng: np.random.Generator, of: int, count: int) -> np.ndarray:
    """Numbers below `of`: the first ones are frequent."""
    weights = 1 / np.arange(1, of + 1) ** 0.9
    return rng.choice(of, count, p=weights / weights.sum())


def _agent(rng: np.random.Generator) -> str:
    system = rng.choice(["Windows NT 10.0; Win64; x64", "Macintosh; Intel Mac OS X 10_15_7", "X11; Linux x86_64"])
    major, minor = rng.integers(90, 140), rng.integers(0, 6000)
    return f"Mozilla/5.0 ({system}) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/{major}.0.{minor}.0 Safari/537.36"


def _comments(rng: np.random.Generator, vocabulary: np.ndarray, count: int) -> list[str | None]:
    has, lengths = rng.random(count) < 0.125, rng.integers(4, 31, count)
    words = vocabulary[_often(rng, len(vocabulary), int(lengths[has].sum()))]
    parts = iter(np.split(words, np.cumsum(lengths[has])[:-1]))
    return [" ".join(next(parts)).capitalize() + "." if there else None for there in has.tolist()]
