package main

import (
	"cmp"
	"io/fs"
	"path"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

// limits are what the machine, or the container, admits; 0: no limit.
type limits struct {
	cpus   float64
	memory int64 // bytes
}

// fit makes the Go runtime keep to the limits of the control group that the process
// is in, and returns what it has chosen, for the log. What the environment says
// stands.
//
// Go itself never goes below two threads for a limit of CPU. Of a limit of one CPU
// a second one makes 20 to 45 % more use for the same traffic.
func fit(root fs.FS, env lookupEnv) []any {
	procs, memory := choose(readLimits(root), env)
	var chosen []any
	if procs > 0 {
		runtime.GOMAXPROCS(procs)
		chosen = append(chosen, "GOMAXPROCS", procs)
	}
	if memory > 0 {
		debug.SetMemoryLimit(memory)
		chosen = append(chosen, "GOMEMLIMIT", memory)
	}
	return chosen
}

// choose says what to set; 0: nothing. A tenth of the memory is for what Go does
// not count, the pages of the store above all.
func choose(l limits, env lookupEnv) (procs int, memory int64) {
	set := func(name string) bool {
		v, _ := env(name)
		return v != ""
	}
	if l.cpus > 0 && l.cpus <= 1 && !set("GOMAXPROCS") {
		procs = 1
	}
	if l.memory > 0 && !set("GOMEMLIMIT") {
		memory = l.memory / 10 * 9
	}
	return procs, memory
}

// readLimits reads the limits of this process's control group and of those around
// it, of either version. What can't be read does not limit.
func readLimits(root fs.FS) limits {
	var l limits
	for line := range strings.Lines(read(root, "proc/self/cgroup")) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		controllers := strings.Split(parts[1], ",")
		switch {
		case parts[1] == "":
			for dir := range around("sys/fs/cgroup", parts[2]) {
				quota, period, _ := strings.Cut(read(root, dir+"/cpu.max"), " ")
				l.admit(limits{share(quota, period), number(read(root, dir+"/memory.max"))})
			}
		case slices.Contains(controllers, "cpu"):
			for dir := range around("sys/fs/cgroup/"+parts[1], parts[2]) {
				l.admit(limits{cpus: share(read(root, dir+"/cpu.cfs_quota_us"), read(root, dir+"/cpu.cfs_period_us"))})
			}
		case slices.Contains(controllers, "memory"):
			for dir := range around("sys/fs/cgroup/"+parts[1], parts[2]) {
				l.admit(limits{memory: number(read(root, dir+"/memory.limit_in_bytes"))})
			}
		}
	}
	return l
}

// around yields the directories of a group and of all around it. In a container
// that sees no more than its own, the last of them is that.
func around(mount, group string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for group = path.Clean("/" + group); ; group = path.Dir(group) {
			if !yield(path.Join(mount, group)) || group == "/" {
				return
			}
		}
	}
}

// admit takes what is tighter of two limits.
func (l *limits) admit(other limits) {
	l.cpus = tighter(l.cpus, other.cpus)
	l.memory = tighter(l.memory, other.memory)
}

func tighter[T cmp.Ordered](a, b T) T {
	var none T
	if a == none || b != none && b < a {
		return b
	}
	return a
}

// share is how many CPUs a quota is; 0: there is none.
func share(quota, period string) float64 {
	q, p := number(quota), number(period)
	if q <= 0 || p <= 0 {
		return 0
	}
	return float64(q) / float64(p)
}

// unlimited is more than any machine has: version 1 says so for no limit.
const unlimited = 1 << 60

// number reads what a file says; 0 for "max", and for anything else that is none.
func number(s string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil || n < 0 || n >= unlimited {
		return 0
	}
	return n
}

func read(root fs.FS, name string) string {
	b, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	return string(b)
}
