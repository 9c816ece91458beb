#!/usr/bin/env python3
"""Levee's performance goals, from the rows of one interleaved run.

usage: goals.py [--markdown | --into=PAGE] [--strict] RUN.jsonl...

A goal is a ratio: the median of Levee's rows by the median of a peer's (or of the machine's own) in the same run; or, where
it says so, a bound. The exit code is 0 whatever the figures say, for they are a measurement; with --strict it is 1 when a
goal that was measured is missed. --into puts the table into a page: between its marker comments if it has them, or else as
all of it. Rows come from the programs beside this one, a JSON object a line.
"""
import json
import statistics
import sys

RATE, CPU, P50, P99, P999 = 'MsgsPerS', 'SrvCPUPerM', 'P50', 'P99', 'P999'


def recovered(row):
    """Bytes of the messages that a server had to find again."""
    return (row.get('Msgs') or 0) * (row.get('Size') or 0)


def seconds_per_gib(row):
    return row['Secs'] / (recovered(row) / 2**30) if recovered(row) else None


def recovered_mb_per_s(row):
    return recovered(row) / 1e6 / row['Secs'] if row.get('Secs') else None


def rows_of(label, mode='pub', style=None, size=None, conc=None, batch=None, window=None, partitions=None):
    """A selection of rows: those whose fields are the ones given."""
    wanted = {'Label': label, 'Mode': mode, 'Style': style, 'Size': size, 'Conc': conc, 'Batch': batch, 'Window': window,
              'Partitions': partitions}
    return {k: v for k, v in wanted.items() if v is not None}


def pub(label, style, size, conc=1):
    return rows_of(label, 'pub', style, size, conc)


def consume(label, size, style=None):
    return rows_of(label, 'consume', style, size)


def subscribed(kind, style, size, conc):
    return rows_of(f'levee-subscription-{kind}:periodic', 'consume', style, size, conc)


def unary(topic):
    return rows_of('danube:' + topic, 'unary', 'sync', 128, 64)


def e2e(label, size=128):
    return rows_of(label, 'e2e', size=size)


def log(mode, batch, conc, engine='engine-levee'):
    return rows_of(engine, mode, 'append', 128, conc, batch)


def machine(probe):
    return rows_of('phys', probe)


def grpc(shape, batch, conc=1, window=None):
    return rows_of('grpc', shape, size=128, conc=conc, batch=batch, window=window)


def ready(label):
    return rows_of(label, 'ready')


def tier(label, mode, **fields):
    return rows_of('tiers-' + label, mode, **fields)


def buffered(size, batch):
    """One publisher of a broker with Valkey: a batch is an entry there."""
    return tier('valkey:levee', 'pub', style='batch', size=size, batch=batch)


def lag(at):
    """Megabytes of sealed segments without a copy, so far into a run."""
    return lambda row: (row.get('Lag') or {}).get(at)


def idle(label):
    return rows_of(label, 'idle')


def shapes(peer, size):
    """64 publishers that wait for each answer: with connections of their own, or with one that they share."""
    return [pub(label, 'sync', size, 64) for label in (peer, peer.replace(':', '-shared:'))]


def own_tool(peer, style, size, conc=1):
    """What the peer's own load generator says."""
    return [pub('native-' + peer, style, size, conc)]


def ordered(size):
    """JetStream's fastest way to consume, by our driver or by nats bench."""
    return [consume('jetstream:default', size, 'ordered'), consume('native-jetstream:default', size, 'ordered')]


def driven(peer, style, size, own_style=None):
    """One publisher, by our driver or by the peer's own tool."""
    return [pub(peer, style, size)] + own_tool(peer, own_style or style, size)


class Goal:
    """ours/theirs by `key` against `wanted`. Without theirs, ours itself is bounded. A key is a field or a function of a row.
    Theirs may be several selections: the one in which the peer does best counts. Where nothing is wanted the figure only
    tells something about others."""

    def __init__(self, name, words, ours, theirs, key, sign, wanted, their_key=None):
        self.name, self.words, self.ours, self.theirs = name, words, ours, theirs
        self.key, self.their_key, self.sign, self.wanted = key, their_key or key, sign, wanted


# Rows after whose runs the broker's memory is looked at (G4).
LOADED = ('levee:on_commit', 'levee:periodic', 'levee-pipe:on_commit', 'levee-pipe:periodic', 'levee-many:on_commit', 'levee-many:periodic')

COLD_GETS = [tier('cold:get', 'consume', size=n) for n in (1 << 20, 8 << 20)]

