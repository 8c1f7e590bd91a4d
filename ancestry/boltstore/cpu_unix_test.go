//go:build unix

package boltstore

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/peac"
	"github.com/wopproxy/wopproxy/evidence"
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

// BenchmarkReceipts measures receipts from what was observed to what is on disk: each
// is of a run of its own, as a tool's calls are.
func BenchmarkReceipts(b *testing.B) {
	dir := b.TempDir()
	s := open(b, Options{Dir: dir})
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	rotation := peac.Rotation{KeyID: "2026-11", Public: key.Public().(ed25519.PublicKey)}
	m, err := evidence.New(evidence.Options{
		Issuer: "https://host.example.com", Host: "host.example.com", Store: s, Queue: 1 << 20,
		IDKey: []byte("0123456789abcdef0123456789abcdef"), Keys: []evidence.Key{{Rotation: rotation, Private: key}},
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	signed := make(chan struct{})
	go func() { defer close(signed); m.Run(ctx) }()
	began, n := cpuTime(b), 0
	var last *evidence.Run
	for b.Loop() {
		last = m.Open(ancestry.NewRunID(time.Now()), evidence.Origin{})
		m.End(m.Arrive(last, evidence.Place{}, time.Now()), evidence.Observed{
			Direction: evidence.Ingress, Protocol: evidence.MCP, Method: "tools/call", Outcome: evidence.OK, Status: 200,
			Trace: ancestry.TraceID{1}, Span: ancestry.SpanID{2}, Caller: "planner.example.com", Evidence: ancestry.EvidenceRunAncestry, Ended: time.Now(),
		})
		n++
	}
	stop()
	<-signed
	took := cpuTime(b) - began
	stored, _, err := s.Receipts(b.Context(), last.Workflow, "", 1)
	if err != nil || len(stored) != 1 {
		b.Fatal(len(stored), err)
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	var size int64
	files, err := os.ReadDir(dir)
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			b.Fatal(err)
		}
		size += info.Size()
	}
	b.ReportMetric(float64(took)/float64(n), "cpu-ns/receipt")
	b.ReportMetric(float64(len(stored[0].JWS)), "B/receipt")
	b.ReportMetric(float64(size)/float64(n), "disk-B/receipt")
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
