// Command phys measures what the machine itself can do: flushes, sequential writes and reads, loopback TCP, checksums,
// hand-offs between goroutines, timers. One JSON line a probe. It owns its files below -dir and removes them, talks to
// loopback only, and every probe is bounded in time.
//
//	phys -dir DIR -secs 1 [-only fsync,syncw,read]
//	phys -dir DIR -noise 200 -secs 10     write 200 MB/s and flush, as a neighbour would
//	phys -dontneed DIR                    drop what the page cache holds of a directory
package main

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

var (
	dir      = flag.String("dir", ".", "where to write")
	only     = flag.String("only", "", "probes, with commas between; default: all")
	secs     = flag.Float64("secs", 2, "how long to measure each probe that is bounded by time")
	label    = flag.String("label", "phys", "copied to the rows")
	total    = flag.Int64("bytes", 512<<20, "how much to write and read in the probes of bandwidth")
	dontneed = flag.String("dontneed", "", "drop the page cache of every file below this directory, and end")
	noise    = flag.Int64("noise", 0, "write so many MB a second with fsync for -secs, and end")
)

// probes by the word that -only knows.
var probes = []struct {
	name string
	run  func()
}{
	{"fsync", flushByFileState},
	{"fsyncsize", flushBySize},
	{"conc", func() { flushSeveralFiles(1, 16) }}, // beside logs that flush at once
	{"concmore", func() { flushSeveralFiles(2, 4, 8, 64) }},
	{"samefile", flushOneFile},
	{"dsync", writeThrough},
	{"seqw", sequentialWrite},
	{"syncw", writeAndFlush},
	{"read", readFile},
	{"tcp", tcp},
	{"crc", checksum},
	{"chan", handOff},
	{"sleep", sleep},
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// length is how long a probe lasts that is bounded by time.
func length() time.Duration { return time.Duration(*secs * float64(time.Second)) }

func main() {
	flag.Parse()
	if *dontneed != "" {
		dropCache(*dontneed)
		return
	}
	must(os.MkdirAll(*dir, 0o755))
	if *noise > 0 {
		neighbour(*noise, length())
		return
	}
	if *only == "fsyncref" { // beside every peer, short
		flushProbe("fdatasync 4KiB keep-size", "keep-size", length())
		return
	}
	for _, p := range probes {
		if *only == "" || slices.Contains(strings.Split(*only, ","), p.name) {
			p.run()
		}
	}
}

// row has the names that all rows of the harness have; Mode names the probe.
type row struct {
	Label, Mode, Style string
	Size, Conc         int
	MsgsPerS, MBPerS   float64
	P50, P99, P999     float64 // microseconds
}

func put(r row) {
	r.Label, r.Style = *label, "probe"
	must(json.NewEncoder(os.Stdout).Encode(r))
}

// timed makes a row of operations that took so long each and took altogether.
func timed(name string, size, conc int, each []time.Duration, took time.Duration) row {
	slices.Sort(each)
	n := float64(len(each))
	return row{
		Mode: name, Size: size, Conc: conc, MsgsPerS: n / took.Seconds(), MBPerS: n * float64(size) / 1e6 / took.Seconds(),
		P50: quantile(each, .5), P99: quantile(each, .99), P999: quantile(each, .999),
	}
}

func bandwidth(name string, size int, bytes int64, took time.Duration) row {
	return row{Mode: name, Size: size, Conc: 1, MBPerS: float64(bytes) / 1e6 / took.Seconds()}
}

func quantile(sorted []time.Duration, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return float64(sorted[min(int(p*float64(len(sorted))), len(sorted)-1)].Nanoseconds()) / 1e3
}

func temporary(name string) string { return filepath.Join(*dir, "phys-"+name) }
