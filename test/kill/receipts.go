package main

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/boltstore"
	"github.com/wopproxy/wopproxy/ancestry/peac"
	"github.com/wopproxy/wopproxy/evidence"
	"github.com/wopproxy/wopproxy/test/internal/program"
)

// hostID is the host behind the sidecar, and issuer who signs its evidence.
const (
	hostID = "host.example.com"
	issuer = "https://" + hostID
	keyID  = "2026-11"
)

// records are the evidence that the sidecar makes, as a verifier sees it.
type records struct {
	keys  peac.KeySource
	quiet bundle // of a workflow that had ended long before the first start
}

// bundle is what is there of one workflow: its receipts, in any order.
type bundle struct {
	workflow string
	receipts []string
	summary  bool
	steps    int
}

// sign makes the keys of the issuer, and has a workflow in the store that came to
// rest hours ago. It returns the lines of the configuration.
func (k *killer) sign(ctx context.Context) (lines string, err error) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return "", err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return "", err
	}
	idKey := []byte("32 bytes that ids are made with.")
	key, secret := filepath.Join(k.dir, "key.pem"), filepath.Join(k.dir, "secret")
	err = errors.Join(
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600),
		os.WriteFile(secret, []byte(hex.EncodeToString(idKey)), 0o600),
	)
	if err != nil {
		return "", err
	}
	k.records.keys = peac.JWKS{Keys: []peac.JWK{peac.NewJWK(keyID, public)}}.Of(issuer)
	store, err := boltstore.Open(boltstore.Options{Dir: k.store()})
	if err != nil {
		return "", err
	}
	err = k.endLongAgo(ctx, evidence.Options{
		Issuer: issuer, Host: hostID, IDKey: idKey, Store: store,
		Keys: []evidence.Key{{Rotation: peac.Rotation{KeyID: keyID, Public: public}, Private: private}},
	})
	if err := errors.Join(err, store.Close()); err != nil {
		return "", err
	}
	return fmt.Sprintf("evidence: { issuer: %q, key: { file: %q }, keyId: %q, idKey: { file: %q } }\n", issuer, key, keyID, secret), nil
}

func (k *killer) store() string { return filepath.Join(k.dir, "store") }

// endLongAgo signs a call and what it led to, as of three hours ago.
func (k *killer) endLongAgo(ctx context.Context, o evidence.Options) error {
	m, err := evidence.New(o)
	if err != nil {
		return err
	}
	at := time.Now().Add(-3 * time.Hour)
	run := m.Open(ancestry.NewRunID(at), evidence.Origin{})
	seen := evidence.Observed{Direction: evidence.Ingress, Protocol: evidence.MCP, Method: "tools/call", Outcome: evidence.OK, Status: 200, Ended: at}
	m.End(m.Arrive(run, evidence.Place{}, at), seen)
	seen.Direction = evidence.Egress
	m.End(m.Leave(run, at.Add(time.Millisecond)), seen)
	over, stop := context.WithCancel(ctx)
	stop()
	m.Run(over) // which stores what is there
	k.records.quiet.workflow = run.Workflow
	stored, _, err := o.Store.Receipts(ctx, run.Workflow, "", 10)
	for _, r := range stored {
		k.records.quiet.receipts = append(k.records.quiet.receipts, r.JWS)
	}
	return err
}

// errFalse is in the error of evidence that is there, and does not hold.
var errFalse = errors.New("the evidence does not hold")

// read asks for the evidence of a run, or of a workflow, and verifies it. There may be
// none.
func (k *killer) read(ctx context.Context, run string) (b bundle, err error) {
	var raw json.RawMessage
	err = program.GetJSON(ctx, k.admin+"/ancestry/v1/runs/"+url.PathEscape(run)+"/evidence", &raw)
	if errors.Is(err, program.ErrNotFound) {
		return b, nil
	}
	if err != nil {
		return b, err
	}
	whole, err := peac.ParseBundle(raw)
	if err != nil {
		return b, fmt.Errorf("%w: %s: %w", errFalse, run, err)
	}
	report := whole.Verify(k.records.keys, time.Now())
	if !report.OK() || whole.Next != "" {
		return b, fmt.Errorf("%w: %s: %+v", errFalse, run, report)
	}
	b.receipts, b.summary, b.steps = whole.Receipts, whole.Summary != "", len(report.Steps)
	b.workflow = report.Steps[0].Receipts[0].Workflow.WorkflowID
	return b, nil
}

