package e2e

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	a2agrpc0 "github.com/a2aproject/a2a-go/v2/a2agrpc/v0"
	a2agrpc "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/wopproxy/wopproxy/ancestry/peac"
)

// attaches has a wopproxy sign evidence, and put it on the answers of its host.
func attaches(t testing.TB, hostID string) signing {
	s := signs(t, hostID)
	s.settings["evidence.attach"] = true
	return s
}

// carrier is a receipt as an answer bears it, for PEAC's own packages to judge.
type carrier struct {
	Carrier   json.RawMessage `json:"carrier"`
	Transport string          `json:"transport"`
	Key       string          `json:"key"`
}

// bearings are the receipts of answers, by the exchange.
type bearings map[string]carrier

// add takes the carrier on the answer of an exchange, which must be whole and kept with
// the evidence of the run that the exchange has started.
func (b bearings) add(t *testing.T, exchange, transport string, c peac.Carrier, by signing, at *sidecar, run string) {
	t.Helper()
	if err := c.Check(); err != nil || c.JWS == "" {
		t.Errorf("%s: the answer bears %+v: %v", exchange, c, err)
		return
	}
	bundle, _ := by.evidence(t, at, run, func(peac.Report) bool { return true })
	if !slices.Contains(bundle.Receipts, c.JWS) {
		t.Errorf("%s: what the answer bears is none of the %d receipts of %s", exchange, len(bundle.Receipts), run)
	}
	raw, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	b[exchange] = carrier{raw, transport, by.public()}
}

// judged has PEAC's own packages accept all of them, and refuse each with one thing
// wrong.
func (b bearings) judged(t *testing.T, n nodeRuntime) {
	t.Helper()
	questions := maps.Clone(b)
	for name, c := range b {
		var one peac.Carrier
		if err := json.Unmarshal(c.Carrier, &one); err != nil {
			t.Fatal(err)
		}
		for what, wrong := range map[string]peac.Carrier{
			"another reference": {Ref: peac.ReceiptRef("x"), JWS: one.JWS},
			"another signature": peac.NewCarrier(one.JWS[:len(one.JWS)-86] + strings.Repeat("A", 86)),
			"a bare reference":  {Ref: strings.TrimPrefix(one.Ref, "sha256:"), JWS: one.JWS},
		} {
			raw, err := json.Marshal(wrong)
			if err != nil {
				t.Fatal(err)
			}
			questions[name+" with "+what] = carrier{raw, c.Transport, c.Key}
		}
	}
	verdicts := n.verdicts(t, "peac-carriers.mjs", questions)
	for name := range questions {
		verdict, there := verdicts[name]
		_, isWhole := b[name]
		switch {
		case !there:
			t.Errorf("%s: no verdict", name)
		case isWhole && verdict != nil:
			t.Errorf("%s: refused by PEAC's packages: %s", name, *verdict)
		case !isWhole && verdict == nil:
			t.Errorf("%s: accepted by PEAC's packages", name)
		}
	}
}

// naming is a client that names A2A's extension for receipts in each request, and keeps
// the trailers of the last one over gRPC.
type naming struct {
	a2aclient.PassthroughInterceptor
	trailer metadata.MD
}

func (*naming) Before(ctx context.Context, r *a2aclient.Request) (context.Context, any, error) {
	if r.ServiceParams == nil {
		r.ServiceParams = a2aclient.ServiceParams{}
	}
	r.ServiceParams.Append(a2a.SvcParamExtensions, peac.TraceabilityExtension)
	return ctx, nil, nil
}

// dial returns a client of the SDK for one binding.
func (c *naming) dial(t *testing.T, p *peer, b binding) *a2aclient.Client {
	t.Helper()
	card, err := p.fetchCard(t.Context(), direct)
	if err != nil {
		t.Fatal(err)
	}
	keep := grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return call(ctx, method, req, reply, cc, append(opts, grpc.Trailer(&c.trailer))...)
	})
	option := b.option(direct)
	if b.kind == a2a.TransportProtocolGRPC {
		with := map[a2a.ProtocolVersion]func(...grpc.DialOption) a2aclient.FactoryOption{
			a2a.Version: a2agrpc.WithGRPCTransport, a2av0.Version: a2agrpc0.WithGRPCTransport,
		}[b.version]
		option = with(append(grpcBy(direct), keep)...)
	}
	client, err := a2aclient.NewFromCard(t.Context(), card, a2aclient.WithDefaultsDisabled(), option, a2aclient.WithCallInterceptors(c))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// carried is the one receipt in metadata, as the SDK hands them on.
func carried(t *testing.T, meta map[string]any) (c peac.Carrier) {
	t.Helper()
	raw, err := json.Marshal(meta[peac.TraceabilityExtension])
	if err != nil {
		t.Fatal(err)
	}
	list := decode[struct{ Carriers []peac.Carrier }](t, raw).Carriers
	if len(list) != 1 {
		t.Errorf("metadata %v has %d carriers, want 1", meta, len(list))
		return c
	}
	return list[0]
}