GOALS = [
    # The machine itself.
    Goal('P1a', 'log, on_commit, 1 appender, by fdatasync on written blocks', log('on_commit', 1, 1), machine('fdatasync 4KiB written'), RATE, '>=', 0.9),
    Goal('P1b', 'the same, by fdatasync on a preallocated file', log('on_commit', 1, 1), machine('fdatasync 4KiB keep-size'), RATE, '>=', 1.3),
    Goal('P2a', 'log, on_commit, 64 appenders, by pebble', log('on_commit', 1, 64), log('on_commit', 1, 64, 'engine-pebble'), RATE, '>=', 2),
    Goal('P2b', 'the same, by its own 1 appender', log('on_commit', 1, 64), log('on_commit', 1, 1), RATE, '>=', 40),
    Goal('P2c', 'the same, records a flush', log('on_commit', 1, 64), None, 'RecsPerFlush', '>=', 45),
    Goal('P3', 'log, on_commit, 64 appenders of 16 records, by pebble', log('on_commit', 16, 64), log('on_commit', 16, 64, 'engine-pebble'), RATE, '>=', 2.5),
    Goal('P4a', 'log, none, 1 appender, by a direct write', log('none', 1, 1), log('none', 1, 1, 'engine-direct'), RATE, '>=', 0.7),
    Goal('P4b', 'log, none, 1 appender of 16 records, by a direct write', log('none', 16, 1), log('none', 16, 1, 'engine-direct'), RATE, '>=', 0.7),
    Goal('P4c', 'log, periodic by none, 1 appender', log('periodic', 1, 1), log('none', 1, 1), RATE, '>=', 0.9),
    Goal('P4d', 'log, none, 1 appender, p999 by p50', log('none', 1, 1), log('none', 1, 1), P999, '<=', 60, their_key=P50),
    Goal('P5', 'log, on_commit, p50 beside a neighbour that writes 200 MB/s, by the quiet p50', log('on_commit', 1, 1, 'engine-levee-noise'), log('on_commit', 1, 1), P50, '<=', 2),
    Goal('P6a', 'publish one by one, periodic, 64 publishers on one connection, by bare gRPC', pub('levee-shared:periodic', 'sync', 128, 64), grpc('bidi', 1, 64, 1), RATE, '>=', 0.7),
    Goal("P6a'", 'the same, with a connection each on both sides', pub('levee:periodic', 'sync', 128, 64), grpc('bidi-conns', 1, 64, 1), RATE, '>=', 0.7),
    Goal('P6b', 'publish in batches of 256, periodic, by bare gRPC', pub('levee-pipe:periodic', 'batch', 128), grpc('bidi-raw', 256), RATE, '>=', 0.5),
    Goal('P6c', 'consume, by bare gRPC', consume('levee:periodic', 128), grpc('server-stream-raw', 256), RATE, '>=', 0.6),
    Goal('P7a', 'start with a full check, cached, by reading and checksumming alone', ready('recovery-levee-warm-full'), machine('read cached 256K + crc32c'), recovered_mb_per_s, '>=', 0.5, their_key='MBPerS'),
    Goal('P7b', 'the same from the device, by reading alone', ready('recovery-levee-cold-full'), machine('read cold 1024K'), recovered_mb_per_s, '>=', 0.7, their_key='MBPerS'),
    Goal('P7c', 'start after a crash, seconds until it serves (about 1.7 GiB)', ready('recovery-levee-warm'), None, 'Secs', '<=', 0.3),
    Goal('P8', 'on_commit bytes, 64 publishers in batches, 1 KiB, by write+fdatasync of 256 KiB', pub('levee-many:on_commit', 'batch', 1024, 64), machine('write+fdatasync per 256K'), 'MBPerS', '>=', 0.7),
    # Acknowledged from the device.
    Goal('A1', 'on_commit, 64 sync publishers, 128 B, by JetStream sync always', pub('levee:on_commit', 'sync', 128, 64), shapes('jetstream:always', 128) + own_tool('jetstream:always', 'sync', 128, 64), RATE, '>=', 12),
    Goal('A1s', 'on_commit, 64 sync publishers on one connection, 128 B, by JetStream sync always', pub('levee-shared:on_commit', 'sync', 128, 64), shapes('jetstream:always', 128) + own_tool('jetstream:always', 'sync', 128, 64), RATE, '>=', 12),
    Goal('A2', 'on_commit, 64 sync publishers, 1 KiB, by JetStream sync always', pub('levee:on_commit', 'sync', 1024, 64), shapes('jetstream:always', 1024) + own_tool('jetstream:always', 'sync', 1024, 64), RATE, '>=', 11),
    Goal('A2s', 'the same, publishers on one connection', pub('levee-shared:on_commit', 'sync', 1024, 64), shapes('jetstream:always', 1024) + own_tool('jetstream:always', 'sync', 1024, 64), RATE, '>=', 11),
    Goal('A3', 'on_commit, 64 sync publishers, 128 B, by Redis always', pub('levee:on_commit', 'sync', 128, 64), shapes('redis-streams:always', 128) + own_tool('redis-streams:always', 'sync', 128, 64), RATE, '>=', 0.9),
    Goal('A3s', 'on_commit, 64 sync publishers on one connection, 128 B, by Redis always', pub('levee-shared:on_commit', 'sync', 128, 64), shapes('redis-streams:always', 128) + own_tool('redis-streams:always', 'sync', 128, 64), RATE, '>=', 0.9),
    Goal('A4a', 'on_commit, 1 sync publisher, 128 B, by JetStream sync always', pub('levee:on_commit', 'sync', 128), driven('jetstream:always', 'sync', 128), RATE, '>=', 1.3),
    Goal('A4b', 'the same, p50 by a flush of 4 KiB', pub('levee:on_commit', 'sync', 128), rows_of('fsync-ref', 'fdatasync 4KiB keep-size'), P50, '<=', 2.2),
    Goal('A5', 'on_commit, 1 async publisher, 128 B, by Redis always', pub('levee:on_commit', 'async', 128), driven('redis-streams:always', 'async', 128, 'batch'), RATE, '>=', 4),
    Goal('A6', 'on_commit, batches of 256, 128 B, by atomic batches of JetStream always', pub('levee:on_commit', 'batch', 128), pub('jetstream:always', 'batch', 128), RATE, '>=', 12),
    Goal('A7', 'on_commit, 1 async publisher, 1 KiB, by JetStream sync always', pub('levee:on_commit', 'async', 1024), driven('jetstream:always', 'async', 1024), RATE, '>=', 50),
    Goal('A8', 'Kafka port, on_commit, async 128 B, by kfake with flushes', pub('levee-kafka:on_commit', 'async', 128), pub('kfake:sync', 'async', 128), RATE, '>=', 0.85),
    Goal('A9', 'Kafka port, on_commit, 64 sync producers, by kfake with flushes', pub('levee-kafka:on_commit', 'sync', 128, 64), pub('kfake:sync', 'sync', 128, 64), RATE, '>=', 10),
    Goal('A10', 'on_commit, 64 sync publishers, 128 B, by RabbitMQ quorum queues', pub('levee:on_commit', 'sync', 128, 64), pub('rabbitmq-quorum', 'sync', 128, 64), RATE, '>=', 3),
    Goal('A10s', 'the same, publishers on one connection', pub('levee-shared:on_commit', 'sync', 128, 64), pub('rabbitmq-quorum', 'sync', 128, 64), RATE, '>=', 3),
    # Acknowledged before.
    Goal('B1a', 'periodic, 64 sync publishers, 128 B, by JetStream default', pub('levee:periodic', 'sync', 128, 64), shapes('jetstream:default', 128), RATE, '>=', 2.5),
    Goal('B1s', 'the same, publishers on one connection', pub('levee-shared:periodic', 'sync', 128, 64), shapes('jetstream:default', 128), RATE, '>=', 2.5),
    Goal('B1b', "the same, by what nats bench says of JetStream default", pub('levee:periodic', 'sync', 128, 64), pub('native-jetstream:default', 'sync', 128, 64), RATE, '>=', 1.5),
    Goal('B2', 'periodic, 1 async publisher, 128 B, by JetStream default', pub('levee:periodic', 'async', 128), driven('jetstream:default', 'async', 128), RATE, '>=', 5),
    Goal('B3', 'periodic, 1 async publisher, 1 KiB, by JetStream default', pub('levee:periodic', 'async', 1024), driven('jetstream:default', 'async', 1024), RATE, '>=', 3),
    Goal('B4', 'periodic, 1 async publisher, 128 B, by fast batches of JetStream default', pub('levee:periodic', 'async', 128), driven('jetstream:default', 'fast', 128), RATE, '>=', 3.5),
    Goal('B5', 'on_commit, 1 async publisher, 128 B, by JetStream default, which does not flush', pub('levee:on_commit', 'async', 128), driven('jetstream:default', 'async', 128), RATE, '>=', 4),
    # Reading.
    Goal('C1', 'consume 128 B, by an ordered consumer of JetStream', consume('levee:periodic', 128), ordered(128), RATE, '>=', 4),
    Goal('C2', 'consume 1 KiB, by an ordered consumer of JetStream', consume('levee:periodic', 1024), ordered(1024), RATE, '>=', 2.2),
    Goal('C3', 'consume 128 B, by XREAD of Redis', consume('levee:periodic', 128), consume('redis-streams:everysec', 128), RATE, '>=', 0.9),
    Goal('C4', 'Kafka fetch 128 B, by kfake on disk', consume('levee-kafka:periodic', 128), consume('kfake:disk', 128), RATE, '>=', 0.9),
    Goal('C5a', 'shared subscription, acknowledged in batches, by fetch and ack of JetStream', consume('levee-subscription-batched:periodic', 128), consume('jetstream:default', 128, 'fetch'), RATE, '>=', 7),
    Goal('C5b', 'shared subscription, acknowledged one by one, by fetch and ack of JetStream', consume('levee-subscription:periodic', 128), consume('jetstream:default', 128, 'fetch'), RATE, '>=', 3),
    Goal("C5b'", 'the same, and the client sends together what waits', consume('levee-subscription-each:periodic', 128), consume('jetstream:default', 128, 'fetch'), RATE, '>=', 3),
    # Subscriptions.
    Goal('S1', 'shared subscription, 4 consumers, 1 KiB, by a plain consumer', subscribed('batched', 'shared', 1024, 4), consume('levee-plain:periodic', 1024), RATE, '>=', 0.6),
    Goal('S2a', 'key_shared subscription, 4 consumers, 1 KiB, 1,000 keys, by a shared one', subscribed('keyed', 'keyshared', 1024, 4), subscribed('keyed', 'shared', 1024, 4), RATE, '>=', 0.8),
    Goal('S2b', 'the same, 128 B', subscribed('keyed', 'keyshared', 128, 4), subscribed('keyed', 'shared', 128, 4), RATE, '>=', 0.8),
    Goal('S3', 'CPU an acknowledged message, shared subscription, 128 B, by fetch and ack of JetStream', subscribed('batched', 'shared', 128, 1), consume('jetstream:default', 128, 'fetch'), CPU, '<=', 1 / 3),
    Goal('S4', 'flushes to the device an acknowledgement, each a message of its own', consume('levee-subscription:periodic', 128), None, 'FlushesPerAck', '<=', 0.0001),
    Goal('S5', 'three consumers of a shared subscription beside a slow fourth, 1 KiB, by three alone', subscribed('slow', 'shared', 1024, 4), subscribed('fast', 'shared', 1024, 3), RATE, '>=', 0.9),
    # Danube's unary calls.
    Goal('T1', 'Danube SendMessage, 64 callers, non-reliable, by bare gRPC', unary('non_reliable'), unary('bare'), RATE, '>=', 0.7),
    Goal('T2', 'the same, periodic', unary('periodic'), unary('bare'), RATE, '>=', 0.7),
    Goal('T3', 'the same, on_commit', unary('on_commit'), unary('bare'), RATE, '>=', 0.5),
    # From publisher to consumer.
    Goal('D1', 'non-reliable 1:1, 128 B, received, by core NATS', rows_of('levee:nonreliable-fanout1', 'fanout', size=128), rows_of('nats-core:fanout1', 'fanout', size=128), RATE, '>=', 1),
    Goal('D2', 'non-reliable 1:10, 1 KiB, received, by core NATS', rows_of('levee:nonreliable-fanout10', 'fanout', size=1024), rows_of('nats-core:fanout10', 'fanout', size=1024), RATE, '>=', 0.9),
    Goal('D3', 'non-reliable, end to end at 2,000/s, p99, by core NATS', e2e('levee:nonreliable'), e2e('nats-core'), P99, '<=', 2),
    Goal('D4a', 'on_commit, end to end at 2,000/s, p99, by Redis always', e2e('levee:on_commit'), e2e('redis-streams:always'), P99, '<=', 0.6),
    Goal('D4b', 'the same, by JetStream default, which does not flush', e2e('levee:on_commit'), e2e('jetstream:default'), P99, '<=', 1.3),
    # The broker's CPU.
    Goal('E1', 'CPU a message, periodic async 128 B, by JetStream default', pub('levee:periodic', 'async', 128), pub('jetstream:default', 'async', 128), CPU, '<=', 0.25),
    Goal('E2', 'CPU a message, consume 128 B, by an ordered consumer of JetStream', consume('levee:periodic', 128), consume('jetstream:default', 128, 'ordered'), CPU, '<=', 0.25),
    Goal('E3', 'CPU a message, on_commit, 64 sync publishers, by JetStream sync always', pub('levee:on_commit', 'sync', 128, 64), shapes('jetstream:always', 128), CPU, '<=', 0.15),
    Goal('E3s', 'the same, publishers on one connection', pub('levee-shared:on_commit', 'sync', 128, 64), shapes('jetstream:always', 128), CPU, '<=', 0.15),
    # Load of several kinds at once.
    Goal('F1a', 'mixed load, periodic, p99 of the probe, by JetStream default', pub('levee-mixed:periodic', 'sync', 128), pub('mixed-jetstream:default', 'sync', 128), P99, '<=', 0.5),
    Goal('F1b', 'the same, p999', pub('levee-mixed:periodic', 'sync', 128), pub('mixed-jetstream:default', 'sync', 128), P999, '<=', 0.5),
    Goal('F2a', 'mixed load, on_commit, p99 of the probe, by JetStream default, which does not flush', pub('levee-mixed:on_commit', 'sync', 128), pub('mixed-jetstream:default', 'sync', 128), P99, '<=', 0.5),
    Goal('F2b', 'the same, p999', pub('levee-mixed:on_commit', 'sync', 128), pub('mixed-jetstream:default', 'sync', 128), P999, '<=', 0.5),
    # Memory, starts and recovery.
    Goal('G1a', 'memory an idle topic, KiB, 10,000 topics', idle('idle-levee-10000'), None, 'StreamKiB', '<=', 8),
    Goal('G1b', 'the same, 100,000 topics', idle('idle-levee-100000'), None, 'StreamKiB', '<=', 6),
    Goal('G1c', 'memory an idle topic, 10,000 topics, by JetStream', idle('idle-levee-10000'), idle('idle-jetstream-10000'), 'StreamKiB', '<=', 0.125),
    Goal('G1d', 'disk space an idle topic, KiB, 100,000 topics', idle('idle-levee-100000'), None, 'StreamDiskKiB', '<=', 64),
    Goal('G1e', 'open files with 100,000 idle topics', idle('idle-levee-100000'), None, 'OpenFiles', '<=', 4500),
    Goal('G2a', 'topics created with a record each by 64 creators, by JetStream', idle('idle-levee-10000'), idle('idle-jetstream-10000'), RATE, '>=', 8),
    Goal('G2b', 'start with 10,000 topics after a crash, seconds', ready('restart-levee-10000'), None, 'Secs', '<=', 1),
    Goal('G2c', 'the same, by JetStream', ready('restart-levee-10000'), ready('restart-jetstream-10000'), 'Secs', '<=', 1 / 16),
    Goal('G2d', 'start with 100,000 topics after a crash, seconds', ready('restart-levee-100000'), None, 'Secs', '<=', 10),
    Goal('G3a', 'recovery after a crash, cached, seconds a GiB, by JetStream', ready('recovery-levee-warm'), ready('recovery-jetstream-warm'), seconds_per_gib, '<=', 0.125),
    Goal('G3b', 'recovery after a crash, from the device, seconds a GiB, by JetStream', ready('recovery-levee-cold'), ready('recovery-jetstream-cold'), seconds_per_gib, '<=', 0.125),
    Goal('G4', 'memory above that of an idle broker, MB, at most, publishing and consuming', None, None, None, '<=', 100),
    # The tiers beside the log.
    Goal('R1a', 'publish at 50 MB/s, 1 KiB, on_commit, p99 with export to a directory, by none', tier('export:local', 'paced'), tier('export:off', 'paced'), P99, '<=', 1.2),
    Goal('R1b', 'the same, to S3', tier('export:s3', 'paced'), tier('export:off', 'paced'), P99, '<=', 1.2),
    Goal('R1c', 'what export to a directory falls behind, by what is published meanwhile', tier('export:local', 'paced'), None, 'LagGrowth', '<=', 0.05),
    Goal('R1d', 'the same, to S3', tier('export:s3', 'paced'), None, 'LagGrowth', '<=', 0.05),
    Goal('R1e', 'the same without export, and a plain client that puts and gets as much: what R1b can be', tier('export:beside', 'paced'), tier('export:off', 'paced'), P99, '<=', None),
    Goal('R2a', 'bytes published with Valkey, batches of 256 KiB, by pipelined XADD', buffered(1024, 256), tier('valkey:raw', 'pub', size=262144), 'MBPerS', '>=', 0.5),
    Goal('R2b', 'the same, batches of 64 KiB', buffered(1024, 64), tier('valkey:raw', 'pub', size=65536), 'MBPerS', '>=', 0.5),
    Goal('R2c', 'the same, one record of 64 KiB a batch', buffered(65536, 1), tier('valkey:raw', 'pub', size=65536), 'MBPerS', '>=', 0.5),
    Goal('R3', 'taking over what is in Valkey, MB/s until it is served, by XRANGE', ready('tiers-takeover:levee'), [tier('takeover:xrange', 'consume', batch=n) for n in (16, 64)], recovered_mb_per_s, '>=', 0.5, their_key='MBPerS'),
    Goal('R4a', 'cold sequential read from S3, MB/s, by ranged GETs one after the other', tier('cold:levee', 'consume'), COLD_GETS, 'MBPerS', '>=', 0.6),
    Goal('R4b', 'requests to S3 that wait for one another until the first cold record', tier('cold:first', 'first'), None, 'Trips', '<=', 3),
    Goal('R4c', 'the sequential read from the local log: what R4a can be at most', tier('cold:local', 'consume'), COLD_GETS, 'MBPerS', '>=', None),
    Goal('R4d', "cold sequential read by the broker's reader alone, by the same GETs", tier('cold:reader', 'consume'), COLD_GETS, 'MBPerS', '>=', 0.6),
    # A real Kafka broker.
    Goal('K1', "produce a second of CPU, by Apache Kafka", pub('levee-kafka:periodic', 'async', 128), pub('kafka:default', 'async', 128), 'SrvCPUPerM', '<=', 1 / 1.5),
    Goal('K2', 'acks=all with flushes, 64 sync producers, by Apache Kafka', pub('levee-kafka:on_commit', 'sync', 128, 64), pub('kafka:flush', 'sync', 128, 64), RATE, '>=', 5),
    Goal('K3', 'memory, by Apache Kafka', pub('levee-kafka:periodic', 'async', 128), pub('kafka:default', 'async', 128), 'RSSMB', '<=', 0.2),
]


