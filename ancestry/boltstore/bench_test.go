package boltstore

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
)

// BenchmarkRecorder measures links that are acknowledged, with as many callers
// waiting for their own at a time.
func BenchmarkRecorder(b *testing.B) {
	for _, waiting := range []int{1, 64, 512} {
		b.Run(fmt.Sprint("waiting=", waiting), func(b *testing.B) {
			s := open(b, Options{})
			r := ancestry.NewRecorder(s, ancestry.RecorderOptions{})
			ctx, stop := context.WithCancel(b.Context())
			stopped := make(chan struct{})
			go func() { defer close(stopped); r.Run(ctx) }()
			var n atomic.Int64
			b.SetParallelism(waiting) // times GOMAXPROCS
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					l := link(int(n.Add(1)))
					l.Run = ancestry.NewRunID(time.Now())
					if err := r.Record(l).Wait(ctx); err != nil {
						b.Error(err)
					}
				}
			})
			b.StopTimer()
			stop()
			<-stopped
		})
	}
}

// BenchmarkRecordBatch measures the work on a link alone: groups of 1024.
func BenchmarkRecordBatch(b *testing.B) {
	const size = 1024
	s := open(b, Options{})
	batch := make([]ancestry.Link, size)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		for i := range batch {
			batch[i] = link(n)
			n++
		}
		if err := s.Record(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/link")
}

// BenchmarkLookup looks through thirty windows of 5000 links.
func BenchmarkLookup(b *testing.B) {
	const windows, each = 30, 5000
	c := newClock()
	s := open(b, Options{Now: c.now})
	for w := range windows {
		batch := make([]ancestry.Link, each)
		for i := range batch {
			batch[i] = link(w*each + i)
		}
		if err := s.Record(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
		c.add(24 * time.Hour)
	}
	for _, bench := range []struct {
		name string
		id   func(i int) ancestry.RunID
	}{
		{"newest window", func(i int) ancestry.RunID { return link((windows-1)*each + i%each).Run }},
		{"newest window by alias", func(i int) ancestry.RunID { return link((windows-1)*each + i%each).Alias }},
		{"any window", func(i int) ancestry.RunID { return link(i * 7919 % (windows * each)).Run }},
		{"unknown", func(i int) ancestry.RunID { return link(windows*each + i).Run }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				_, _ = s.Lookup(b.Context(), bench.id(i))
				i++
			}
		})
	}
}

func BenchmarkEncodeLink(b *testing.B) {
	l := link(1)
	b.ReportAllocs()
	for b.Loop() {
		encodeLink(l)
	}
}

func BenchmarkDecodeLink(b *testing.B) {
	l := link(1)
	record := encodeLink(l)
	b.ReportMetric(float64(len(record)), "B/record")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decodeLink(l.Key(), record); err != nil {
			b.Fatal(err)
		}
	}
}
