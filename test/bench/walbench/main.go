// Command walbench measures append engines in process, one JSON line a cell: Levee's log (by the program beside it, as
// the log is internal to its module), a direct write, a sketch of group commit, and the logs of tidwall/wal, pebble, etcd
// and bbolt. It owns its files below -dir and removes them; it never compares: goals.py does.
//
//	walbench -dir DIR -levee bin/engine -secs 1 [-only direct,pebble] [-cells 1/1,1/64] [-modes on_commit]
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

var (
	dir   = flag.String("dir", ".", "where to write")
	secs  = flag.Float64("secs", 1.5, "how long to measure each cell")
	only  = flag.String("only", "", "engines, with commas between; default: all")
	size  = flag.Int("size", 128, "bytes of a record")
	modes = flag.String("modes", "none,periodic,on_commit", "fsync modes")
	cells = flag.String("cells", "1/1,16/1,1/64,16/64,64/64", "records a batch and appenders side by side")
	levee = flag.String("levee", "", "the program that measures Levee's log; without it, that engine is left out")
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// made are the engines by name, in the order they take turns in. nil: another program.
var made = []struct {
	name string
	open func(mode string) engine
}{
	{"levee", nil},
	{"group", func(m string) engine { return newGroup(m, false) }},
	{"groupz", func(m string) engine { return newGroup(m, true) }},
	{"direct", func(m string) engine { return newDirect(m) }},
	{"tidwall", func(m string) engine { return newTid(m) }},
	{"pebble", func(m string) engine { return newPeb(m) }},
	{"etcd", func(m string) engine { return newEtcd(m) }},
	{"bbolt", func(m string) engine { return newBolt(m) }},
}

// leftOut reports whether a cell is not measured: engines without a periodic mode, and bbolt where it gathers nothing.
func leftOut(name, mode string, conc int) bool {
	switch {
	case *only != "" && !slices.Contains(strings.Split(*only, ","), name):
		return true
	case name == "levee" && *levee == "":
		return true
	case mode == "periodic":
		return !slices.Contains([]string{"levee", "group", "groupz", "direct"}, name)
	}
	return name == "bbolt" && (mode != "on_commit" || conc == 1)
}

func main() {
	flag.Parse()
	must(os.MkdirAll(*dir, 0o755))
	for _, mode := range strings.Split(*modes, ",") {
		for _, cell := range strings.Split(*cells, ",") {
			var batch, conc int
			_, err := fmt.Sscanf(cell, "%d/%d", &batch, &conc)
			must(err)
			for _, m := range made {
				switch {
				case leftOut(m.name, mode, conc):
				case m.open == nil:
					runLevee(mode, batch, conc)
				default:
					must(json.NewEncoder(os.Stdout).Encode(measure(m.name, mode, m.open(mode), batch, conc)))
				}
			}
		}
	}
}

func runLevee(mode string, batch, conc int) {
	cmd := exec.Command(*levee, "-dir", *dir, "-mode", mode, "-batch", strconv.Itoa(batch), "-conc", strconv.Itoa(conc),
		"-size", strconv.Itoa(*size), "-secs", fmt.Sprint(*secs))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	must(cmd.Run())
}

// row has the names that all rows of the harness have.
type row struct {
	Label, Mode, Style        string
	Size, Conc, Batch         int
	Msgs                      int64
	Secs, MsgsPerS, MBPerS    float64
	P50, P99, P999            float64 // microseconds
	SrvCPUPerM                float64 // CPU seconds a million records
	FlushesPerS, RecsPerFlush float64 `json:",omitempty"` // where the engine counts them
}

// An appender ends after so many appends, whatever time is left, and keeps so many latencies.
const (
	maxAppends = 2_000_000
	samples    = 200_000
)

func measure(name, mode string, e engine, batch, conc int) row {
	latencies := make([][]time.Duration, conc)
	var appends atomic.Int64
	var wg sync.WaitGroup
	cpu, start := cpuSeconds(), time.Now()
	end := start.Add(time.Duration(*secs * float64(time.Second)))
	for w := range conc {
		recs := records(batch)
		wg.Go(func() {
			n := 0
			for t := time.Now(); n == 0 || t.Before(end) && n < maxAppends; t = time.Now() {
				must(e.append(recs))
				if n++; n < samples {
					latencies[w] = append(latencies[w], time.Since(t))
				}
			}
			appends.Add(int64(n))
		})
	}
	wg.Wait()
	took := time.Since(start).Seconds()
	cpu = cpuSeconds() - cpu
	n := float64(appends.Load()) * float64(batch)
	r := row{
		Label: "engine-" + name, Mode: mode, Style: "append", Size: *size, Conc: conc, Batch: batch, Msgs: int64(n), Secs: took,
		MsgsPerS: n / took, MBPerS: n * float64(*size) / 1e6 / took, SrvCPUPerM: cpu / n * 1e6,
	}
	if g, ok := e.(*group); ok && g.syncs.Load() > 0 {
		r.FlushesPerS, r.RecsPerFlush = float64(g.syncs.Load())/took, n/float64(g.syncs.Load())
	}
	e.close()
	all := slices.Concat(latencies...)
	slices.Sort(all)
	quantile := func(p float64) float64 { return float64(all[int(p*float64(len(all)-1))].Nanoseconds()) / 1e3 }
	r.P50, r.P99, r.P999 = quantile(.5), quantile(.99), quantile(.999)
	return r
}

func records(n int) [][]byte {
	recs := make([][]byte, n)
	for i := range recs {
		recs[i] = make([]byte, *size)
		for j := range recs[i] {
			recs[i][j] = byte(j*31 + i)
		}
	}
	return recs
}

func cpuSeconds() float64 {
	var ru syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &ru))
	return float64(ru.Utime.Nano()+ru.Stime.Nano()) / 1e9
}