# Figures that have no goal: partitions that are busy at once, and what the device flushes by itself.
FIGURES = [
    ('device: 4 KiB written and flushed by 1 thread', rows_of('phys-partitions', 'fdatasync 4KiB of 1 files')),
    ('device: by 16 threads, of different files', rows_of('phys-partitions', 'fdatasync 4KiB of 16 files')),
    ('log, on_commit, 64 appenders, 1 partition', rows_of('engine-partitions', 'on_commit', partitions=1)),
    ('log, on_commit, 64 appenders, 16 partitions', rows_of('engine-partitions', 'on_commit', partitions=16)),
    ('log, on_commit, 256 appenders, 256 partitions', rows_of('engine-partitions', 'on_commit', partitions=256)),
    ('broker, on_commit, 64 sync publishers, 1 partition', rows_of('levee-partitions:on_commit', style='sync', partitions=1)),
    ('broker, on_commit, 64 sync publishers, 16 partitions', rows_of('levee-partitions:on_commit', style='sync', partitions=16)),
    ('broker, on_commit, 64 async publishers, 1 partition', rows_of('levee-partitions:on_commit', style='async', partitions=1)),
    ('broker, on_commit, 64 async publishers, 16 partitions', rows_of('levee-partitions:on_commit', style='async', partitions=16)),
]
# What export has not copied yet, in the course of a run.
LAGS = [(f'export to {words}', tier('export:' + name, 'paced')) for words, name in (('a directory', 'local'), ('S3', 's3'))]
LAG_KEYS = ('At25', 'At50', 'At100', 'Most', 'Held25', 'Held50', 'Held100')
FIGURE_KEYS = (RATE, P50, P99, 'FlushesPerS', 'RecsPerFlush')


