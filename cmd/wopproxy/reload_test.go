package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/fsnotify/fsnotify"
)

// TestWatched pins which events in the directory of the configuration have it read
// again: a log that is written there must not, or each reload would cause the next.
func TestWatched(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, version := range []string{"..v1", "..v2"} {
		if err := os.Mkdir(in(version), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(in(version+"/wopproxy.yaml"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to, name string) {
		t.Helper()
		_ = os.Remove(in(name))
		if err := os.Symlink(to, in(name)); err != nil {
			t.Fatal(err)
		}
	}
	link("..v1", "..data")
	link("..data/wopproxy.yaml", "wopproxy.yaml")
	w := watch(dir + "/./wopproxy.yaml")
	expect := func(name string, op fsnotify.Op, want bool) {
		t.Helper()
		if got := w.concerns(fsnotify.Event{Name: in(name), Op: op}); got != want {
			t.Errorf("an event %v of %s concerns the configuration: %v, want %v", op, name, got, want)
		}
	}
	expect("wopproxy.log", fsnotify.Write, false)
	expect("wopproxy.yaml~", fsnotify.Create, false)
	expect("wopproxy.yaml", fsnotify.Chmod, false)
	expect("wopproxy.yaml", fsnotify.Write, true)
	expect("..data", fsnotify.Create, false) // it leads where it did
	link("..v2", "..data")
	expect("..data", fsnotify.Create, true)
	expect("..data", fsnotify.Create, false) // that has been seen
}
