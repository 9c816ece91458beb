// Package bytes owns the tests that damage the files of a real broker's data directory and look, through clients, at what
// the broker makes of them: bits that turned, pages that are zeros or stand in each other's place, files that are cut,
// missing, empty, old or another's. It knows the files from docs/formats alone and never asks internal packages for a
// verdict. Invariant: every case says beforehand, from what was written, what must come of it; what is read is compared
// record by record, and what lies on the disk byte by byte.
package bytes
