"""What the published Danube client does, one scenario a run: python scenarios.py URL NAME. It fails by an exception.

Where the broker has to be stopped in between, the scenario prints a line and waits for one on its standard input.
"""

import asyncio
import json
import sys

from danube import (
    ConsumerOptions, DanubeClientBuilder, DispatchStrategy, ProducerOptions, SchemaType, SubType,
)

PATIENCE = 30


async def connect():
    return await DanubeClientBuilder().service_url(URL).build()


async def producer(client, topic, name="p", reliable=True, partitions=0, subject=None):
    b = client.new_producer().with_topic(topic).with_name(name)
    b = b.with_dispatch_strategy(DispatchStrategy.RELIABLE if reliable else DispatchStrategy.NON_RELIABLE)
    b = b.with_options(ProducerOptions())
    if partitions:
        b = b.with_partitions(partitions)
    if subject:
        b = b.with_schema_subject(subject)
    p = b.build()
    await p.create()
    return p


async def consumer(client, topic, name, kind, filters=()):
    b = client.new_consumer().with_topic(topic).with_consumer_name(name).with_subscription("sub")
    b = b.with_subscription_type(kind).with_options(ConsumerOptions())
    if filters:
        b = b.with_key_filters(list(filters))
    c = b.build()
    await c.subscribe()
    return c, await c.receive()


async def take(c, queue, n, ack=True):
    got = []
    for _ in range(n):
        m = await asyncio.wait_for(queue.get(), PATIENCE)
        if ack:
            await c.ack(m)
        got.append(m)
    return got


async def nothing(queue, seconds=0.5):
    try:
        m = await asyncio.wait_for(queue.get(), seconds)
    except asyncio.TimeoutError:
        return
    raise AssertionError(f"unexpected: {m}")


def payloads(messages):
    return [m.payload for m in messages]


def numbers(prefix, n):
    return [f"{prefix}{i}".encode() for i in range(n)]


async def send(p, prefix, n, **more):
    for data in numbers(prefix, n):
        await p.send(data, **more)


def same(got, want):
    assert got == want, f"{got} instead of {want}"


async def pause_for_the_broker(line):
    print(line, flush=True)
    await asyncio.get_event_loop().run_in_executor(None, sys.stdin.readline)


async def exclusive(reliable=True):
    client = await connect()
    p = await producer(client, "/default/t", reliable=reliable)
    c, queue = await consumer(client, "/default/t", "one", SubType.EXCLUSIVE)
    try:
        await consumer(client, "/default/t", "two", SubType.EXCLUSIVE)
    except Exception:
        pass
    else:
        raise AssertionError("a second consumer of an exclusive subscription")
    await p.send(b"with", attributes={"color": "red"})
    m = (await take(c, queue, 1))[0]
    same((m.payload, dict(m.attributes), m.producer_name, m.msg_id.topic_name), (b"with", {"color": "red"}, "p", "/default/t"))
    await send(p, "m", 20)
    same(payloads(await take(c, queue, 20)), numbers("m", 20))


async def non_reliable():
    await exclusive(reliable=False)


async def shared():
    client = await connect()
    p = await producer(client, "/default/t")
    cs = [await consumer(client, "/default/t", f"c{i}", SubType.SHARED) for i in range(3)]
    got = []

    async def work(c, queue):
        while True:
            m = await queue.get()
            await c.ack(m)
            got.append(m.payload)
            await asyncio.sleep(0.001)

    tasks = [asyncio.create_task(work(c, queue)) for c, queue in cs]
    await send(p, "m", 60)
    for _ in range(PATIENCE * 20):
        if len(got) >= 60:
            break
        await asyncio.sleep(0.05)
    same(sorted(got), sorted(numbers("m", 60)))
    for t in tasks:
        t.cancel()


async def failover():
    client = await connect()
    p = await producer(client, "/default/t")
    a, qa = await consumer(client, "/default/t", "a", SubType.FAILOVER)
    b, qb = await consumer(client, "/default/t", "b", SubType.FAILOVER)
    await send(p, "m", 10)
    same(payloads(await take(a, qa, 10)), numbers("m", 10))
    await nothing(qb)
    await a.close()
    # Closing that client's consumer ends its streams; the other one takes over.
    await send(p, "n", 10)
    same(payloads(await take(b, qb, 10)), numbers("n", 10))


