package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/wopproxy/wopproxy/test/internal/program"
)

// usage is what a process has used of the processor, in nanoseconds, by thread.
// Of a thread that ends while it is measured the last piece is lost, but those of
// the programs measured here don't.
type usage map[string]int64

// family returns a process and all those below it.
func family(pid int) ([]int, error) {
	all := []int{pid}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(all); i++ {
		for _, e := range entries {
			id, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
			if err != nil {
				continue // it has ended
			}
			// pid (name, in which anything may stand) state parent
			rest := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
			if len(rest) > 1 && rest[1] == strconv.Itoa(all[i]) {
				all = append(all, id)
			}
		}
	}
	return all, nil
}

// cpu adds up what processes have used so far.
func cpu(pids []int) (usage, error) {
	u := usage{}
	for _, pid := range pids {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		if err != nil {
			return nil, err
		}
		if len(threads) == 0 {
			return nil, fmt.Errorf("process %d has ended, or its kernel does not tell what it uses (/proc/PID/task/*/schedstat)", pid)
		}
		for _, file := range threads {
			text, err := os.ReadFile(file)
			if err != nil {
				continue // the thread has ended
			}
			first, _, _ := strings.Cut(string(text), " ")
			if u[file], err = strconv.ParseInt(first, 10, 64); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	return u, nil
}

// since returns what was used after before.
func (u usage) since(before usage) (d time.Duration) {
	for thread, n := range u {
		d += time.Duration(n - before[thread])
	}
	return d
}

// resident is the memory of processes, in bytes.
func resident(pids []int) (n int64, err error) {
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		if err != nil {
			return 0, err
		}
		fields := strings.Fields(string(text))
		pages, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return 0, err
		}
		n += pages * int64(os.Getpagesize())
	}
	return n, nil
}

// rest looks at a contender that has nothing to do.
func (c *contender) rest(ctx context.Context) error {
	if c.process == nil {
		return nil
	}
	pids, err := family(c.process.PID())
	if err != nil {
		return err
	}
	if c.idle, err = resident(pids); err != nil {
		return err
	}
	// The first of three is for what is made once.
	var told [3]float64
	for i := range told {
		if told[i], err = c.allocations(ctx); err != nil {
			return err
		}
	}
	c.scrape = told[2] - told[1]
	return nil
}

// used is what a contender and all below it have used; nil if it is no process.
func (c *contender) used() ([]int, usage, error) {
	if c.process == nil {
		return nil, nil, nil
	}
	pids, err := family(c.process.PID())
	if err != nil {
		return nil, nil, err
	}
	u, err := cpu(pids)
	return pids, u, err
}

// allocations is how many a contender has made so far; 0 if it does not tell.
func (c *contender) allocations(ctx context.Context) (float64, error) {
	if c.admin == "" {
		return 0, nil
	}
	m, err := program.Metrics(ctx, c.admin)
	if err == nil && m[mallocs] == 0 {
		err = fmt.Errorf("%s does not tell %s", c.name, mallocs)
	}
	return m[mallocs], err
}

// mallocs is the metric that counts allocations.
const mallocs = "go_memstats_mallocs_total"
