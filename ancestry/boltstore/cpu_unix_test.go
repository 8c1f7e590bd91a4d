//go:build unix

package boltstore

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
)

// BenchmarkRecord measures links that are made durable one group after the
// other, with what the store does of them later: the time of each group, and of
// the processor for each link. TMPDIR says on which disk.
func BenchmarkRecord(b *testing.B) {
	for _, size := range []int{1, 8, 64} {
		b.Run(fmt.Sprint("group=", size), func(b *testing.B) {
			s := open(b, Options{})
			group := make([]ancestry.Link, size)
			n := 0
			began := cpuTime(b)
			for b.Loop() {
				for i := range group {
					group[i] = link(n)
					group[i].Run = ancestry.NewRunID(time.Now())
					n++
				}
				if err := s.Record(b.Context(), group); err != nil {
					b.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(cpuTime(b)-began)/float64(n), "cpu-ns/link")
		})
	}
}

// cpuTime is what this process has used so far.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