// follow reads the evidence of runs that were answered, as soon as there is any, and
// what the sidecar counts, until it is dead.
func (r *round) follow(ctx context.Context, k *killer) {
	for run := range r.ended {
		for there := false; !there; pause(ctx, time.Millisecond) {
			values, err := program.Metrics(ctx, strings.TrimPrefix(k.admin, "http://"))
			if err != nil {
				return
			}
			b, err := k.read(ctx, run)
			there = len(b.receipts) > 0
			r.note(run, b, int(values["wopproxy_evidence_receipts_total"]), err)
			if err != nil {
				return
			}
		}
	}
}

// note keeps what was read of a run, and what was counted before.
func (r *round) note(run string, b bundle, counted int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counted = max(r.counted, counted)
	if errors.Is(err, errFalse) {
		r.fault = err
	}
	if len(b.receipts) == 0 {
		return
	}
	if r.records[run] = b; len(r.records) == 1 {
		close(r.signed)
	}
}

// checkReceipts compares what the store has of a round's evidence with what was read
// of it before the kill. Of each run there is one step, or none. None of them may be
// told of as whole: all were at work, or had just been. It reads those that were read
// before, or all.
func (k *killer) checkReceipts(ctx context.Context, r *round, all bool) error {
	if r.fault != nil {
		return r.fault
	}
	runs, n := slices.Collect(maps.Keys(r.records)), 0
	if all {
		stored, err := k.list(ctx, r)
		if err != nil {
			return err
		}
		for _, l := range stored {
			if !slices.Contains(runs, l.Run) && !slices.Contains(runs, l.Alias) {
				runs = append(runs, l.Run)
			}
		}
	}
	for _, run := range runs {
		b, err := k.read(ctx, run)
		if err != nil {
			return err
		}
		n += len(b.receipts)
		before := r.records[run]
		switch gone := func(jws string) bool { return !slices.Contains(b.receipts, jws) }; {
		case b.summary:
			return fmt.Errorf("run %s was at work when wopproxy died, and what is kept of it is said to be whole", run)
		case b.steps > 1:
			return fmt.Errorf("run %s was one call, and has %d steps", run, b.steps)
		case slices.ContainsFunc(before.receipts, gone), before.workflow != "" && before.workflow != b.workflow:
			return fmt.Errorf("run %s had %d receipts of %s, and has %d of %q", run, len(before.receipts), before.workflow, len(b.receipts), b.workflow)
		}
	}
	if all && n < r.counted {
		return fmt.Errorf("%d receipts were counted as stored, and %d are there", r.counted, n)
	}
	return k.checkQuiet(ctx)
}

// checkQuiet looks at the workflow that had ended long before: no kill is of any
// concern to it.
func (k *killer) checkQuiet(ctx context.Context) error {
	want := k.records.quiet
	b, err := k.read(ctx, want.workflow)
	if err == nil && (!b.summary || !slices.Equal(b.receipts, want.receipts)) {
		err = fmt.Errorf("a workflow that was over for hours has %d receipts, and is whole: %v; want %d and true", len(b.receipts), b.summary, len(want.receipts))
	}
	return err
}

// recovers waits until a run that begins now is told of as whole.
func (k *killer) recovers(ctx context.Context) error {
	r := newRound(len(k.all), k.host)
	c := &http.Client{Timeout: time.Minute}
	defer c.CloseIdleConnections()
	for deadline := time.Now().Add(time.Minute); ; pause(ctx, 100*time.Millisecond) {
		parent, _ := r.begin() // fewer than a round may have
		a, err := r.call(c, k.ingress, parent, true)
		if err != nil {
			return err
		}
		b, err := k.read(ctx, a.run)
		if err != nil || b.summary {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("run %s began a minute after the last kill, and is not whole", a.run)
		}
	}
}
