package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestFullDisk fills the disk of the store under a program at work. Its traffic
// goes on, it says that links can't be stored, and once there is room it stores
// them all, without a restart.
func TestFullDisk(t *testing.T) {
	dir := smallDisk(t)
	s := startOn(t, filepath.Join(dir, "store"))
	ballast := filepath.Join(dir, "ballast")
	troubled(t, s,
		func() { fill(t, ballast) },
		func() {
			if err := os.Remove(ballast); err != nil {
				t.Error(err)
			}
		})
}

// TestDiskRefuses has the disk of the store refuse every write to its files, as
// one does that was mounted read-only after a fault.
func TestDiskRefuses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	probe := filepath.Join(t.TempDir(), "probe")
	if err := os.WriteFile(probe, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	immutable := func(how string, files ...string) error {
		out, err := exec.Command("chattr", append([]string{how}, files...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	if err := errors.Join(immutable("+i", probe), immutable("-i", probe)); err != nil {
		t.Skip("files can't be made immutable here: ", err)
	}
	s := startOn(t, dir)
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = immutable("-i", files...) }) // or the folder could not be removed
	change := func(how string) func() {
		return func() {
			t.Helper()
			if err := immutable(how, files...); err != nil {
				t.Error(err)
			}
		}
	}
	troubled(t, s, change("+i"), change("-i"))
}

// TestReadOnlyDisk starts the program on a disk that can only be read.
func TestReadOnlyDisk(t *testing.T) {
	dir := smallDisk(t)
	store := filepath.Join(dir, "store")
	values := plainSettings(t, settings{"ancestry.store.bolt.dir": store})
	readOnly := func(flags uintptr) {
		t.Helper()
		if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	readOnly(syscall.MS_RDONLY)
	refuses(t, "serve", values, store, "read-only file system", "ancestry.store.bolt.dir")
	readOnly(0)
	s := startOn(t, store)
	run := begin(t, s, "before", http.StatusOK)
	s.end(t, s.process)
	readOnly(syscall.MS_RDONLY)
	refuses(t, "serve", values, store, "read-only file system", "ancestry.store.bolt.dir")
	readOnly(0)
	s.serve(t, nil, s.file)
	if p := s.parent(t, run); p.RunID != "before" {
		t.Errorf("parent of a run from before = %+v", p)
	}
}

// startOn starts a program with its store in dir, which lets no answer wait long.
func startOn(t *testing.T, dir string) *sidecar {
	t.Helper()
	return start(t, "host.example.com", idleHost(t), settings{"ancestry.store.bolt.dir": dir, "ancestry.commitTimeout": "50ms"})
}

// troubled sends runs before, while and after the disk is in trouble.
func troubled(t *testing.T, s *sidecar, begins, ends func()) {
	t.Helper()
	runs := map[string]string{} // and their parents
	add := func() {
		t.Helper()
		parent := "run-" + randomHex(8)
		runs[begin(t, s, parent, http.StatusOK)] = parent
	}
	ready := func() string {
		t.Helper()
		code, body := get(t, s.admin+"/readyz")
		if code != http.StatusOK {
			t.Errorf("readyz = %d %s: taking the host out of service would harm its traffic", code, body)
		}
		return string(body)
	}
	add()
	if got := ready(); got != "ok\n" {
		t.Errorf("readyz before = %q", got)
	}
	begins()
	for n := 0; !strings.HasPrefix(ready(), "degraded"); n++ {
		if n == 2000 {
			t.Fatal("it takes links, and the disk none")
		}
		add() // what the file has room for is still stored
	}
	add()
	if s.metric(t, "wopproxy_store_degraded") != 1 || s.metric(t, "wopproxy_store_commits_total", `outcome="error"`) == 0 {
		t.Error("the metrics say nothing")
	}
	for run, parent := range runs { // what waits can be read
		if got := s.parent(t, run).RunID; got != parent {
			t.Errorf("meanwhile: parent of %s = %s, want %s", run, got, parent)
		}
	}
	ends()
	eventually(t, "readyz is ok again", func() bool { return ready() == "ok\n" })
	add()
	if n := s.metric(t, "wopproxy_store_dropped_total"); n != 0 {
		t.Errorf("%v links were lost", n)
	}
	s.signal(t, os.Kill) // what it holds in memory does not count
	s.wait(t)
	s.serve(t, nil, s.file)
	for run, parent := range runs {
		if got := s.parent(t, run).RunID; got != parent {
			t.Errorf("afterwards: parent of %s = %s, want %s", run, got, parent)
		}
	}
}

// smallDisk mounts a disk of a few megabytes, until t ends.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=3m"); err != nil {
		t.Skip("a disk of a size can't be mounted here: ", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill writes to path until the disk has no room.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4<<10))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}
