package main

import (
	"testing"
	"testing/fstest"
)

func TestLimits(t *testing.T) {
	const mib = 1 << 20
	for _, row := range []struct {
		name   string
		files  map[string]string
		want   limits
		procs  int
		memory int64
	}{
		{"nothing to read", nil, limits{}, 0, 0},
		{"no limit", map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n", "sys/fs/cgroup/memory.max": "max\n",
		}, limits{}, 0, 0},
		{"one CPU", map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "100000 100000\n", "sys/fs/cgroup/memory.max": "67108864\n",
		}, limits{1, 64 * mib}, 1, 60397974},
		{"half a CPU", map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n",
		}, limits{0.5, 0}, 1, 0},
		{"more than one, which is Go's to round", map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n",
		}, limits{1.5, 0}, 0, 0},
		{"a group around it is tighter", map[string]string{
			"proc/self/cgroup": "0::/pod/sidecar\n", "sys/fs/cgroup/pod/cpu.max": "100000 100000\n", "sys/fs/cgroup/pod/sidecar/cpu.max": "200000 100000\n",
			"sys/fs/cgroup/pod/memory.max": "max\n", "sys/fs/cgroup/pod/sidecar/memory.max": "10485760\n",
		}, limits{1, 10 * mib}, 1, 9 * mib},
		{"version 1", map[string]string{
			"proc/self/cgroup":                            "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n1:name=systemd:/docker/x\n",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us":  "100000\n", // a container sees its own group at the top
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":  "10485760\n",
		}, limits{1, 10 * mib}, 1, 9 * mib},
		{"version 1 without limits", map[string]string{
			"proc/self/cgroup":                            "4:memory:/\n3:cpu,cpuacct:/\n",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us":  "-1\n",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":  "9223372036854771712\n",
		}, limits{}, 0, 0},
		{"nonsense", map[string]string{
			"proc/self/cgroup": "0::/\nx\n::\n", "sys/fs/cgroup/cpu.max": "1 0", "sys/fs/cgroup/memory.max": "much",
		}, limits{}, 0, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			root := fstest.MapFS{}
			for name, text := range row.files {
				root[name] = &fstest.MapFile{Data: []byte(text)}
			}
			got := readLimits(root)
			if got != row.want {
				t.Errorf("readLimits = %+v, want %+v", got, row.want)
			}
			none := func(string) (string, bool) { return "", false }
			if procs, memory := choose(got, none); procs != row.procs || memory != row.memory {
				t.Errorf("choose = %d, %d, want %d, %d", procs, memory, row.procs, row.memory)
			}
			said := func(string) (string, bool) { return "2", true }
			if procs, memory := choose(got, said); procs != 0 || memory != 0 {
				t.Errorf("over what the environment says, choose = %d, %d", procs, memory)
			}
		})
	}
}
