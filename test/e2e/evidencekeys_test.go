package e2e

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/ancestry/peac"
)

// rotating is a wopproxy whose keys of evidence change.
type rotating struct {
	*sidecar
	signing
}

// change has other keys in the configuration, from now on or from the next start on.
func (r *rotating) change(t *testing.T, evidence settings) {
	t.Helper()
	text, err := os.ReadFile(r.file)
	if err != nil {
		t.Fatal(err)
	}
	values := decode[settings](t, text)
	all := values["evidence"].(map[string]any)
	for _, key := range []string{"key", "keyId", "keys", "revoked"} {
		if v, there := evidence[key]; there {
			all[key] = v
		}
	}
	r.configure(t, values)
}

// restart ends the program and starts it again, with other keys.
func (r *rotating) restart(t *testing.T, evidence settings) {
	t.Helper()
	r.stop(t)
	r.change(t, evidence)
	r.serve(t, nil, r.file)
}

// bundle returns the evidence of a run, as soon as there is any.
func (r *rotating) bundle(t *testing.T, run string) (b peac.Bundle, raw []byte) {
	t.Helper()
	eventually(t, "there is evidence of "+run, func() bool {
		code, body := get(t, r.admin+"/ancestry/v1/runs/"+url.PathEscape(run)+"/evidence")
		raw = body
		return code == http.StatusOK
	})
	b, err := peac.ParseBundle(raw)
	if err != nil || len(b.Receipts) != 1 {
		t.Fatalf("the evidence of %s: %v, %s", run, err, raw)
	}
	return b, raw
}

// verdict says with which key a bundle of one receipt is signed, and what is wrong
// with that, by the keys that are published.
func (r *rotating) verdict(t *testing.T, b peac.Bundle) (by string, report peac.Report) {
	t.Helper()
	report = b.Verify(r.published(t, r.sidecar), time.Now())
	if len(report.Steps) == 1 {
		by = report.Steps[0].Receipts[0].KeyID
	}
	return by, report
}

// keySet returns the published keys: their ids, and the whole document.
func (r *rotating) keySet(t *testing.T) (ids []string, raw []byte) {
	t.Helper()
	resp, err := direct.Get(r.ingress + "/.well-known/peac-jwks.json")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	age := regexp.MustCompile(`^public, max-age=(\d+)$`).FindStringSubmatch(resp.Header.Get("Cache-Control"))
	if age == nil {
		t.Fatalf("Cache-Control of the keys: %q", resp.Header.Get("Cache-Control"))
	}
	if seconds, err := strconv.Atoi(age[1]); err != nil || time.Duration(seconds)*time.Second > peac.MinOverlap {
		t.Errorf("the keys may be kept for %s s, longer than the %s for which an old one stays", age[1], peac.MinOverlap)
	}
	_, raw = get(t, r.ingress+"/.well-known/peac-jwks.json")
	set, err := peac.ParseJWKS(raw)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range set.Keys {
		ids = append(ids, k.KeyID)
	}
	return ids, raw
}

