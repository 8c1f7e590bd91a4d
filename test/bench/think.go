package main

import (
	"cmp"
	"fmt"
	"strconv"
	"time"
)

// A host that thinks is where an answer that waits for its link costs least: the
// link is durable by the time at which the host has done.
const (
	thinkRate = 200 // exchanges a second
	thinkFor  = 3 * time.Second
	thinkMost = 100 * time.Millisecond // more would need more connections
	thinkWho  = "direct,reverseproxy,ingress"
	thinkWhat = "mcp1k,a2a"
)

// checkThink reports what is wrong with -think, and chooses what is measured with
// it unless that was said.
func (o *options) checkThink(only, cases, connections *string) error {
	switch {
	case o.think == 0:
		return nil
	case o.think < 0 || o.think > thinkMost:
		return fmt.Errorf("-think %v: want at most %v", o.think, thinkMost)
	}
	*only, *cases = cmp.Or(*only, thinkWho), cmp.Or(*cases, thinkWhat)
	*connections, o.paced = strconv.Itoa(o.latencyAt), thinkFor
	return nil
}

// ponder measures how long exchanges take of which the upstream thinks about each.
func (s *stage) ponder(t *table, c *contender, k traffic, all crowd, round int) error {
	kind := s.upstream.kinds[k.path]
	seen, before := kind.tell(), all.done()
	took, err := all.paced(thinkRate, s.paced)
	if err != nil {
		return err
	}
	t.thoughts[round][place{c, k.name, len(all)}] = delay{quantile(took, 0.5), quantile(took, 0.99)}
	return kind.tell().minus(seen).check(c, k, all.done()-before)
}

// pondered is how long exchanges took of which the upstream thought about each,
// and how much longer than without a proxy in the same round.
func (t *table) pondered() [][]string {
	heading := []string{fmt.Sprintf("host thinks %v, %d/s", t.think, thinkRate)}
	for _, k := range t.kinds {
		heading = append(heading, k.title+": p50, p99, ms", "added p50, p99, µs")
	}
	lines := [][]string{heading}
	for _, c := range t.rows {
		line := []string{c.title}
		for _, k := range t.kinds {
			p50, more50 := t.thought(c, k, func(d delay) time.Duration { return d.p50 })
			p99, more99 := t.thought(c, k, func(d delay) time.Duration { return d.p99 })
			line = append(line, millisOf(p50)+", "+millisOf(p99), whole(more50)+", "+whole(more99))
		}
		lines = append(lines, line)
	}
	return lines
}

// thought returns one figure of each round, and how much more it is than
// without a proxy, in microseconds.
func (t *table) thought(c *contender, k traffic, of func(delay) time.Duration) (all, more []float64) {
	base := t.named(c.nothing())
	for _, round := range t.thoughts {
		own, measured := round[place{c, k.name, t.latencyAt}]
		if !measured {
			continue
		}
		all = append(all, float64(of(own))/1e6)
		if other, ok := round[place{base, k.name, t.latencyAt}]; ok {
			more = append(more, float64(of(own)-of(other))/1e3)
		}
	}
	return all, more
}

func millisOf(all []float64) string {
	if len(all) == 0 {
		return "–"
	}
	return strconv.FormatFloat(median(all), 'f', 2, 64)
}
