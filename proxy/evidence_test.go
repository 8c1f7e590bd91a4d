package proxy

import (
	"context"
	"crypto/ed25519"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/wopproxy/wopproxy/ancestry/peac"
	"github.com/wopproxy/wopproxy/evidence"
)

// file is where the receipts of a sidecar are, and who signs them.
type file struct {
	*evidence.Memory
	minter *evidence.Minter
	issuer string
	public ed25519.PublicKey
	stop   func() // signs what was observed, and nothing more
}

// newFile returns a minter that runs until stop is called.
func newFile(t testing.TB, issuer string, tune ...func(*evidence.Options)) *file {
	t.Helper()
	seed := make([]byte, ed25519.SeedSize)
	copy(seed, issuer)
	key := ed25519.NewKeyFromSeed(seed)
	f := &file{Memory: evidence.NewMemory(), issuer: issuer, public: key.Public().(ed25519.PublicKey)}
	o := evidence.Options{
		Issuer: issuer, Host: strings.TrimPrefix(issuer, "https://"), Store: f.Memory, IDKey: []byte("0123456789abcdef0123456789abcdef"),
		Keys: []evidence.Key{{Rotation: peac.Rotation{KeyID: "one", Public: f.public}, Private: key}},
	}
	for _, f := range tune {
		f(&o)
	}
	var err error
	if f.minter, err = evidence.New(o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); f.minter.Run(ctx) }()
	f.stop = func() { cancel(); <-done }
	t.Cleanup(f.stop)
	return f
}

// tune has a sidecar make evidence.
func (f *file) tune(o *Options, _ *Policy) { o.Evidence = f.minter }

// of returns all receipts of a workflow, read back and verified.
func (f *file) of(t testing.TB, workflow string) (receipts []peac.Receipt, external []string) {
	t.Helper()
	stored, next, err := f.Receipts(t.Context(), workflow, "", 1000)
	if err != nil || next != "" {
		t.Fatal(err, next)
	}
	keys := peac.JWKS{Keys: []peac.JWK{peac.NewJWK("one", f.public)}}.Of(f.issuer)
	for _, s := range stored {
		r, err := peac.Verify(s.JWS, keys, time.Now())
		if err != nil {
			t.Fatalf("%v: %s", err, s.JWS)
		}
		receipts = append(receipts, r)
		external = append(external, s.External...)
	}
	if faults := peac.CheckSet(receipts, external); len(faults) > 0 {
		t.Errorf("faults of the set: %+v", faults)
	}
	return receipts, external
}

// TestEvidenceOfACall has an MCP call into the host leave a receipt that verifies.
func TestEvidenceOfACall(t *testing.T) {
	to := peer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`))
	})
	f := newFile(t, "https://agent.example.com")
	s := newSidecar(t, "agent.example.com", "http://"+to, f.tune)
	post(t, http.DefaultClient, s.ingress.URL+"/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search"}}`, benchMCP)
	s.handled.wait(t)
	f.stop()
	run := s.recorded(t)[0]
	if run.Workflow == "" {
		t.Fatalf("the run %+v has no workflow", run)
	}
	receipts, _ := f.of(t, run.Workflow)
	if len(receipts) != 1 {
		t.Fatalf("%d receipts, want 1", len(receipts))
	}
	t.Logf("%+v", receipts[0].Claims)
}
