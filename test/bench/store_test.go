package main

import (
	"bytes"
	"errors"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
)

func TestStoreBench(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("what a process has mapped is read in /proc")
	}
	b := &storeBench{kinds: []idKind{ulids, uuids}, sizes: []int{0, 3000}, written: 2048, reading: 100 * time.Millisecond}
	var out, progress bytes.Buffer
	if err := b.run(t.Context(), options{}, &out, &progress); err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	t.Logf("\n%s", &out)
	number := `\d+(\.\d+)?`
	pair := number + ", " + number
	row := strings.Join([]string{
		"", "(ULID|UUID)", "(0|3000)", number, number, pair, number, pair, pair, pair, number, number, pair, "(–|" + number + ")", "",
	}, ` *\| *`)
	if n := len(regexp.MustCompile("(?m)^"+row+"$").FindAllString(out.String(), -1)); n != 4 {
		t.Errorf("%d rows, want 4:\n%s", n, &out)
	}
	if n := strings.Count(out.String(), "Forgetting "); n != 2 {
		t.Errorf("%d lines about forgetting, want 2:\n%s", n, &out)
	}
}

// What the store is filled with is what its figures are about.
func TestStoreLinks(t *testing.T) {
	for _, ids := range []idKind{ulids, uuids} {
		l, again, other := links{ids: ids}, links{ids: ids}, links{ids: ids, salt: 1}
		seen := map[ancestry.RunID]bool{}
		for i := range 1000 {
			link := l.link(i)
			if err := link.Validate(); err != nil {
				t.Fatal(err)
			}
			if seen[link.Run] || seen[other.run(i)] {
				t.Errorf("%s %d comes twice", ids, i)
			}
			seen[link.Run], seen[other.run(i)] = true, true
			if again.run(i) != link.Run || link.Parent().Run != l.parent(i/siblings*siblings) {
				t.Errorf("%s %d can't be made again", ids, i)
			}
			if _, err := ancestry.ParseRunID(string(link.Run)); err != nil {
				t.Error(err)
			}
			if ids == ulids && i > 0 && l.run(i-1) >= link.Run {
				t.Errorf("%s does not ascend to %s", l.run(i-1), link.Run)
			}
		}
	}
}

func TestStoreBenchRefuses(t *testing.T) {
	var stderr bytes.Buffer
	if _, err := parse([]string{"-store", "-links", "10"}, &stderr); !errors.Is(err, errUsage) || !strings.Contains(stderr.String(), "at least 1000") {
		t.Errorf("parse = %v, %s", err, &stderr)
	}
	b := newStoreBench(1<<50, false)
	if err := b.run(t.Context(), options{}, &stderr, &stderr); err == nil || !strings.Contains(err.Error(), "fewer -links") {
		t.Errorf("a store larger than the disk: %v", err)
	}
}