def figures(rows):
    """What was measured of FIGURES: words, and a median for each key."""
    found = [(words, [median(rows, one, key)[0] for key in FIGURE_KEYS]) for words, one in FIGURES]
    return [(words, values) for words, values in found if values[0] is not None]


def lags(rows):
    """What was measured of LAGS: words, and a median for each key."""
    found = [(words, [median(rows, one, lag(key))[0] for key in LAG_KEYS]) for words, one in LAGS]
    return [(words, values) for words, values in found if values[0] is not None]


def better(goal, rows):
    """What the goal compares with: of several selections the one with the peer's best median."""
    found = [median(rows, one, goal.their_key) for one in (goal.theirs if isinstance(goal.theirs, list) else [goal.theirs])]
    found = [f for f in found if f[0]] or [(None, 0)]  # a peer that did nothing is none to compare with
    return (max if goal.sign == '>=' else min)(found)


def median(rows, selection, key):
    """The median of key over the rows selected, and how many there were; None without any."""
    picked = [r for r in rows if all(r.get(k) == v for k, v in selection.items())]
    values = [key(r) if callable(key) else r.get(key) for r in picked]
    values = [v for v in values if v is not None]
    return (statistics.median(values) if values else None), len(values)


def memory_above_idle(rows):
    """The most memory of the broker while and after it was loaded, above what it took before."""
    before, _ = median(rows, {'Label': 'levee:idle', 'Mode': 'rss'}, 'RSSMB')
    most = [r['HWMMB'] for r in rows if r.get('Label') in LOADED and r.get('HWMMB')]
    if before is None or not most:
        return None, 0
    return max(most) - before, len(most)


