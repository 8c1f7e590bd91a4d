package config_test

import (
	"errors"
	"flag"
	"io"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/tools/txtar"

	"github.com/wopproxy/wopproxy/config"
)

var update = flag.Bool("update", false, "rewrite the golden files and the schema")

// sameConfig compares what a Config says, not which keys the file gave.
var sameConfig = cmp.Options{
	cmpopts.IgnoreUnexported(config.Config{}),
	cmp.Comparer(func(a, b config.HostPattern) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmp.Comparer(func(a, b config.Secret) bool { return a == b }),
}

// required is a file that says no more than it has to.
const required = `host: {id: a.example.com, wellKnownUrl: "https://a.example.com/.well-known/openwop"}
ingress: {upstream: "http://127.0.0.1:8080"}
`

func parse(t *testing.T, text string) *config.Config {
	t.Helper()
	c, err := config.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatalf("Parse(%q): %v", text, err)
	}
	return c
}

func mustURL(s string) config.URL {
	u, err := url.Parse(s)
	if err != nil {
		panic(err)
	}
	return config.URL{URL: u}
}

func hosts(t *testing.T, patterns ...string) config.Hosts {
	t.Helper()
	list := make(config.Hosts, len(patterns))
	for i, p := range patterns {
		if err := list[i].UnmarshalText([]byte(p)); err != nil {
			t.Fatal(err)
		}
	}
	return list
}