async def key_shared():
    client = await connect()
    p = await producer(client, "/default/t")
    cs = [await consumer(client, "/default/t", f"c{i}", SubType.KEY_SHARED) for i in range(2)]
    for i in range(40):
        await p.send_with_key(f"k{i % 8}-{i}".encode(), {}, f"k{i % 8}")
    owner, last, seen = {}, {}, 0

    async def work(n, c, queue):
        nonlocal seen
        while True:
            m = await queue.get()
            await c.ack(m)
            key, i = m.payload.decode().split("-")
            assert m.routing_key == key, m
            assert owner.setdefault(key, n) == n, f"{key} went to two consumers"
            assert last.get(key, -1) < int(i), f"{key}: {i} after {last[key]}"
            last[key] = int(i)
            seen += 1

    tasks = [asyncio.create_task(work(n, c, queue)) for n, (c, queue) in enumerate(cs)]
    for _ in range(PATIENCE * 20):
        for t in tasks:
            if t.done():
                t.result()
        if seen >= 40:
            break
        await asyncio.sleep(0.05)
    same(seen, 40)
    for t in tasks:
        t.cancel()


async def key_filters():
    client = await connect()
    p = await producer(client, "/default/t")
    a, qa = await consumer(client, "/default/t", "a", SubType.KEY_SHARED, ["order-*"])
    b, qb = await consumer(client, "/default/t", "b", SubType.KEY_SHARED, ["user-?"])
    for key in ("order-1", "user-1", "order-2", "user-2"):
        await p.send_with_key(key.encode(), {}, key)
    same(payloads(await take(a, qa, 2)), [b"order-1", b"order-2"])
    same(payloads(await take(b, qb, 2)), [b"user-1", b"user-2"])


async def partitioned():
    client = await connect()
    p = await producer(client, "/default/t", partitions=3)
    c, queue = await consumer(client, "/default/t", "c", SubType.SHARED)
    await send(p, "m", 30)
    got = await take(c, queue, 30)
    same(sorted(payloads(got)), sorted(numbers("m", 30)))
    same(sorted({m.msg_id.topic_name for m in got}), [f"/default/t-part-{i}" for i in range(3)])


async def nack():
    client = await connect()
    p = await producer(client, "/default/t")
    c, queue = await consumer(client, "/default/t", "c", SubType.SHARED)
    await p.send(b"again")
    m = (await take(c, queue, 1, ack=False))[0]
    await c.nack(m, delay_ms=200, reason="not yet")
    same(payloads(await take(c, queue, 1)), [b"again"])
    await nothing(queue)


async def dead_letters():
    """The Go side has set a limit of two deliveries on the subscription."""
    client = await connect()
    p = await producer(client, "/default/t")
    c, queue = await consumer(client, "/default/t", "c", SubType.SHARED)
    await pause_for_the_broker("subscribed")
    await p.send(b"bad")
    for _ in range(2):
        m = (await take(c, queue, 1, ack=False))[0]
        await c.nack(m, delay_ms=0, reason="cannot")
    await nothing(queue, 1)


async def schemas():
    client = await connect()
    registry = client.schema()
    definition = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    b = registry.register_schema("orders").with_type(SchemaType.JSON_SCHEMA).with_schema_data(json.dumps(definition).encode())
    first = await b.execute()
    again = await b.execute()
    same(again, first)
    latest = await registry.get_latest_schema("orders")
    same((latest.schema_id, latest.version, latest.subject), (first, 1, "orders"))
    same(json.loads(latest.schema_definition_as_string()), definition)
    same(await registry.list_versions("orders"), [1])
    p = await producer(client, "/default/t", subject="orders")
    c, queue = await consumer(client, "/default/t", "c", SubType.EXCLUSIVE)
    await p.send(b'{"n": 1}')
    m = (await take(c, queue, 1))[0]
    same((m.payload, m.schema_id, m.schema_version), (b'{"n": 1}', first, 1))


async def restart():
    client = await connect()
    p = await producer(client, "/default/t")
    c, queue = await consumer(client, "/default/t", "c", SubType.SHARED)
    await send(p, "m", 5)
    same(payloads(await take(c, queue, 5)), numbers("m", 5))
    await pause_for_the_broker("kill")
    await send(p, "n", 5)  # with the ids that the dead broker gave
    want, got = set(numbers("n", 5)), []
    while want - set(got):
        got += payloads(await take(c, queue, 1))
    extra = set(got) - want
    assert extra <= set(numbers("m", 5)), f"never sent: {extra}"


async def deleted():
    client = await connect()
    p = await producer(client, "/default/t")
    c, queue = await consumer(client, "/default/t", "c", SubType.SHARED)
    await send(p, "m", 1)
    await take(c, queue, 1)
    await pause_for_the_broker("delete")
    again = await connect()
    p = await producer(again, "/default/t", name="q")
    c, queue = await consumer(again, "/default/t", "d", SubType.SHARED)
    await send(p, "n", 1)
    m = (await take(c, queue, 1))[0]
    same((m.payload, m.msg_id.topic_offset), (b"n0", 0))


URL = sys.argv[1]
asyncio.run(globals()[sys.argv[2]]())
print("done", flush=True)
