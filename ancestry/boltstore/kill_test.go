package boltstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
)

// The variables that turn the test binary into a writer that is to be killed.
const (
	envKillDir   = "BOLTSTORE_TEST_KILL_DIR"
	envKillRound = "BOLTSTORE_TEST_KILL_ROUND"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(envKillDir); dir != "" {
		round, err := strconv.Atoi(os.Getenv(envKillRound))
		if err == nil {
			err = writeForEver(dir, round)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// writeForEver records links of one round in groups of three, starts a window
// every few groups, and prints the number of each link once it is durable. The
// journal is so short that it is applied all the time.
func writeForEver(dir string, round int) error {
	var now atomic.Int64 // links are applied on the side
	now.Store(time.Date(2026, 1, 1+round, 0, 0, 0, 0, time.UTC).UnixNano())
	s, err := Open(Options{
		Dir: dir, Window: time.Hour, Journal: 4 << 10, Delay: 5 * time.Millisecond,
		Now: func() time.Time { return time.Unix(0, now.Load()) },
	})
	if err != nil {
		return err
	}
	for i := round * roundSize; ; i += 3 {
		if i%12 == 0 {
			now.Add(int64(10 * time.Minute))
		}
		if err := s.Record(context.Background(), []ancestry.Link{link(i), link(i + 1), link(i + 2)}); err != nil {
			return err
		}
		fmt.Println(i)
	}
}

// roundSize keeps the links of rounds apart.
const roundSize = 1_000_000

// TestKill kills a writer at random moments, again and again, on one directory.
// What it has acknowledged is there each time; of what it had in hand, all or
// nothing.
func TestKill(t *testing.T) {
	rounds := 50
	if testing.Short() {
		rounds = 5
	}
	dir := t.TempDir()
	last := map[int]int{} // round → first link of its last acknowledged group
	for round := range rounds {
		if n, ok := killWriter(t, dir, round); ok {
			last[round] = n
		}
		s, err := Open(Options{Dir: dir})
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		checkRound(t, s, round, last)
		closeChecked(t, s)
	}
	if len(last) < rounds/2 {
		t.Errorf("only %d of %d writers got as far as a commit", len(last), rounds)
	}
	s := open(t, Options{Dir: dir})
	for round := range last {
		checkRound(t, s, round, last)
	}
}

// killWriter starts a writer, kills it, and returns the last link it printed.
func killWriter(t *testing.T, dir string, round int) (last int, ok bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envKillDir+"="+dir, envKillRound+"="+strconv.Itoa(round))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// In its first moments, as it creates files, or in the middle of its work.
	kill := time.NewTimer(time.Hour)
	defer kill.Stop()
	soon := func() { kill.Reset(time.Duration(rand.Int64N(int64(150 * time.Millisecond)))) }
	if round%2 == 0 {
		soon()
	}
	read := make(chan struct{})
	defer close(read)
	go func() {
		select {
		case <-kill.C:
			_ = cmd.Process.Kill()
		case <-read:
		}
	}()
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			break // a line that was cut was not acknowledged
		}
		if err != nil {
			t.Fatal(err)
		}
		if last, err = strconv.Atoi(strings.TrimSpace(line)); err != nil {
			t.Fatal(err)
		}
		if !ok && round%2 == 1 {
			soon()
		}
		ok = true
	}
	_ = cmd.Wait() // killed
	if stderr.Len() > 0 {
		t.Errorf("round %d: writer says %s", round, &stderr)
	}
	return last, ok
}

// checkRound checks that the acknowledged links of a round are there as they
// were made, and nothing after the group that may have been in hand.
func checkRound(t *testing.T, s *Store, round int, last map[int]int) {
	t.Helper()
	next := round * roundSize
	if n, ok := last[round]; ok {
		next = n + 3
	}
	for i := round * roundSize; i < next; i++ {
		want := link(i)
		for _, id := range []ancestry.RunID{want.Run, want.Alias} {
			got, err := s.Lookup(t.Context(), id)
			if err != nil || got.Alias != want.Alias || *got.Parent() != *want.Parent() || got.Trace != want.Trace {
				t.Fatalf("round %d: Lookup(%q) = %+v, %v, want %+v", round, id, got, err, want)
			}
		}
	}
	_, err := s.Lookup(t.Context(), link(next).Run)
	for i := next + 1; i < next+3; i++ {
		if _, e := s.Lookup(t.Context(), link(i).Run); (e == nil) != (err == nil) {
			t.Errorf("round %d: half of the group at %d was stored", round, next)
		}
	}
	wantFound(t, s, false, link(next+3).Run, link(next+3).Alias)
}
