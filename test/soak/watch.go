package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/wopproxy/wopproxy/test/internal/program"
)

// sample is what wopproxy holds at one moment.
type sample struct {
	at         time.Duration // since the beginning
	exchanges  int64
	rate       float64 // exchanges a second, since the sample before
	cpu        float64 // microseconds of an exchange, since then
	own        float64 // MiB resident that are of no file
	resident   float64 // MiB, pages of the store's files among them
	heap       float64 // MiB that Go has in use
	goroutines float64
	fds        float64
	runs       float64
	bindings   float64
	handoffs   float64
	tunnels    float64
	store      float64 // MiB
	files      float64 // of the store
	links      float64 // made so far
	seconds    float64 // of processor so far
	counted    float64 // exchanges, by wopproxy
	halves     int64   // requests that broke off, and may not have arrived at all
	refusals   float64 // bounds that were hit, and what else must not be
}

// columns are what is written down and drawn of a sample.
var columns = []struct {
	name, title, unit string
	of                func(*sample) *float64
	slack             float64 // by which it may grow besides a tenth; negative: it is not judged
	most              float64 // that it may come to, instead; 0: it may not grow
}{
	{"exchanges_per_second", "Exchanges", "a second", func(s *sample) *float64 { return &s.rate }, -1, 0},
	{"cpu_us", "Processor", "µs an exchange", func(s *sample) *float64 { return &s.cpu }, -1, 0},
	{"own_mib", "Memory of its own", "MiB", func(s *sample) *float64 { return &s.own }, 4, 0},
	{"resident_mib", "Memory with mapped pages of the store", "MiB", func(s *sample) *float64 { return &s.resident }, 48, 0},
	{"heap_mib", "Go heap in use", "MiB", func(s *sample) *float64 { return &s.heap }, 4, 0},
	{"goroutines", "Goroutines", "", func(s *sample) *float64 { return &s.goroutines }, 16, 0},
	{"descriptors", "Open descriptors", "", func(s *sample) *float64 { return &s.fds }, 16, 0},
	{"live_runs", "Live runs", "", func(s *sample) *float64 { return &s.runs }, 64, 0},
	{"bindings", "Bindings", "", func(s *sample) *float64 { return &s.bindings }, 64, 0},
	// A call that the host has left is open until there is one too many.
	{"open_handoffs", "Open handoffs", "", func(s *sample) *float64 { return &s.handoffs }, 0, keptHandoffs},
	{"store_mib", "Store on disk", "MiB", func(s *sample) *float64 { return &s.store }, 48, 0},
}

// look takes a sample.
func (s *stage) look(ctx context.Context) (sm sample, err error) {
	m, err := program.Metrics(ctx, s.at.Admin)
	if err != nil {
		return sm, err
	}
	const mib = 1 << 20
	sm = sample{
		exchanges: s.scores.exchanges.Load(), halves: s.scores.halves.Load(),
		heap:       m["go_memstats_heap_inuse_bytes"] / mib,
		goroutines: m["go_goroutines"], fds: m["process_open_fds"],
		runs: m["wopproxy_live_runs"], bindings: m["wopproxy_bindings"], handoffs: m["wopproxy_handoffs_open"], tunnels: m["wopproxy_tunnels"],
		links: m["wopproxy_store_links_total"], seconds: m["process_cpu_seconds_total"],
	}
	for name, v := range m {
		switch base, _, _ := strings.Cut(name, "{"); base {
		case "wopproxy_exchanges_total":
			sm.counted += v
		case "wopproxy_store_dropped_total", "wopproxy_codec_panics_total", "wopproxy_attribution_conflicts_total", "wopproxy_ambiguous_runs_total":
			sm.refusals += v
		}
	}
	if sm.own, sm.resident, err = memory(s.sidecar.PID()); err != nil {
		return sm, err
	}
	files, err := os.ReadDir(s.store())
	for _, f := range files {
		if info, err := f.Info(); err == nil { // or it has gone meanwhile
			sm.files++
			sm.store += float64(info.Size()) / mib
		}
	}
	return sm, err
}

// memory is what a process has resident, in MiB: of its own, and all.
func memory(pid int) (own, all float64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("this is measured on Linux alone: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		kb, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
		switch name {
		case "RssAnon":
			own = kb / 1024
		case "VmRSS":
			all = kb / 1024
		}
	}
	return own, all, nil
}

// settle waits until nothing is left of the traffic that was not there before. If it
// is quick, connections to peers may be: all those that were held to be used again,
// which wopproxy closes after a while, though the peers have.
func (s *stage) settle(ctx context.Context, before *sample) error {
	held := s.peers.rest()
	// Of each caller there may be one to each of the peers, made in either of the ways
	// in which wopproxy does.
	if most := 6*s.callers + few; held > most {
		return fmt.Errorf("wopproxy holds %d connections to peers, want no more than %d", held, most)
	}
	if !s.quick {
		held = 0
	}
	var sm sample
	for end := time.Now().Add(s.waits()); ; {
		var err error
		if sm, err = s.look(ctx); err != nil {
			return err
		}
		over := sm.left(before, held)
		if over == "" {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%v after the traffic there are %s%s", s.waits(), over, s.live(ctx))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// live tells of some of the runs that are live, to look for what began them.
func (s *stage) live(ctx context.Context) string {
	var some struct{ Runs []json.RawMessage }
	if err := program.GetJSON(ctx, "http://"+s.at.Admin+"/ancestry/v1/runs?limit=5", &some); err != nil {
		return ""
	}
	return fmt.Sprintf("; live: %s", some.Runs)
}

// few is what may be more than there was before.
const few = 6

// left says what is left of the traffic, or nothing.
func (sm sample) left(before *sample, held int) string {
	switch {
	case sm.counted > float64(sm.exchanges), sm.counted < float64(sm.exchanges-sm.halves):
		return fmt.Sprintf("%.0f exchanges counted by wopproxy, of %d", sm.counted, sm.exchanges)
	case sm.runs > 0:
		return fmt.Sprintf("%.0f live runs", sm.runs)
	case sm.bindings > 0:
		return fmt.Sprintf("%.0f bindings", sm.bindings)
	case sm.tunnels > 0:
		return fmt.Sprintf("%.0f tunnels", sm.tunnels)
	case before == nil:
		return ""
	case sm.goroutines > before.goroutines+few:
		return fmt.Sprintf("%.0f goroutines, and before it were %.0f", sm.goroutines, before.goroutines)
	case sm.fds > before.fds+float64(held)+max(0, sm.files-before.files)+few:
		return fmt.Sprintf("%.0f descriptors, and before it were %.0f", sm.fds, before.fds)
	}
	return ""
}