// TestKeyRotation has a key follow another, from the day on which it is announced to
// that on which the old one is no longer believed.
func TestKeyRotation(t *testing.T) {
	const next = "2026-12"
	dir := t.TempDir()
	s := signs(t, "host.example.com")
	nextFile, oldFile := filepath.Join(dir, "next.pem"), filepath.Join(dir, "old.pub")
	newKey(t, nextFile)
	half, err := x509.MarshalPKIXPublicKey(s.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	write(t, oldFile, string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: half})))
	coming := func(at time.Time) settings {
		return settings{"keys": []any{settings{"file": nextFile, "keyId": next, "sign": at.UTC().Format(time.RFC3339)}}}
	}
	tomorrow, yesterday := time.Now().Add(24*time.Hour), time.Now().Add(-24*time.Hour)
	s.settings["evidence.keys"] = coming(tomorrow)["keys"]
	r := &rotating{start(t, "host.example.com", idleHost(t), s.settings), s}
	want := func(run, by string, code peac.Code, published ...string) {
		t.Helper()
		b, _ := r.bundle(t, run)
		got, report := r.verdict(t, b)
		if code == "" && (!report.OK() || got != by) || code != "" && (report.OK() || !strings.Contains(fmt.Sprintf("%+v", report), string(code))) {
			t.Errorf("%s is signed by %q, want %q; %q is wrong: %+v", run, got, by, code, report)
		}
		if ids, _ := r.keySet(t); !slices.Equal(ids, published) {
			t.Errorf("published: %q, want %q", ids, published)
		}
	}
	// Announced. A change of the file takes a restart, and is said to.
	first := begin(t, r.sidecar, "", http.StatusOK)
	want(first, keyID, "", keyID, next)
	r.change(t, coming(yesterday))
	if line := r.awaitLog(t, "configuration reloaded; some changes take a restart"); !strings.Contains(fmt.Sprint(line["keys"]), "evidence.keys") {
		t.Errorf("log line = %v, want it to name evidence.keys", line)
	}
	want(begin(t, r.sidecar, "", http.StatusOK), keyID, "", keyID, next)

	// At its time the next one takes over, while the program runs.
	sign := time.Now().Add(2 * time.Second).Truncate(time.Second)
	r.restart(t, coming(sign))
	eventually(t, "the next key signs", func() bool {
		run := begin(t, r.sidecar, "", http.StatusOK)
		b, _ := r.bundle(t, run)
		by, report := r.verdict(t, b)
		if !report.OK() {
			t.Fatalf("%s: %+v", run, report)
		}
		if late := claimsOf(t, b.Receipts[0]).IssuedAt >= sign.Unix(); late != (by == next) {
			t.Fatalf("%s signs at %d, and takes over at %d", by, claimsOf(t, b.Receipts[0]).IssuedAt, sign.Unix())
		}
		return by == next
	})
	want(first, keyID, "", keyID, next)

	// Later it is the key, and of the old one the public half is kept.
	old := settings{"file": oldFile, "keyId": keyID}
	r.restart(t, settings{"key": settings{"file": nextFile}, "keyId": next, "keys": []any{old}})
	want(first, keyID, "", keyID, next)
	later := begin(t, r.sidecar, "", http.StatusOK)
	want(later, next, "", keyID, next)
	_, kept := r.keySet(t) // as somebody has kept them

	// It is no longer published.
	old["retire"] = yesterday.UTC().Format(time.RFC3339)
	r.restart(t, settings{"keys": []any{old}})
	want(first, keyID, peac.CodeKeyNotFound, next)
	want(later, next, "", next)

	// It is no longer believed, even by those who have kept it.
	delete(old, "retire")
	r.restart(t, settings{"keys": []any{old}, "revoked": []any{settings{"keyId": keyID, "at": yesterday.UTC().Format(time.RFC3339), "reason": "key_compromise"}}})
	want(first, keyID, peac.CodeKeyRevoked, next)
	want(later, next, "", next)
	if _, about := get(t, r.ingress+"/.well-known/peac-issuer.json"); !strings.Contains(string(about), `"kid":"`+keyID+`"`) || !strings.Contains(string(about), `"reason":"key_compromise"`) {
		t.Errorf("the issuer's document names no revoked key: %s", about)
	}
	keys := filepath.Join(dir, "jwks.json")
	write(t, keys, string(kept))
	for run, code := range map[string]int{first: 1, later: 0} {
		_, raw := r.bundle(t, run)
		file := filepath.Join(dir, "bundle.json")
		write(t, file, string(raw))
		verify := execute(t, "evidence", "verify", file, "-jwks", keys, "-issuer", r.ingress+"/.well-known/peac-issuer.json")
		if got := verify.wait(t); got != code || strings.Contains(verify.stdout.String(), "key_revoked: ") != (code == 1) {
			t.Errorf("evidence verify: exit code %d, want %d\n%s%s", got, code, verify.stdout, verify.stderr)
		}
	}
}
