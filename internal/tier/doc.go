// Package tier owns what becomes of a sealed segment in an object store: the object that it is exported as, the export
// itself, reading it back, and looking after the bucket. It knows segments' bytes and objects, and never a log, a broker
// or the metadata: what is to be exported, where an export is recorded and which objects count come through small
// interfaces. It never removes anything local and takes nothing for stored that it has not read back. Invariant: bytes
// leave this package, in either direction, only after every checksum over them was checked and every frame continued the
// one before. docs/formats/object.md describes the object.
package tier

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }
