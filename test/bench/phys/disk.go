package main

import (
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	fallocKeepSize = 1 // FALLOC_FL_KEEP_SIZE
	fadvDontNeed   = 4 // POSIX_FADV_DONTNEED
	block          = 4096
	flushFile      = 128 << 20
)

// States of a file before it is measured.
var states = []string{"growing", "keep-size", "fallocated", "written"}

func newFile(name string, size int64, state string) *os.File {
	path := temporary(name)
	_ = os.Remove(path) // of a run that was killed
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	must(err)
	switch state {
	case "growing":
	case "keep-size": // blocks reserved beyond the end
		must(syscall.Fallocate(int(f.Fd()), fallocKeepSize, 0, size))
	case "fallocated": // blocks reserved and not written, size set
		must(syscall.Fallocate(int(f.Fd()), 0, 0, size))
	case "written": // as the blocks of a recycled file are
		b := make([]byte, 1<<20)
		for off := int64(0); off < size; off += int64(len(b)) {
			_, err := f.WriteAt(b, off)
			must(err)
		}
	}
	must(f.Sync())
	return f
}

func remove(f *os.File) {
	must(f.Close())
	must(os.Remove(f.Name()))
}

// flushes writes size bytes and flushes, again and again from the file's beginning to wrap.
func flushes(f *os.File, size int, wrap int64, dur time.Duration) []time.Duration {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i)
	}
	var each []time.Duration
	off := int64(0)
	for end := time.Now().Add(dur); time.Now().Before(end); {
		t := time.Now()
		_, err := f.WriteAt(b, off)
		must(err)
		must(syscall.Fdatasync(int(f.Fd())))
		each = append(each, time.Since(t))
		if off += int64(size); off+int64(size) > wrap {
			off = 0
		}
	}
	return each
}

func flushProbe(name, state string, dur time.Duration) {
	f := newFile("flush", flushFile, state)
	start := time.Now()
	each := flushes(f, block, flushFile, dur)
	put(timed(name, block, 1, each, time.Since(start)))
	remove(f)
}

func flushByFileState() {
	for _, state := range states {
		flushProbe("fdatasync 4KiB "+state, state, length())
	}
}

func flushBySize() {
	for _, size := range []int{512, 16 << 10, 64 << 10, 256 << 10} {
		f := newFile("flush", 256<<20, "written")
		start := time.Now()
		each := flushes(f, size, 256<<20, length()/2)
		put(timed(fmt.Sprintf("fdatasync %d B written", size), size, 1, each, time.Since(start)))
		remove(f)
	}
}

// sideBySide runs n flushers and makes a row of all they did.
func sideBySide(name string, n int, work func(i int) []time.Duration) {
	each := make([][]time.Duration, n)
	var wg sync.WaitGroup
	start := time.Now()
	for i := range n {
		wg.Go(func() { each[i] = work(i) })
	}
	wg.Wait()
	put(timed(name, block, n, slices.Concat(each...), time.Since(start)))
}

func flushSeveralFiles(counts ...int) {
	for _, n := range counts {
		files := make([]*os.File, n)
		for i := range files {
			files[i] = newFile(fmt.Sprintf("side-%d", i), 8<<20, "written")
		}
		sideBySide(fmt.Sprintf("fdatasync 4KiB of %d files", n), n, func(i int) []time.Duration {
			return flushes(files[i], block, 8<<20, length()/2)
		})
		for _, f := range files {
			remove(f)
		}
	}
}

// flushOneFile shows whether the device takes several flushes of one file at a time.
func flushOneFile() {
	const region = 16 << 20
	for _, n := range []int{1, 2, 4, 8} {
		f := newFile("same", int64(n)*region, "written")
		sideBySide(fmt.Sprintf("fdatasync 4KiB of one file, %d at once", n), n, func(i int) []time.Duration {
			b := make([]byte, block)
			var each []time.Duration
			off := int64(0)
			for end := time.Now().Add(length() / 2); time.Now().Before(end); off = (off + block) % region {
				t := time.Now()
				_, err := f.WriteAt(b, int64(i)*region+off)
				must(err)
				must(syscall.Fdatasync(int(f.Fd())))
				each = append(each, time.Since(t))
			}
			return each
		})
		remove(f)
	}
}

// writeThrough compares flags of open with a flush.
func writeThrough() {
	for _, how := range []struct {
		name  string
		flags int
	}{
		{"O_DSYNC", syscall.O_DSYNC}, {"O_DIRECT|O_DSYNC", syscall.O_DIRECT | syscall.O_DSYNC}, {"O_DIRECT+fdatasync", syscall.O_DIRECT},
	} {
		written := newFile("through", flushFile, "written")
		f, err := os.OpenFile(written.Name(), os.O_RDWR|how.flags, 0)
		must(err)
		b, err := syscall.Mmap(-1, 0, block, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE) // aligned
		must(err)
		var each []time.Duration
		start := time.Now()
		for off := int64(0); time.Since(start) < length()/2 && off < flushFile; off += block {
			t := time.Now()
			_, err := f.WriteAt(b, off)
			must(err)
			if how.name == "O_DIRECT+fdatasync" {
				must(syscall.Fdatasync(int(f.Fd())))
			}
			each = append(each, time.Since(t))
		}
		put(timed(how.name+" 4KiB written", block, 1, each, time.Since(start)))
		must(syscall.Munmap(b))
		must(f.Close())
		remove(written)
	}
}

func sequentialWrite() {
	for _, state := range []string{"growing", "keep-size"} {
		for _, size := range []int{64 << 10, 256 << 10, 1 << 20} {
			f := newFile("seq", *total, state)
			b := make([]byte, size)
			start := time.Now()
			for off := int64(0); off < *total; off += int64(size) {
				_, err := f.WriteAt(b, off)
				must(err)
			}
			put(bandwidth(fmt.Sprintf("write %dK %s", size>>10, state), size, *total, time.Since(start)))
			if size == 1<<20 {
				start = time.Now()
				must(syscall.Fdatasync(int(f.Fd())))
				put(bandwidth("flush of what was written, "+state, size, *total, time.Since(start)))
			}
			remove(f)
		}
	}
}

func writeAndFlush() {
	for _, size := range []int{64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20} {
		f := newFile("sync", *total, "keep-size")
		b := make([]byte, size)
		var each []time.Duration
		start := time.Now()
		for off := int64(0); off < *total && time.Since(start) < length(); off += int64(size) {
			t := time.Now()
			_, err := f.WriteAt(b, off)
			must(err)
			must(syscall.Fdatasync(int(f.Fd())))
			each = append(each, time.Since(t))
		}
		put(timed(fmt.Sprintf("write+fdatasync per %dK", size>>10), size, 1, each, time.Since(start)))
		remove(f)
	}
}

func readFile() {
	f := newFile("read", *total, "written")
	defer remove(f)
	read := func(name string, size int, each func([]byte)) {
		b := make([]byte, size)
		start := time.Now()
		for off := int64(0); off < *total; off += int64(size) {
			n, err := f.ReadAt(b, off)
			must(err)
			each(b[:n])
		}
		put(bandwidth(name, size, *total, time.Since(start)))
	}
	nothing := func([]byte) {}
	for _, size := range []int{4 << 10, 64 << 10, 256 << 10, 1 << 20} {
		read(fmt.Sprintf("read cached %dK", size>>10), size, nothing)
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	var sum uint32
	read("read cached 256K + crc32c", 256<<10, func(b []byte) { sum = crc32.Update(sum, table, b) })
	sink.Add(uint64(sum))
	for _, size := range []int{256 << 10, 1 << 20} {
		drop(f)
		read(fmt.Sprintf("read cold %dK", size>>10), size, nothing)
	}
}

func drop(f *os.File) {
	must(f.Sync()) // only clean pages can go
	_, _, errno := syscall.Syscall6(syscall.SYS_FADVISE64, f.Fd(), 0, 0, fadvDontNeed, 0, 0)
	if errno != 0 {
		must(errno)
	}
}

func dropCache(dir string) {
	must(filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		drop(f)
		return f.Close()
	}))
}

// neighbour writes at a rate and flushes ten times a second, in a file of bounded size.
func neighbour(megabytes int64, dur time.Duration) {
	const each, wrap = 100 * time.Millisecond, 1 << 30
	f := newFile("noise", 0, "growing")
	defer remove(f)
	b := make([]byte, megabytes*1_000_000/10)
	off := int64(0)
	for start, due := time.Now(), time.Duration(0); due < dur; due += each {
		time.Sleep(time.Until(start.Add(due)))
		_, err := f.WriteAt(b, off)
		must(err)
		must(f.Sync())
		if off += int64(len(b)); off > wrap {
			off = 0
		}
	}
}
