package main

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// cores are the two processors that the work is divided between, so that no
// proxy is slower because the clients are fast. The zero value divides nothing.
type cores struct {
	taskset       string
	proxies, load string // numbers of processors
}

// findCores takes the first two processors that this process may use.
func findCores() (c cores, missing string) {
	taskset, err := exec.LookPath("taskset")
	if err != nil {
		return c, "taskset is not installed: proxies and clients share their processors"
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return c, err.Error()
	}
	_, list, _ := strings.Cut(string(status), "Cpus_allowed_list:")
	list, _, _ = strings.Cut(list, "\n")
	all := processors(strings.TrimSpace(list))
	if len(all) < 2 {
		return c, "there is one processor: proxies and clients share it"
	}
	return cores{taskset, strconv.Itoa(all[0]), strconv.Itoa(all[1])}, ""
}

// processors reads a list such as 0-3,6.
func processors(list string) (all []int) {
	for part := range strings.SplitSeq(list, ",") {
		first, last, found := strings.Cut(part, "-")
		from, err := strconv.Atoi(first)
		if err != nil {
			return all
		}
		to := from
		if found {
			if to, err = strconv.Atoi(last); err != nil {
				return all
			}
		}
		for i := from; i <= to; i++ {
			all = append(all, i)
		}
	}
	return all
}

// proxy returns argv with which a program runs on the processor of the proxies.
func (c cores) proxy(argv []string) []string {
	if c.taskset == "" {
		return argv
	}
	return append([]string{c.taskset, "-c", c.proxies}, argv...)
}

// withdraw leaves the processor of the proxies, all threads of this process at
// once: the kernel knows a process by its number.
func (c cores) withdraw() error {
	if c.taskset == "" {
		return nil
	}
	return exec.Command(c.taskset, "-a", "-c", "-p", c.load, strconv.Itoa(syscall.Getpid())).Run()
}
