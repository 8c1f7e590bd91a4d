package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestRounds(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"-rounds", "4", "-callers", "8"}, &out, &errs); code != 0 {
		t.Fatalf("exit %d: %s", code, &errs)
	}
	if !strings.HasPrefix(out.String(), "4 rounds, ") || !strings.Contains(out.String(), "A start after a kill took ") {
		t.Errorf("it says %s", &out)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"-rounds", "0"}, {"-callers", "-1"}, {"now"}, {"-gently"}} {
		if code := run(t.Context(), args, io.Discard, io.Discard); code != 2 {
			t.Errorf("%q: exit %d, want 2", args, code)
		}
	}
}

// Each way in which a store could break the promise is noticed.
func TestCheckNotices(t *testing.T) {
	stored := func(run, alias, parent, host string) string {
		return fmt.Sprintf(`{"runId":%q,"alias":%q,"chain":{"ancestors":[{"runId":%q,"hostId":%q}]}}`, run, alias, parent, host)
	}
	plain, task := stored("run-1", "", "p1", callerID), stored("run-2", "task-2", "p2", callerID)
	unseen := stored("run-3", "", "p3", callerID) // the caller had no answer
	for _, c := range []struct {
		name string
		runs []string
		lost string // what a look-up does not find
		want string // of the error; empty: none
	}{
		{"all is well", []string{plain, task}, "", ""},
		{"and one more had begun", []string{plain, task, unseen}, "", ""},
		{"one is missing", []string{plain}, "", "p2 began was answered"},
		{"one has lost its name", []string{plain, stored("run-2", "", "p2", callerID)}, "", "p2 began was answered"},
		{"one has another name", []string{plain, stored("run-2", "task-1", "p2", callerID)}, "", "a name that the host did not give"},
		{"one has another id", []string{stored("run-9", "", "p1", callerID), task}, "", "p1 began was answered"},
		{"one was not begun", []string{plain, task, stored("run-4", "", "p4", callerID)}, "", "nobody began"},
		{"one has a parent elsewhere", []string{plain, task, stored("run-3", "", "p3", "x.example.com")}, "", "nobody began"},
		{"one has no parent", []string{plain, task, `{"runId":"run-3","chain":{}}`}, "", "nobody began"},
		{"one is there twice", []string{plain, task, stored("run-5", "", "p1", callerID)}, "", "two runs"},
		{"one is listed, and can't be found", []string{plain, task}, "task-2", "404"},
	} {
		admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			id := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
			switch {
			case strings.HasPrefix(r.URL.Path, "/ancestry/v1/traces/"):
				fmt.Fprintf(w, `{"runs":[%s]}`, strings.Join(c.runs, ","))
			case id == c.lost:
				http.NotFound(w, r)
			case id == "run-1":
				io.WriteString(w, plain)
			default:
				io.WriteString(w, task)
			}
		}))
		k := killer{admin: admin.URL}
		r := newRound(0, &host{tasks: map[string]string{"p2": "task-2"}})
		r.begun = map[string]bool{"p1": true, "p2": true, "p3": true}
		r.answered = map[string]answer{"p1": {run: "run-1"}, "p2": {run: "run-2", task: "task-2"}}
		n, err := k.check(t.Context(), r)
		switch {
		case c.want == "" && (err != nil || n != len(c.runs)):
			t.Errorf("%s: check = %d, %v, want %d", c.name, n, err, len(c.runs))
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: check = %v, want %q", c.name, err, c.want)
		}
		admin.Close()
	}
}