// TestBad pins the text of each mistake, because it is read by people, and
// whether the schema sees the mistake too.
func TestBad(t *testing.T) {
	const golden = "testdata/bad.txtar"
	want := map[string]string{}
	archive, err := txtar.ParseFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range archive.Files {
		want[f.Name] = string(f.Data)
	}
	accepts := schemaValidator(t)
	out := &txtar.Archive{Comment: archive.Comment}
	files := yamlFiles(t, "testdata/bad")
	for _, path := range files {
		name := filepath.Base(path)
		_, err := config.Load(path)
		if err == nil {
			t.Errorf("Load(%s) accepts it", path)
			continue
		}
		got := strings.ReplaceAll(err.Error(), path, name) + "\nschema: refuses\n"
		if accepts(readFile(t, path)) == nil {
			got = strings.ReplaceAll(got, "schema: refuses", "schema: accepts")
		}
		out.Files = append(out.Files, txtar.File{Name: name, Data: []byte(got)})
		if strings.Contains(got, "hunter2") {
			t.Errorf("%s: the text repeats a secret: %s", name, got)
		}
		if diff := cmp.Diff(want[name], got); diff != "" && !*update {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if len(files) != len(archive.Files) && !*update {
		t.Errorf("%s has %d entries for %d files", golden, len(archive.Files), len(files))
	}
	if *update {
		if err := os.WriteFile(golden, txtar.Format(out), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestExample(t *testing.T) {
	got, err := config.Load("testdata/example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := config.Default()
	want.Host = config.Host{
		ID:           "research.example.com/agent",
		WellKnownURL: mustURL("https://research.example.com/.well-known/openwop"),
	}
	want.Ingress.Listen, want.Ingress.Upstream = ":8088", mustURL("http://127.0.0.1:8080")
	want.Egress.Credentials.Secret.File = "/run/secrets/egress"
	want.Runs.Start = config.Routes{{Method: "POST", Path: "/chat"}}
	want.Carriers.Tylo = hosts(t, "legacy.example.com")
	want.Tracing.OTLP.Endpoint, want.Tracing.Sample = mustURL("http://otel-collector:4318"), 0.1
	want.Drain.Timeout = config.Duration{Duration: 30 * time.Second}
	if diff := cmp.Diff(want, got, sameConfig); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestEveryKey shows that each key reaches its field: every-key.yaml sets all of
// them, each to something else than its default.
func TestEveryKey(t *testing.T) {
	got, err := config.Load("testdata/valid/every-key.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var start config.Routes = []config.Route{{Method: "POST", Path: "/chat"}, {Method: "PUT", Path: "/threads/*/runs"}}
	want := &config.Config{
		Host: config.Host{
			ID:           "planner.example.com/agent",
			WellKnownURL: mustURL("https://planner.example.com/base/.well-known/openwop"),
		},
		Ingress: config.Ingress{
			Listen:         "[::1]:18088",
			Transparent:    ":8188",
			Upstream:       mustURL("https://agent.internal:8443/base"),
			GRPCUpstream:   mustURL("http://agent.internal:50051"),
			Host:           config.HostUpstream,
			AllowedHosts:   hosts(t, "planner.example.com", "*.planner.example.com:8443", "[::1]"),
			AllowedOrigins: config.Origins{"https://app.example.com", "http://localhost:3000"},
			PublicURL:      mustURL("https://planner.example.com/agents/planner"),
			AgentCards:     config.AgentCards{Own: hosts(t, "agent.internal:8080"), Signed: config.SignedStrip},
			Discovery:      config.Discovery{Causation: config.CausationAssert},
		},
		Egress: config.Egress{
			Listen:       "localhost:18089",
			Transparent:  ":8189",
			ConnectPorts: []int{443, 8443},
			DenyAddresses: config.CIDRs{
				{Prefix: netip.MustParsePrefix("10.0.0.0/8")}, {Prefix: netip.MustParsePrefix("fd00::/8")},
			},
			DialTimeout:  config.Duration{Duration: 3 * time.Second},
			Intercept:    hosts(t, "*.example.com:443"),
			OriginateTLS: hosts(t, "tools.example.com"),
			CA:           config.CA{Cert: "/etc/wopproxy/ca.pem", Key: "/etc/wopproxy/ca-key.pem", Create: true, Bundle: "/run/wopproxy/bundle.pem"},
			Roots:        "/etc/wopproxy/roots.pem",
			Credentials:  config.Credentials{Secret: config.Secret{Env: "EGRESS_SECRET"}},
		},
		Admin: config.Admin{Listen: "127.0.0.1:19090", Health: ":19091", Pprof: true},
		Ancestry: config.Ancestry{
			Store:         config.Store{Bolt: config.Bolt{Dir: "data/links", Journal: 1 << 20}},
			Retention:     config.Retention{Age: config.Duration{Duration: 7 * 24 * time.Hour}, Links: 5000},
			CommitTimeout: config.Duration{Duration: 250 * time.Millisecond},
			Auth:          config.Auth{Mode: config.AuthBearer, Bearer: config.Secret{File: "/run/secrets/ancestry"}},
		},
		Evidence: config.Evidence{
			Issuer: "https://planner.example.com", Key: config.SigningKey{File: "/run/secrets/peac.pem"}, KeyID: "2026-11",
			Keys: []config.EvidenceKey{
				{File: "/etc/wopproxy/peac-2026-05.pem", KeyID: "2026-05", Retire: config.Time{Time: time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)}},
				{File: "/run/secrets/peac-2027-02.pem", Sign: config.Time{Time: time.Date(2027, 2, 1, 12, 30, 0, 500e6, time.UTC)}},
			},
			IDKey: config.Secret{Env: "PEAC_ID_KEY"}, Privacy: config.PrivacyOpen, Digests: true, Attach: true, Queue: 12,
			Revoked: []config.RevokedKey{{KeyID: "2026-01", At: config.Time{Time: time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)}, Reason: "superseded"}},
			Known:   []config.KnownIssuer{{Issuer: "https://peer.example.com", File: "/etc/wopproxy/peer.jwks"}},
		},
		Headers: config.Headers{RunAncestry: "X-Ancestry", RunID: "X-Run"},
		Runs:    config.Runs{Start: start, MCPMethods: []string{"tools/call"}, TTL: config.Duration{Duration: 36 * time.Hour}},
		Attribution: config.Attribution{
			Quarantine: config.Duration{Duration: 2 * time.Second}, SessionsPerRun: true,
			ProcessPerRun: true, EchoedIDs: true,
			SessionHeaders: []config.HeaderName{"X-Claude-Code-Session-Id", "X-Session"},
			WebhookContext: config.WebhookParent, WebhookTTL: config.Duration{Duration: 2 * time.Hour},
		},
		Trust: config.Trust{
			Ingress: config.TrustIngress{Mode: config.TrustListed, CIDRs: config.CIDRs{
				{Prefix: netip.MustParsePrefix("10.0.0.0/8")}, {Prefix: netip.MustParsePrefix("fd00::/8")},
			}},
			Egress: config.TrustEgress{Mode: config.TrustListed, Hosts: hosts(t, "*.example.com", "tools.example.org:443")},
		},
		ExecutionModel: config.ExecutionModel{
			WithholdUnescalated: true,
			Watch:               config.Watch{URL: mustURL("http://127.0.0.1:8081/api"), Credential: config.Secret{File: "/run/secrets/watch"}},
		},
		Carriers: config.Carriers{
			Tylo:              hosts(t, "legacy.example.com"),
			A2AInMessage:      hosts(t, "*"),
			AncestryInMessage: hosts(t, "*.example.com"),
		},
		Tracing: config.Tracing{
			OTLP: config.OTLP{
				Endpoint: mustURL("http://otel-collector:4317"),
				Protocol: config.ProtocolGRPC,
				Headers:  map[string]config.Secret{"authorization": {File: "/run/secrets/otlp"}, "x-api-key": {Env: "OTLP_KEY"}},
				Timeout:  config.Duration{Duration: 3 * time.Second},
			},
			Sample:      0.25,
			TaskTTL:     config.Duration{Duration: 3 * time.Hour},
			Propagators: []config.Propagator{config.PropagatorB3, config.PropagatorXRay},
		},
		Limits: config.Limits{
			MaxDepth: 8, MaxVisitsPerHost: 2, InspectedBody: 1 << 20, InspectedBodies: 8 << 20, BodyPatience: config.Duration{Duration: 2500 * time.Millisecond},
			Header: 32 << 10, InspectedEvent: 64 << 10, StdioLine: 1 << 20, LiveRuns: 10, Bindings: 20, Webhooks: 5, Tasks: 9, Handoffs: 11, HandoffTTL: config.Duration{Duration: 4 * time.Hour}, ProcessScan: config.Duration{Duration: 70 * time.Millisecond}, WatchedRuns: 7, FollowedRuns: 6, Queue: 30, Tunnels: 40, Connections: 50,
		},
		Drain: config.Drain{Timeout: config.Duration{Duration: 90 * time.Second}},
		Log:   config.Log{Level: slog.LevelDebug},
	}
	if diff := cmp.Diff(want, got, sameConfig); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, key := range leafKeys() {
		if !got.Given(key) {
			t.Errorf("every-key.yaml does not set %s", key)
		}
	}
}

func TestValid(t *testing.T) {
	defaults := parse(t, required)
	accepts := schemaValidator(t)
	sameAsDefaults := map[string]bool{"minimal.yaml": true, "sections-left-empty.yaml": true, "json.yaml": true}
	for _, path := range append(yamlFiles(t, "testdata/valid"), "testdata/example.yaml") {
		c, err := config.Load(path)
		if err != nil {
			t.Errorf("Load(%s): %v", path, err)
			continue
		}
		if err := accepts(readFile(t, path)); err != nil {
			t.Errorf("the schema refuses %s: %v", path, err)
		}
		if diff := cmp.Diff(defaults, c, sameConfig); (diff == "") != sameAsDefaults[filepath.Base(path)] {
			t.Errorf("%s differs from the defaults by (-want +got):\n%s", path, diff)
		}
	}
}

func TestGiven(t *testing.T) {
	c := parse(t, required+"tracing: {sample: 1, otlp: {headers: {a: {env: A}}}}\nlimits:\n")
	for key, want := range map[string]bool{
		"host.id": true, "tracing": true, "tracing.sample": true, "tracing.otlp.headers.a": true, "tracing.otlp.headers": true,
		"": false, "tracing.otlp.protocol": false, "limits": false, "drain.delay": false,
	} {
		if got := c.Given(key); got != want {
			t.Errorf("Given(%q) = %v, want %v", key, got, want)
		}
	}
	if config.Default().Given("host.id") {
		t.Error("Default().Given(host.id) = true")
	}
}

func TestMistakesAreValues(t *testing.T) {
	_, err := config.Parse(strings.NewReader("host: {id: a}\nlimits:\n  queue: 0\n"))
	var got config.Mistakes
	if !errors.As(err, &got) {
		t.Fatalf("Parse: %T, want Mistakes", err)
	}
	type place struct {
		Key  string
		Line int
	}
	var places []place
	for _, m := range got {
		places = append(places, place{m.Key, m.Line})
	}
	if diff := cmp.Diff([]place{{"host.wellKnownUrl", 0}, {"ingress.upstream", 0}, {"limits.queue", 3}}, places); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLoadFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "absent.yaml")
	_, err := config.Load(path)
	if want := "load configuration: open " + path + ": no such file or directory"; err == nil || err.Error() != want || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Load: %v, want %s", err, want)
	}
	if _, err := config.Parse(iotest.ErrReader(io.ErrUnexpectedEOF)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Parse: %v, want %v", err, io.ErrUnexpectedEOF)
	}
}

func TestFileSize(t *testing.T) {
	padding := strings.Repeat("#", 1<<20-len(required))
	parse(t, required+padding)
	_, err := config.Parse(strings.NewReader(required + padding + "#"))
	if want := "the file is larger than 1 MiB, is it the right one?"; err == nil || err.Error() != want {
		t.Errorf("Parse: %v, want %s", err, want)
	}
}

func TestRestartKeys(t *testing.T) {
	old := parse(t, required)
	for name, text := range map[string]string{
		"the same":              required,
		"in another notation":   required + "ancestry: {retention: {age: 30d}}\ntracing: {otlp: {headers: {}}}\nlimits: {header: 65536}\n",
		"what follows the file": required + "limits: {bodyPatience: 1s}\ntracing: {propagators: []}\ndrain: {delay: 0}\n",
	} {
		if got := config.RestartKeys(old, parse(t, text)); got != nil {
			t.Errorf("RestartKeys, %s = %q, want none", name, got)
		}
	}
	every, err := config.Load("testdata/valid/every-key.yaml") // every key differs
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"host.id", "host.wellKnownUrl", "ingress.listen", "ingress.transparent", "ingress.upstream", "ingress.grpcUpstream", "egress.listen", "egress.transparent", "egress.ca.cert", "egress.ca.key", "egress.ca.create", "egress.ca.bundle", "egress.roots", "admin.listen", "admin.health", "admin.pprof",
		"ancestry.store.bolt.dir", "ancestry.store.bolt.journal", "ancestry.retention.age", "ancestry.retention.links", "ancestry.auth.mode", "evidence.issuer", "evidence.key.file", "evidence.keyId", "evidence.keys", "evidence.revoked", "evidence.idKey", "evidence.privacy", "evidence.digests", "evidence.known", "evidence.queue",
		"runs.ttl",
		"attribution.singleFlight", "attribution.quarantine", "attribution.echoedIds", "attribution.webhookTTL",
		"tracing.otlp.endpoint", "tracing.otlp.protocol", "tracing.otlp.headers", "tracing.otlp.timeout", "tracing.sample", "tracing.taskTTL",
		"limits.header", "limits.stdioLine", "limits.liveRuns", "limits.bindings", "limits.webhooks", "limits.watchedRuns", "limits.tasks", "limits.handoffs", "limits.handoffTTL", "limits.queue", "limits.tunnels", "limits.connections",
	}
	if diff := cmp.Diff(want, config.RestartKeys(old, every)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func yamlFiles(t testing.TB, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(dir + "/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in %s: %v", dir, err)
	}
	return files
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestLoadWithAliases: what outranks a part of the file does not reach what else is
// written by its anchor.
func TestLoadWithAliases(t *testing.T) {
	file := filepath.Join(t.TempDir(), "wopproxy.yaml")
	text := "egress: {credentials: {secret: &token {file: /a}}}\nancestry: {auth: {mode: bearer, bearer: *token}}\n" +
		"tracing: {otlp: {headers: {x-one: *token, x-two: &other {file: /b}, x-three: *other}}}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.LoadWith(file, required+"egress: {credentials: {secret: {file: /c}}}\ntracing: {otlp: {headers: {x-one: {file: /d}, x-two: {file: /e}}}}\n")
	if err != nil {
		t.Fatal(err)
	}
	headers := c.Tracing.OTLP.Headers
	got := []string{c.Egress.Credentials.Secret.File, c.Ancestry.Auth.Bearer.File, headers["x-one"].File, headers["x-two"].File, headers["x-three"].File}
	if want := []string{"/c", "/a", "/d", "/e", "/b"}; !slices.Equal(got, want) {
		t.Errorf("the secrets are read from %q, want %q", got, want)
	}
}

// TestLoadWith shows what a second text does to the file: keys outrank, sections
// are completed, and mistakes of either are told.
func TestLoadWith(t *testing.T) {
	file := filepath.Join(t.TempDir(), "wopproxy.yaml")
	text := "drain: &brief {delay: 1s, timeout: 2s}\nruns: {start: [POST /a, POST /b], ttl: 2h}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.LoadWith(file, required+"runs: {start: [POST /c]}\ndrain: {timeout: 3s}\n")
	if err != nil {
		t.Fatal(err)
	}
	want := config.Default()
	want.Host, want.Ingress.Upstream = config.Host{ID: "a.example.com", WellKnownURL: mustURL("https://a.example.com/.well-known/openwop")}, mustURL("http://127.0.0.1:8080")
	want.Runs.Start, want.Runs.TTL = config.Routes{{Method: "POST", Path: "/c"}}, config.Duration{Duration: 2 * time.Hour}
	want.Drain = config.Drain{Delay: config.Duration{Duration: time.Second}, Timeout: config.Duration{Duration: 3 * time.Second}}
	if diff := cmp.Diff(want, c, sameConfig); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !c.Given("runs.ttl") || !c.Given("host.id") || c.Given("log.level") {
		t.Error("Given does not know the keys of both texts")
	}
	if _, err := config.LoadWith("", required); err != nil {
		t.Errorf("without a file: %v", err)
	}
	for over, want := range map[string]string{
		"runs: {ttl: soon}": "runs.ttl",
		"runs: {start: [":   "not YAML",
		"runs: [a]":         "runs: a list",
	} {
		if _, err := config.LoadWith(file, required+over); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("LoadWith(%q) = %v, want a mistake with %q", over, err, want)
		}
	}
}