class Result:
    """What one goal came to. verdict is met, missed, not measured, or informative where nothing is wanted."""

    def __init__(self, goal, rows):
        self.goal = goal
        self.theirs, self.their_rows = None, 0
        if goal.ours is None:
            self.ours, self.our_rows = memory_above_idle(rows)
        else:
            self.ours, self.our_rows = median(rows, goal.ours, goal.key)
        if goal.theirs is not None:
            self.theirs, self.their_rows = better(goal, rows)
        bounded = goal.ours is None or goal.theirs is None
        if bounded:
            self.value = self.ours
        elif self.ours is None or not self.theirs:
            self.value = None
        else:
            self.value = self.ours / self.theirs
        if self.value is None:
            self.verdict = 'not measured'
        elif goal.wanted is None:
            self.verdict = 'informative'
        elif self.value >= goal.wanted if goal.sign == '>=' else self.value <= goal.wanted:
            self.verdict = 'met'
        else:
            self.verdict = 'missed'


def results(rows):
    return [Result(g, rows) for g in GOALS]


def warnings(rows):
    """What makes figures of this run doubtful."""
    said = []
    flushes = [r['MsgsPerS'] for r in rows if r.get('Label') == 'fsync-ref' and r.get('MsgsPerS')]
    if flushes and max(flushes) > 2 * min(flushes):
        said.append(f'the device was not the same throughout: {min(flushes):,.0f} to {max(flushes):,.0f} flushes a second; do not use these figures')
    failed = sum(1 for r in rows if r.get('Errors'))
    if failed:
        said.append(f'{failed} rows count errors')
    late = sorted({r['Label'] for r in rows if r.get('Offered') and r['MsgsPerS'] < 0.95 * r['Offered']})
    if late:
        said.append(f'less was published than was offered: {", ".join(late)}; their latencies say how long, not how fast')
    lost = sum(r.get('Dropped') or 0 for r in rows if r.get('Label', '').startswith('levee:nonreliable'))
    if lost:
        said.append(f'non-reliable subscribers were too slow for {lost:,} messages, which D1 and D2 do not count as received')
    return said


