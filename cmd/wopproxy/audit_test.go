package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Three events of a run that carries a decision under a floor of 0.7 out.
const underFloor = `[
{"eventId":"e0","runId":"r1","type":"run.started","sequence":0,"payload":{}},
{"eventId":"e1","runId":"r1","type":"orchestrator.decided","sequence":1,"payload":{"agentId":"a.b","decision":{"kind":"next-worker","nextWorkerIds":["w"],"confidence":0.6}}},
{"eventId":"e2","runId":"r1","type":"workflow-chain.event","sequence":2,"causationId":"e1","payload":{"phase":"dispatch.began","workerId":"w","parentRunId":"r1"}}]`

// TestAudit reads logs from files and hosts; what the host advertises decides.
func TestAudit(t *testing.T) {
	floor := `{"multiAgent":{"executionModel":{"version":2,"confidenceEscalationFloor":0.7}}}`
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/.well-known/openwop":
			fmt.Fprint(w, floor)
		case r.Header.Get("Authorization") != "Bearer sesame":
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/runs/r1/events/poll":
			fmt.Fprintf(w, `{"events":%s,"isTerminal":false}`, underFloor)
		case r.URL.Path == "/moved":
			http.Redirect(w, r, "/runs/r1/events/poll", http.StatusFound)
		}
	}))
	defer host.Close()
	write := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	log, token, strict := write("log.json", underFloor), write("token", "sesame\n"), write("discovery.json", floor)
	poll := host.URL + "/runs/r1/events/poll"
	finding := `r1 #2 confidence-skipped: decision e1 has confidence 0.6, under the floor 0.7, and was not escalated`
	for _, tt := range []struct {
		name           string
		args           []string
		code           int
		stdout, stderr string
	}{
		{"file, discovery unknown", []string{log}, 0, "3 events, 0 findings", ""},
		{"file", []string{log, "-discovery", strict}, 1, finding + "\n3 events, 1 findings", "breaks rules"},
		{"file, discovery from the host", []string{log, "-discovery", host.URL + "/.well-known/openwop"}, 1, finding, ""},
		{"host", []string{poll, "-bearer-file", token}, 1, finding, ""},
		{"JSON", []string{log, "-discovery", strict, "-json"}, 1, `{"rule":"confidence-skipped","runId":"r1","eventId":"e2","sequence":2,`, ""},
		{"host without a token", []string{poll}, 1, "", "401"},
		{"a redirect", []string{host.URL + "/moved", "-bearer-file", token}, 1, "", "302"},
		{"host that is down", []string{"http://127.0.0.1:1/log"}, 1, "", "what the host advertises is not known"},
		{"no such file", []string{log + "x"}, 1, "", "no such file"},
		{"no such discovery", []string{log, "-discovery", log + "x"}, 1, "", "-discovery: open"},
		{"no log", []string{write("page", "<html>")}, 1, "", "neither JSON nor an event stream"},
		{"no events", []string{write("x.json", `{"x":1}`)}, 1, "", "holds no event"},
		{"events that are none", []string{write("y.json", underFloor+"\n[1]")}, 0, "3 events", `skipped: line 5: "1"`},
		{"cut in half", []string{write("half.json", underFloor[:len(underFloor)-40]), "-discovery", strict}, 0, "2 events, 0 findings", "skipped: line 4: "},
		{"ids that collide", []string{write("twice.json", strings.ReplaceAll(underFloor, `"e2"`, `"e0"`)), "-discovery", strict}, 0, "2 events, 0 findings", "has the id of another, at 0"},
		{"nothing", nil, 2, "", "0 operands given, want 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), append([]string{"audit"}, tt.args...), &stdout, &stderr)
			if code != tt.code || !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) {
				t.Errorf("audit %q = %d, want %d\nstdout: %s\nstderr: %s", tt.args, code, tt.code, &stdout, &stderr)
			}
		})
	}
}
