// Package record owns the record batch: the unit in which records are published, stored, moved and delivered. A batch
// is laid out as Kafka's message format 2, so it is encoded once, by the publisher, and never re-encoded on its way.
//
// The package never does I/O, keeps no state but pools of compressors, and knows nothing of topics, brokers or logs.
// Invariant: no number read from a batch sizes an allocation before it was checked against the bytes that are there or
// against a limit, so bytes of unknown origin can be handed to every function here.
//
// Layout of a batch, big endian. The checksum covers everything from the attributes on; the broker sets base offset and
// generation in place without touching it.
//
//	 0  base offset        i64   offset of the first record
//	 8  length             i32   bytes that follow this field
//	12  generation         i32   Kafka: partition leader epoch
//	16  magic              i8    2
//	17  crc                u32   CRC-32C (Castagnoli)
//	21  attributes         i16   bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control
//	23  last offset delta  i32
//	27  first timestamp    i64   milliseconds; records carry differences to it
//	35  max timestamp      i64
//	43  producer id        i64   -1: none
//	51  producer epoch     i16
//	53  base sequence      i32
//	57  record count       i32
//	61  records            compressed as one block, or plain
package record