def number(x):
    if x is None:
        return '-'
    if abs(x) >= 100:
        return f'{x:,.0f}'
    return f'{x:,.2f}' if abs(x) >= 1 else f'{x:.3g}'


def wanted(goal, sign):
    return '' if goal.wanted is None else f'{sign} {number(goal.wanted)}'


def read(paths):
    rows = []
    for path in paths:
        with open(path, encoding='utf-8') as lines:
            for n, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    rows.append(json.loads(line))
                except ValueError as e:
                    sys.exit(f'{path}:{n}: not a row: {e}')
    return rows


def text(found, said, plain, behind):
    out = [f"{'id':4} {'goal':86} {'Levee':>12} {'peer':>12} {'ratio':>9} {'wanted':>9}  {'':12} rows"]
    for r in found:
        ratio = number(r.value) if r.goal.theirs is not None else ''
        out.append(f'{r.goal.name:4} {r.goal.words:86} {number(r.ours):>12} {number(r.theirs):>12} {ratio:>9} '
                   f'{wanted(r.goal, r.goal.sign):>9}  {r.verdict:12} {r.our_rows},{r.their_rows}')
    counts = {v: sum(1 for r in found if r.verdict == v) for v in ('met', 'missed', 'not measured')}
    out.append(', '.join(f'{n} {v}' for v, n in counts.items()))
    out += ['warning: ' + s for s in said]
    if plain:
        out += ['', f"{'informative, no goal':91} {'msgs/s':>12} {'p50 us':>10} {'p99 us':>10} {'flushes/s':>10} {'records a flush':>16}"]
    for words, values in plain:
        rate, p50, p99, flushes, per = map(number, values)
        out.append(f'{words:91} {rate:>12} {p50:>10} {p99:>10} {flushes:>10} {per:>16}')
    if behind:
        out += ['', f"{'MB of sealed segments without a copy':40} {'25 %':>8} {'50 %':>8} {'100 %':>8} {'most':>8}   and of these held: 25, 50, 100 %"]
    for words, values in behind:
        out.append(f'{words:40} ' + ' '.join(f'{number(v):>8}' for v in values))
    return out