// TestEvidenceOnAnswers has clients of the official SDKs accept answers that bear
// receipts, of servers of the same, and PEAC's own packages accept those; each is among
// the evidence of the run that the call has started.
func TestEvidenceOnAnswers(t *testing.T) {
	n := node(t)
	b := bearings{}
	t.Run("MCP", func(t *testing.T) { mcpBears(t, n, b) })
	t.Run("A2A", func(t *testing.T) { a2aBears(t, b) })
	t.Run("HTTP", func(t *testing.T) { httpBears(t, b) })
	if want := 2 + 2*len(bindings) + 1; len(b) != want && !t.Failed() {
		t.Errorf("%d answers bear receipts, want %d", len(b), want)
	}
	b.judged(t, n)
}

func mcpBears(t *testing.T, n nodeRuntime, b bearings) {
	by := attaches(t, "tools.example.com")
	tools := newNodeToolServer(t, "tools.example.com", []string{"json"}, by.settings)
	cs, err := tools.connect(t.Context(), direct, tools.endpoint())
	if err != nil {
		t.Fatal(err)
	}
	defer cs.Close()
	for i, tool := range []string{"echo", "fail"} {
		r, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: map[string]any{"n": 1}})
		if err != nil || r.IsError != (tool == "fail") {
			t.Fatalf("%s: %+v, %v", tool, r, err)
		}
		ref, _ := r.Meta[peac.MetaReceiptRef].(string)
		jws, _ := r.Meta[peac.MetaReceiptJWS].(string)
		run := field(tools.node.awaitLogAfter(t, i, "call"), "run")
		b.add(t, "MCP "+tool, "mcp", peac.Carrier{Ref: ref, JWS: jws}, by, tools.sidecar, run)
	}
	// The client in TypeScript checks what it is given against the schema.
	if err := n.spawn(t, nil, "mcp-client.mjs", tools.endpoint(), "echo", "{}").success(t); err != nil {
		t.Error(err)
	}
	if got := tools.metric(t, "wopproxy_receipts_attached_total", `carrier="mcp"`); got != 3 {
		t.Errorf("%v answers bear a receipt, want 3", got)
	}
}

func a2aBears(t *testing.T, b bearings) {
	by := attaches(t, "agent.example.com")
	p := newPeer(t, "agent.example.com", by.settings)
	p.does("task", func(_ context.Context, x *a2asrv.ExecutorContext, emit func(a2a.Event) bool) error {
		emit(a2a.NewSubmittedTask(x, x.Message))
		emit(a2a.NewStatusUpdateEvent(x, a2a.TaskStateCompleted, a2a.NewMessage(a2a.MessageRoleAgent, a2a.NewTextPart("done"))))
		return nil
	})
	p.does("message", func(_ context.Context, _ *a2asrv.ExecutorContext, emit func(a2a.Event) bool) error {
		emit(a2a.NewMessage(a2a.MessageRoleAgent, a2a.NewTextPart("hello")))
		return nil
	})
	for _, binding := range bindings {
		c := &naming{}
		client := c.dial(t, p, binding)
		for _, what := range []string{"task", "message"} {
			name := binding.name + " " + what
			answer, err := client.SendMessage(t.Context(), &a2a.SendMessageRequest{Message: say(what)})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			m, _ := answer.(*a2a.Message)
			if task, ok := answer.(*a2a.Task); ok {
				m = task.Status.Message
			}
			var found peac.Carrier
			transport := "a2a"
			if binding.kind != a2a.TransportProtocolGRPC {
				found = carried(t, m.Metadata)
			} else if jws := c.trailer["peac-receipt"]; len(jws) == 1 {
				transport, found = "grpc", peac.NewCarrier(jws[0])
			}
			b.add(t, name, transport, found, by, p.sidecar, p.lastTurn(t).run)
		}
		_ = client.Destroy()
	}
}

func httpBears(t *testing.T, b bearings) {
	by := attaches(t, "chat.example.com")
	run := make(chan string, 1)
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/chat" {
			run <- r.Header.Get("Run-Id")
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"text":"hello"}`)
	}))
	t.Cleanup(host.Close)
	at := start(t, "chat.example.com", host.URL, by.settings)
	resp, err := direct.Post(at.ingress+"/chat", "application/json", strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if jws := resp.Header["Peac-Receipt"]; err != nil || len(jws) != 1 || string(body) != `{"text":"hello"}` {
		t.Fatalf("%v, %s, PEAC-Receipt: %q", err, body, jws)
	}
	b.add(t, "HTTP", "http", peac.NewCarrier(resp.Header.Get("PEAC-Receipt")), by, at, <-run)
}
