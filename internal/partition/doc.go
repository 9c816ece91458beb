// Package partition owns the truth about one partition: whether its log can be used and why not, the generation it
// writes under, and the reservation of offsets that keeps an offset from ever naming two records. It puts a log (package
// seglog) and the metadata (package meta) together; it knows neither publishers nor subscribers nor other partitions.
//
// A log that cannot be opened makes a partition that is unavailable, never a broker that does not start. It never
// removes data and never decides by itself to go on without data that it cannot read.
//
// Invariant: while a log may acknowledge records that the device does not have, every offset it assigns lies below a
// reservation that the metadata holds durably; and after a crash that may have cost such records, the log goes on above
// that reservation, under a new generation, with the offsets between declared lost.
//
// Steps that change a partition as a whole (open, unload, apply settings, close) take turns; everything else uses the
// log that is open at the moment and fails with the partition's reason when there is none.
package partition