def markdown(found, said, plain, behind):
    out = ['| goal | | Levee | peer | ratio | wanted | |', '|---|---|---:|---:|---:|---:|---|']
    for r in found:
        ratio = number(r.value) if r.goal.theirs is not None else ''
        sign = '≥' if r.goal.sign == '>=' else '≤'
        out.append(f'| {r.goal.name} | {r.goal.words} | {number(r.ours)} | {number(r.theirs)} | {ratio} | {wanted(r.goal, sign)} | {r.verdict} |')
    if said:
        out += [''] + [f'* {s}' for s in said]
    if plain:
        out += ['', '| informative, no goal | messages/s | p50 µs | p99 µs | flushes/s | records a flush |', '|---|---:|---:|---:|---:|---:|']
    for words, values in plain:
        out.append(f'| {words} | {" | ".join(map(number, values))} |')
    if behind:
        out += ['', '| MB of sealed segments without a copy, of a run at 50 MB/s | at 25 % | at 50 % | at the end | most | held at 25 % | at 50 % | at the end |', '|---|---:|---:|---:|---:|---:|---:|---:|']
    for words, values in behind:
        out.append(f'| {words} | {" | ".join(map(number, values))} |')
    return out


def facts(rows):
    """What was measured where, as a list for a page."""
    out = []
    for r in rows:
        if r.get('Label') == 'facts':
            out += [f'* {k}: {v.strip()}' for k, v in r.items() if k not in ('Label', 'Mode')] + ['']
    return out


