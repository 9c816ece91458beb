package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// printTable groups the rows of standard input that are alike and prints their medians, in the order of first sight.
func printTable() {
	in := json.NewDecoder(os.Stdin)
	var order []string
	groups := map[string][]result{}
	for {
		var r result
		err := in.Decode(&r)
		if errors.Is(err, io.EOF) {
			break
		}
		must(err)
		if r.Label == "facts" { // what was measured where
			continue
		}
		k := key(r)
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], r)
	}
	fmt.Printf("%-92s %2s %10s %10s %10s %7s %9s %9s %9s %9s %9s %7s\n", "run (medians)", "n", "min/s", "MED msg/s", "max/s", "MB/s",
		"p50us", "p99us", "p999us", "srvCPU/M", "cliCPU/M", "RSSMB")
	for _, k := range order {
		printGroup(k, groups[k])
	}
}

func key(r result) string {
	k := fmt.Sprintf("%-62s %7dB c=%-3d", r.Label+" "+r.Mode+" "+r.Style, r.Size, r.Conc)
	if r.Window > 0 || r.Batch > 0 {
		k += fmt.Sprintf(" w=%-5d b=%-5d", r.Window, r.Batch)
	}
	if r.Partitions > 1 {
		k += fmt.Sprintf(" partitions=%d", r.Partitions)
	}
	return k
}

func printGroup(k string, rows []result) {
	sorted := func(of func(result) float64) []float64 {
		var x []float64
		for _, r := range rows {
			x = append(x, of(r))
		}
		slices.Sort(x)
		return x
	}
	median := func(of func(result) float64) float64 { return sorted(of)[len(rows)/2] }
	rates := sorted(func(r result) float64 { return r.MsgsPerS })
	fmt.Printf("%-92s %2d %10.0f %10.0f %10.0f %7.1f %9.0f %9.0f %9.0f %9.2f %9.2f %7.0f", k, len(rows),
		rates[0], rates[len(rates)/2], rates[len(rates)-1],
		median(func(r result) float64 { return r.MBPerS }), median(func(r result) float64 { return r.P50 }),
		median(func(r result) float64 { return r.P99 }), median(func(r result) float64 { return r.P999 }),
		median(func(r result) float64 { return r.SrvCPUPerM }), median(func(r result) float64 { return r.CliCPUPerM }),
		median(func(r result) float64 { return r.RSSMB }))
	last := rows[len(rows)-1]
	if last.Errors > 0 {
		fmt.Printf("  errors=%d", last.Errors)
	}
	if last.Dropped > 0 {
		fmt.Printf("  dropped=%d", last.Dropped)
	}
	if last.Note != "" {
		fmt.Printf("  %s", last.Note)
	}
	fmt.Println()
}
