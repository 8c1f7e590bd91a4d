package main

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/ancestry/peac"
)

func TestRounds(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"-rounds", "4", "-callers", "8"}, &out, &errs); code != 0 {
		t.Fatalf("exit %d: %s", code, &errs)
	}
	if !strings.HasPrefix(out.String(), "4 rounds, ") || !strings.Contains(out.String(), " runs was read before a kill, ") || !strings.Contains(out.String(), "A start after a kill took ") {
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

// Each way in which evidence could be lost, made up or taken for more than it is, is
// noticed.
func TestCheckReceiptsNotices(t *testing.T) {
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	signer, err := peac.NewSigner(issuer, keyID, key)
	if err != nil {
		t.Fatal(err)
	}
	const workflow, other = "wf_0123456789-0123456789_", "wf_another-6789-0123456789"
	sign := func(workflow, step, id string) string {
		jws, err := signer.Sign(peac.Claims{
			Kind: peac.Evidence, Type: "dev.wopproxy/progress", IssuedAt: time.Now().Unix(), ID: id,
			Extensions: map[string]any{peac.WorkflowGroup: peac.WorkflowContext{WorkflowID: workflow, StepID: "step_0123456789-012345678" + step, ParentStepIDs: []string{}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return jws
	}
	whole := func(receipts ...string) peac.Bundle {
		var refs []string
		for _, jws := range receipts {
			refs = append(refs, peac.ReceiptRef(jws))
		}
		now := time.Now()
		summary, err := signer.Summarize(peac.SummaryEvidence{WorkflowID: workflow, Status: peac.InProgress, StartedAt: peac.FormatTime(now.Add(-time.Minute)), OrchestratorID: "ref:o"}, refs, now)
		if err != nil {
			t.Fatal(err)
		}
		return peac.Bundle{Format: peac.BundleFormat, Issuer: issuer, Receipts: receipts, Summary: summary}
	}
	part := func(receipts ...string) peac.Bundle {
		return peac.Bundle{Format: peac.BundleFormat, Issuer: issuer, Receipts: receipts}
	}
	one, two := sign(workflow, "a", "1"), sign(workflow, "b", "2")
	first := bundle{workflow: workflow, receipts: []string{one}}
	for _, c := range []struct {
		name    string
		quiet   peac.Bundle
		run     *peac.Bundle // nil: there is none
		before  bundle
		counted int
		fault   error
		want    string // of the error; empty: none
	}{
		{"all is well", whole(one), new(part(one)), first, 1, nil, ""},
		{"it was not read before", whole(one), new(part(one)), bundle{}, 1, nil, ""},
		{"there is none, and none was read", whole(one), nil, bundle{}, 0, nil, ""},
		{"it is gone", whole(one), nil, first, 0, nil, "had 1 receipts"},
		{"it is another", whole(one), new(part(sign(workflow, "a", "3"))), first, 0, nil, "had 1 receipts"},
		{"it is of another workflow", whole(one), new(part(sign(other, "a", "1"))), bundle{workflow: workflow}, 0, nil, "of \"" + other},
		{"it is said to be whole", whole(one), new(whole(one)), first, 1, nil, "is said to be whole"},
		{"a step is made up", whole(one), new(part(one, two)), first, 1, nil, "and has 2 steps"},
		{"one that nobody has read is gone", whole(one), new(part(one)), first, 2, nil, "2 receipts were counted"},
		{"it does not hold", whole(one), new(part(one + "A")), first, 1, nil, "does not hold"},
		{"it did not hold before", whole(one), new(part(one)), first, 1, errFalse, "does not hold"},
		{"what had ended is not whole", part(one), new(part(one)), first, 1, nil, "over for hours"},
		{"what had ended has lost something", whole(two), new(part(one)), first, 1, nil, "over for hours"},
	} {
		admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case strings.HasPrefix(r.URL.Path, "/ancestry/v1/traces/"):
				_, _ = io.WriteString(w, `{"runs":[{"runId":"run-1"}]}`)
			case strings.Contains(r.URL.Path, "quiet"):
				_ = json.NewEncoder(w).Encode(c.quiet)
			case c.run != nil && strings.Contains(r.URL.Path, "run-1"):
				_ = json.NewEncoder(w).Encode(c.run)
			default:
				http.NotFound(w, r)
			}
		}))
		k := killer{admin: admin.URL, records: records{
			keys:  peac.JWKS{Keys: []peac.JWK{peac.NewJWK(keyID, key.Public().(ed25519.PublicKey))}}.Of(issuer),
			quiet: bundle{workflow: "quiet", receipts: []string{one}},
		}}
		r := newRound(0, nil)
		r.counted, r.fault = c.counted, c.fault
		if c.before.workflow != "" {
			r.records["run-1"] = c.before
		}
		err := k.checkReceipts(t.Context(), r, true)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: checkReceipts = %v, want %q", c.name, err, c.want)
		}
		admin.Close()
	}
}