# What a reader wants to know first.
HEADLINE = ('A1', 'A1s', 'A3', 'A3s', 'A5', 'B5', 'B2', 'C1', 'D1', 'E1', 'F1a', 'G2a', 'G3a')


def headline(found):
    counts = {v: sum(1 for r in found if r.verdict == v) for v in ('met', 'missed', 'not measured')}
    out = [f"Goals: {counts['met']} met, {counts['missed']} missed, {counts['not measured']} not measured.", '']
    for r in found:
        if r.goal.name in HEADLINE and r.value is not None:
            what, _, peer = r.goal.words.partition(', by ')
            out.append(f'* {what}: {number(r.ours)}, {peer} {number(r.theirs)}: {number(r.value)} times ({r.goal.name})')
    return out + ['']


BEGIN, END = '<!-- goals: begin, filled by test/bench/goals.py -->', '<!-- goals: end -->'


def fill(page, lines):
    """Puts lines between the markers of a page."""
    before, after = BEGIN, END
    try:
        with open(page, encoding='utf-8') as f:
            old = f.read()
    except FileNotFoundError:
        old = ''
    if BEGIN in old and END in old:
        before, after = old[:old.index(BEGIN)] + BEGIN, old[old.index(END):]
    with open(page, 'w', encoding='utf-8') as f:
        f.write('\n'.join([before, *lines, after]).strip('\n') + '\n')


def main(args):
    into = [a.removeprefix('--into=') for a in args if a.startswith('--into=')]
    flags = {a for a in args if a.startswith('--') and not a.startswith('--into=')}
    paths = [a for a in args if not a.startswith('--')]
    if not paths or flags - {'--markdown', '--strict'}:
        sys.exit(__doc__)
    rows = read(paths)
    found, said, plain, behind = results(rows), warnings(rows), figures(rows), lags(rows)
    for name in into:
        fill(name, headline(found) + facts(rows) + markdown(found, said, plain, behind))
    if not into:
        print('\n'.join((markdown if '--markdown' in flags else text)(found, said, plain, behind)))
    return 1 if '--strict' in flags and any(r.verdict == 'missed' for r in found) else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
