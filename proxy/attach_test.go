package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/wopproxy/wopproxy/ancestry/peac"
	"github.com/wopproxy/wopproxy/evidence"
)

// attaching has answers bear receipts.
func attaching(_ *Options, p *Policy) { p.AttachReceipts = true }

var traceable = http.Header{"A2a-Extensions": {"https://a.example/ext/x, " + peac.TraceabilityExtension}}

const (
	askAgent     = `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m-0123456789abcdef","role":"ROLE_USER","parts":[]}}}`
	askAgentREST = `{"message":{"messageId":"m-0123456789abcdef","role":"ROLE_USER","parts":[]}}`
	toolResult   = `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"1 < 2"}]}}`
)

// bearers are what a host answers, and what becomes of the receipt: its carrier, and
// what it tells; or why there is none.
var bearers = []struct {
	name, path, body string
	asks             http.Header
	status           int
	header           http.Header
	answer           string

	carrier receiptCarrier
	told    []string
	why     unattached
}{
	{name: "MCP", path: "/mcp", body: call, answer: toolResult, carrier: carrierMCP, told: []string{"ingress mcp 0: invoked ok"}},
	{name: "MCP, an error of the tool", path: "/mcp", body: call, answer: `{"jsonrpc":"2.0","id":1,"result":{"isError":true,"content":[],"_meta":{"x":1}}}`, carrier: carrierMCP, told: []string{"ingress mcp 0: invoked ok"}},
	{name: "MCP, a task", path: "/mcp", body: call, answer: `{"jsonrpc":"2.0","id":1,"result":{"task":{"taskId":"task-0123456789abcdef","status":"working"}}}`, carrier: carrierMCP, told: []string{"ingress mcp 0: invoked ongoing, working ongoing"}},
	{name: "MCP, a question", path: "/mcp", body: call, answer: `{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","requestState":"0123456789abcdef"}}`, carrier: carrierMCP, told: []string{"ingress mcp 0: invoked ongoing"}},
	{name: "MCP, a weak tag", path: "/mcp", body: call, header: http.Header{"Etag": {`W/"1"`}}, answer: toolResult, carrier: carrierMCP, told: []string{"ingress mcp 0: invoked ok"}},
	{name: "MCP, an error", path: "/mcp", body: call, answer: `{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"no"}}`, why: unattachedError},
	{name: "MCP, an error of HTTP", path: "/mcp", body: call, status: 500, answer: toolResult, why: unattachedError},
	{name: "MCP, an event", path: "/mcp", body: call, header: http.Header{"Content-Type": {"text/event-stream"}}, answer: "data: " + toolResult + "\n\n", why: unattachedStream},
	{name: "MCP, a page", path: "/mcp", body: call, header: http.Header{"Content-Type": {"text/html"}}, answer: "<p>", why: unattachedStream},
	{name: "MCP, a part", path: "/mcp", body: call, status: 206, answer: toolResult, why: unattachedStream},
	{name: "MCP, nothing", path: "/mcp", body: call, status: 202, why: unattachedStream},
	{name: "MCP, carried", path: "/mcp", body: call, answer: `{"jsonrpc":"2.0","id":1,"result":{"_meta":{"org.peacprotocol/receipt_url":""}}}`, why: unattachedCarried},
	{name: "MCP, carried as it was once", path: "/mcp", body: call, answer: `{"jsonrpc":"2.0","id":1,"result":{},"peac_receipt":"x"}`, why: unattachedCarried},
	{name: "MCP, carried in the head", path: "/mcp", body: call, header: http.Header{"PEAC-Receipt": {"x"}}, answer: toolResult, why: unattachedCarried},
	{name: "MCP, with a digest", path: "/mcp", body: call, header: http.Header{"Content-Digest": {"sha-256=:AA==:"}}, answer: toolResult, why: unattachedUnread},
	{name: "MCP, with a digest of earlier days", path: "/mcp", body: call, header: http.Header{"Content-Md5": {"AAAAAAAAAAAAAAAAAAAAAA=="}}, answer: toolResult, why: unattachedUnread},
	{name: "MCP, signed", path: "/mcp", body: call, header: http.Header{"Signature-Input": {`a=("@status")`}}, answer: toolResult, why: unattachedUnread},
	{name: "MCP, not to be changed", path: "/mcp", body: call, header: http.Header{"Cache-Control": {"no-store, No-Transform"}}, answer: toolResult, why: unattachedUnread},
	{name: "MCP, compressed", path: "/mcp", body: call, header: http.Header{"Content-Encoding": {"br"}}, answer: toolResult, why: unattachedUnread},
	{name: "MCP, with trailers", path: "/mcp", body: call, header: http.Header{"Trailer": {"X-Sum"}}, answer: toolResult, why: unattachedUnread},
	{name: "MCP, with trailers of which nobody knew", path: "/mcp", body: call, header: http.Header{http.TrailerPrefix + "X-Sum": {"1"}}, answer: toolResult, why: unattachedUnread},
	{name: "MCP, not JSON", path: "/mcp", body: call, answer: toolResult + "x", why: unattachedUnread},
	{name: "MCP, ambiguous", path: "/mcp", body: call, answer: `{"jsonrpc":"2.0","id":1,"result":{"_meta":{},"_meta":{}}}`, why: unattachedUnread},
	{name: "MCP, no place", path: "/mcp", body: call, answer: `{"jsonrpc":"2.0","id":1,"result":{"_meta":[]}}`, why: unattachedNoPlace},
	{name: "MCP, a batch", path: "/mcp", body: "[" + call + "]", answer: "[" + toolResult + "]", why: unattachedNoPlace},
	{name: "MCP, one answer to a batch", path: "/mcp", body: "[" + call + "]", answer: toolResult, why: unattachedNoPlace},

	{name: "A2A, a message", path: "/a2a", body: askAgent, asks: traceable, answer: `{"jsonrpc":"2.0","id":1,"result":{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[]}}}`, carrier: carrierA2A, told: []string{"ingress a2a 0: invoked ok"}},
	{name: "A2A, a message beside another's receipt", path: "/a2a", body: askAgent, asks: traceable, answer: `{"jsonrpc":"2.0","id":1,"result":{"message":{"messageId":"m","metadata":{"https://www.peacprotocol.org/ext/traceability/v1":{"carriers":[{"receipt_ref":"sha256:` + strings.Repeat("0", 64) + `"}]}}}}}`, carrier: carrierA2A, told: []string{"ingress a2a 0: invoked ok"}},
	{name: "A2A, a task that goes on", path: "/a2a", body: askAgent, asks: http.Header{"X-A2a-Extensions": {peac.TraceabilityExtension}}, answer: `{"jsonrpc":"2.0","id":1,"result":{"kind":"task","id":"` + askedTask + `","status":{"state":"input-required","message":{"messageId":"m"}}}}`, carrier: carrierA2A, told: []string{"ingress a2a 0: input-required ongoing, invoked ongoing"}},
	{name: "A2A, a task that has ended", path: "/a2a", body: askAgent, asks: traceable, answer: `{"jsonrpc":"2.0","id":1,"result":{"task":{"id":"` + askedTask + `","status":{"state":"TASK_STATE_COMPLETED"},"artifacts":[{"artifactId":"a"}]}}}`, carrier: carrierA2A, told: []string{"ingress a2a 0: completed ongoing, invoked ok"}},
	{name: "A2A over REST", path: "/v1/message:send", body: askAgentREST, asks: traceable, answer: `{"message":{"messageId":"m","metadata":{"x":[]}}}`, carrier: carrierA2A, told: []string{"ingress a2a 0: invoked ok"}},
	{name: "A2A, not asked for", path: "/a2a", body: askAgent, asks: http.Header{"A2a-Extensions": {"https://a.example/ext/x"}}, answer: `{"jsonrpc":"2.0","id":1,"result":{"message":{"messageId":"m"}}}`, why: unattachedUnasked},
	{name: "A2A, a task without words", path: "/a2a", body: askAgent, asks: traceable, answer: `{"jsonrpc":"2.0","id":1,"result":{"task":{"id":"` + askedTask + `","status":{"state":"TASK_STATE_WORKING"}}}}`, why: unattachedNoPlace},
	{name: "A2A, an error", path: "/a2a", body: askAgent, asks: traceable, answer: `{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"no"}}`, why: unattachedError},

	{name: "HTTP", path: "/chat", body: `{}`, answer: `{"text":"hello"}`, carrier: carrierHeader, told: []string{"ingress http 0: dev.wopproxy/exchange ok"}},
	{name: "HTTP, not to be changed", path: "/chat", body: `{}`, header: http.Header{"Cache-Control": {"no-transform"}, "Content-Encoding": {"br"}}, answer: `{"text":"hello"}`, carrier: carrierHeader, told: []string{"ingress http 0: dev.wopproxy/exchange ok"}},
	{name: "HTTP, a run is created", path: "/v1/runs", body: `{"workflowId":"w"}`, status: 201, answer: `{"runId":"run-0123456789abcdef","status":"pending"}`, carrier: carrierHeader, told: []string{"ingress http 0: dev.wopproxy/exchange ongoing"}},
	{name: "HTTP, a run is created and compressed", path: "/v1/runs", body: `{"workflowId":"w"}`, status: 201, header: http.Header{"Content-Encoding": {"br"}}, answer: `{"runId":"run-0123456789abcdef","status":"pending"}`, why: unattachedUnread},
	{name: "HTTP, a page", path: "/chat", body: `{}`, header: http.Header{"Content-Type": {"text/html"}}, answer: `<p>`, why: unattachedStream},
	{name: "HTTP, an error", path: "/chat", body: `{}`, status: 404, answer: `{}`, why: unattachedError},
	{name: "HTTP, carried elsewhere", path: "/chat", body: `{}`, header: http.Header{"PEAC-Receipt-Pointer": {`sha256="00"`}}, answer: `{}`, why: unattachedCarried},
}

// TestAttach has answers bear the receipts of their calls, which are those that are
// kept; and has all others pass as they do where nothing is attached.
func TestAttach(t *testing.T) {
	for _, tt := range bearers {
		t.Run(tt.name, func(t *testing.T) {
			to := peer(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				maps.Copy(w.Header(), tt.header)
				if tt.status != 0 {
					w.WriteHeader(tt.status)
				}
				_, _ = io.WriteString(w, tt.answer)
				if tt.header["Trailer"] != nil {
					w.Header().Set("X-Sum", "1")
				}
			})
			f := newFile(t, "https://agent.example.com")
			s := newSidecar(t, "agent.example.com", "http://"+to, f.tune, attaching)
			plain := newSidecar(t, "agent.example.com", "http://"+to, newFile(t, "https://agent.example.com").tune)
			asks := http.Header{"Accept": {"application/json, text/event-stream"}}
			maps.Copy(asks, tt.asks)
			resp, body := post(t, http.DefaultClient, s.ingress.URL+tt.path, tt.body, asks)
			before, _ := post(t, http.DefaultClient, plain.ingress.URL+tt.path, tt.body, asks)
			s.handled.wait(t)
			f.stop()

			var borne []string
			header := resp.Header.Clone()
			switch tt.carrier {
			case "":
				s.wantSeries(t, fmt.Sprintf("wopproxy_receipts_unattached_total{reason=%q}", tt.why), 1)
			case carrierHeader:
				borne = header["Peac-Receipt"]
				delete(header, "Peac-Receipt")
			default:
				found, refused := peac.FindCarriers([]byte(body))
				borne = append(borne, found[len(found)-1].JWS)
				if want := strings.Count(tt.answer, "receipt_ref"); refused != 0 || len(found) != want+1 {
					t.Errorf("%d carriers and %d refused in %s", len(found), refused, body)
				}
				for _, name := range []string{"Content-Length", "Etag"} { // what the body is
					delete(header, name)
					delete(before.Header, name)
				}
			}
			if tt.carrier != "" {
				s.wantSeries(t, fmt.Sprintf("wopproxy_receipts_attached_total{carrier=%q}", tt.carrier), 1)
			}
			if inside := tt.carrier == carrierMCP || tt.carrier == carrierA2A; body != tt.answer && !inside || inside && !json.Valid([]byte(body)) {
				t.Errorf("answer %q, want %q", body, tt.answer)
			}
			for _, h := range []http.Header{header, before.Header} {
				delete(h, "Date")
			}
			if diff := cmp.Diff(before.Header, header); diff != "" || resp.StatusCode != before.StatusCode {
				t.Errorf("%d, was %d (-as it was +got):\n%s", resp.StatusCode, before.StatusCode, diff)
			}
			if diff := cmp.Diff(before.Trailer, resp.Trailer); diff != "" {
				t.Errorf("trailers (-as they were +got):\n%s", diff)
			}
			checkBorne(t, f, s.recorded(t)[0].Workflow, borne)
			if receipts, _ := f.of(t, s.recorded(t)[0].Workflow); tt.told != nil && !slices.Equal(toldOf(receipts), tt.told) {
				t.Errorf("told %v, want %v", toldOf(receipts), tt.told)
			}
		})
	}
}

// checkBorne compares the receipts that answers bear with those that are kept of a
// workflow.
func checkBorne(t *testing.T, f *file, workflow string, borne []string) {
	t.Helper()
	stored, _, err := f.Receipts(t.Context(), workflow, "", 100)
	if err != nil || len(stored) == 0 {
		t.Fatalf("%d receipts are kept, %v", len(stored), err)
	}
	for _, jws := range borne {
		if !slices.ContainsFunc(stored, func(r evidence.Receipt) bool { return r.JWS == jws }) {
			t.Errorf("the answer bears %s, which is not kept", jws)
		}
	}
}

// TestAttachNothing has answers pass as they are where their receipts are for nobody,
// and where none can be signed in time.
func TestAttachNothing(t *testing.T) {
	to := peer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, toolResult)
	})
	for name, tune := range map[string]func(*evidence.Options){
		"strict": func(o *evidence.Options) { o.Privacy = evidence.Strict },
		"closed": func(*evidence.Options) {},
	} {
		f := newFile(t, "https://agent.example.com", tune)
		if name == "closed" {
			f.stop()
		}
		s := newSidecar(t, "agent.example.com", "http://"+to, f.tune, attaching)
		if _, body := post(t, http.DefaultClient, s.ingress.URL+"/mcp", call, benchMCP); body != toolResult {
			t.Errorf("%s: %s", name, body)
		}
		s.handled.wait(t)
		s.wantSeries(t, `wopproxy_receipts_unattached_total{reason="unsigned"}`, 1)
	}
}

// TestAttachLeavesWhatIsSlow has an answer that takes its time pass as it comes.
func TestAttachLeavesWhatIsSlow(t *testing.T) {
	read := make(chan struct{})
	to := peer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, toolResult[:10])
		_ = http.NewResponseController(w).Flush()
		select {
		case <-read:
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, toolResult[10:])
	})
	f := newFile(t, "https://agent.example.com")
	s := newSidecar(t, "agent.example.com", "http://"+to, f.tune, attaching, func(_ *Options, p *Policy) { p.BodyPatience = 1 })
	resp, err := http.Post(s.ingress.URL+"/chat", "application/json", strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	begin := make([]byte, 10)
	if _, err := io.ReadFull(resp.Body, begin); err != nil {
		t.Fatal(err)
	}
	close(read)
	rest, err := io.ReadAll(resp.Body)
	if err != nil || string(begin)+string(rest) != toolResult {
		t.Errorf("%s%s, %v", begin, rest, err)
	}
	s.handled.wait(t)
	s.wantSeries(t, `wopproxy_unread_documents_total{document="answer",reason="slow"}`, 1)
}

// TestAttachHoldsNothing has answers that can bear no receipt pass as they come.
func TestAttachHoldsNothing(t *testing.T) {
	for _, tt := range []struct {
		name, body string
		privacy    evidence.Privacy
		why        unattached
	}{
		{"strict", call, evidence.Strict, unattachedUnsigned},
		{"a batch", "[" + call + "]", evidence.Balanced, unattachedNoPlace},
	} {
		t.Run(tt.name, func(t *testing.T) {
			read := make(chan struct{})
			to := peer(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, toolResult[:10])
				_ = http.NewResponseController(w).Flush()
				select {
				case <-read:
				case <-r.Context().Done():
				}
				_, _ = io.WriteString(w, toolResult[10:])
			})
			f := newFile(t, "https://agent.example.com", func(o *evidence.Options) { o.Privacy = tt.privacy })
			s := newSidecar(t, "agent.example.com", "http://"+to, f.tune, attaching, func(_ *Options, p *Policy) { p.BodyPatience = patience })
			resp, err := http.Post(s.ingress.URL+"/mcp", "application/json", strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			begin := make([]byte, 10)
			if _, err := io.ReadFull(resp.Body, begin); err != nil {
				t.Fatal(err)
			}
			close(read)
			if rest, err := io.ReadAll(resp.Body); err != nil || string(begin)+string(rest) != toolResult {
				t.Errorf("%s%s, %v", begin, rest, err)
			}
			s.handled.wait(t)
			s.wantSeries(t, fmt.Sprintf("wopproxy_receipts_unattached_total{reason=%q}", tt.why), 1)
			s.wantSeries(t, `wopproxy_unread_documents_total{document="answer",reason="slow"}`, 0) // nobody has waited for more
		})
	}
}

// TestAttachLeavesRoom has an answer that would be too long to be read, with its
// receipt, pass without it, and be learned from.
func TestAttachLeavesRoom(t *testing.T) {
	answer := `{"jsonrpc":"2.0","id":1,"result":{"task":{"id":"` + askedTask + `","status":{"state":"TASK_STATE_COMPLETED"},"artifacts":[{"artifactId":"` + strings.Repeat("x", 3600) + `"}]}}}`
	to := peer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answer)
	})
	f := newFile(t, "https://agent.example.com")
	s := newSidecar(t, "agent.example.com", "http://"+to, f.tune, attaching, func(_ *Options, p *Policy) { p.InspectedBody = 4096 })
	if _, body := post(t, http.DefaultClient, s.ingress.URL+"/a2a", askAgent, traceable); body != answer {
		t.Errorf("the answer of %d bytes has %d", len(answer), len(body))
	}
	s.handled.wait(t)
	s.wantSeries(t, `wopproxy_receipts_unattached_total{reason="too-long"}`, 1)
	if l := s.recorded(t)[0]; l.Alias != askedTask {
		t.Errorf("the run is known as %q, want %q", l.Alias, askedTask)
	}
}

// TestAttachBreaks has an answer that breaks off still break off, and be no receipt's.
func TestAttachBreaks(t *testing.T) {
	to := peer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", fmt.Sprint(len(toolResult)))
		_, _ = io.WriteString(w, toolResult[:10])
	})
	f := newFile(t, "https://agent.example.com")
	s := newSidecar(t, "agent.example.com", "http://"+to, f.tune, attaching)
	resp, err := http.Post(s.ingress.URL+"/mcp", "application/json", strings.NewReader(call))
	if err == nil {
		_, err = io.ReadAll(resp.Body)
		resp.Body.Close()
	}
	if err == nil {
		t.Error("the answer is whole")
	}
	s.handled.wait(t)
	f.stop()
	if receipts, _ := f.of(t, s.recorded(t)[0].Workflow); !slices.Equal(toldOf(receipts), []string{"ingress mcp 0: invoked unreachable"}) {
		t.Errorf("told %v", toldOf(receipts))
	}
	s.wantSeries(t, `wopproxy_unread_documents_total{document="answer",reason="cut-off"}`, 1)
}

// TestAttachGRPC has the trailers of calls over gRPC bear their receipts.
func TestAttachGRPC(t *testing.T) {
	for _, tt := range []struct {
		name   string
		does   func(context.Context) (a2apb.TaskState, error)
		stream bool
		told   string
		why    unattached
	}{
		{"ends", func(context.Context) (a2apb.TaskState, error) { return a2apb.TaskState_TASK_STATE_COMPLETED, nil }, false, "ingress a2a 0: completed ongoing, invoked ok", ""},
		{"goes on", func(context.Context) (a2apb.TaskState, error) { return a2apb.TaskState_TASK_STATE_WORKING, nil }, false, "ingress a2a 0: invoked ongoing, working ongoing", ""},
		{"fails", func(context.Context) (a2apb.TaskState, error) { return 0, status.Error(codes.Internal, "no") }, false, "ingress a2a 0: invoked protocol_error", unattachedError},
		{"has one", func(ctx context.Context) (a2apb.TaskState, error) {
			return a2apb.TaskState_TASK_STATE_COMPLETED, grpc.SetTrailer(ctx, metadata.Pairs("peac-receipt", "x"))
		}, false, "ingress a2a 0: completed ongoing, invoked ok", unattachedCarried},
		{"has one in its head", func(ctx context.Context) (a2apb.TaskState, error) {
			return a2apb.TaskState_TASK_STATE_COMPLETED, grpc.SetHeader(ctx, metadata.Pairs("peac-receipt", "x"))
		}, false, "ingress a2a 0: completed ongoing, invoked ok", unattachedCarried},
		{"streams", func(context.Context) (a2apb.TaskState, error) { return a2apb.TaskState_TASK_STATE_COMPLETED, nil }, true, "", unattachedUnsigned},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFile(t, "https://agent.example.com")
			a, s := newGRPCSidecar(t, "agent.example.com", f.tune, attaching)
			a.do = func(ctx context.Context, _ *a2apb.Message) (a2apb.TaskState, error) { return tt.does(ctx) }
			c := a2apb.NewA2AServiceClient(dialGRPC(t, s.ingress.URL))
			request := &a2apb.SendMessageRequest{Message: &a2apb.Message{MessageId: "m", Parts: []*a2apb.Part{{Content: &a2apb.Part_Text{Text: "go"}}}}}
			var trailer metadata.MD
			var err error
			if tt.stream {
				var stream grpc.ServerStreamingClient[a2apb.StreamResponse]
				if stream, err = c.SendStreamingMessage(t.Context(), request); err == nil {
					_, err = drain(stream, err)
					trailer = stream.Trailer()
				}
			} else {
				_, err = c.SendMessage(t.Context(), request, grpc.Trailer(&trailer))
			}
			if (err != nil) != (tt.why == unattachedError) {
				t.Fatal(err)
			}
			s.handled.wait(t)
			f.stop()
			workflow := s.recorded(t)[0].Workflow
			receipts, _ := f.of(t, workflow)
			if tt.told != "" && !slices.Equal(toldOf(receipts), []string{tt.told}) {
				t.Errorf("told %v, want %s", toldOf(receipts), tt.told)
			}
			borne := trailer["peac-receipt"]
			if tt.why != "" {
				s.wantSeries(t, fmt.Sprintf("wopproxy_receipts_unattached_total{reason=%q}", tt.why), 1)
				if len(borne) > 0 && borne[0] != "x" || len(borne) > 1 || trailer["peac-receipt-type"] != nil {
					t.Errorf("trailers %v", trailer)
				}
				return
			}
			s.wantSeries(t, `wopproxy_receipts_attached_total{carrier="grpc"}`, 1)
			if len(borne) != 1 || !slices.Equal(trailer["peac-receipt-type"], []string{"interaction-record+jwt"}) {
				t.Errorf("trailers %v", trailer)
			}
			checkBorne(t, f, workflow, borne)
		})
	}
}

// TestAttachBetweenHosts has a host be told of the receipts of another by its answers:
// those of its own calls refer to them, and it puts none on what it is answered.
func TestAttachBetweenHosts(t *testing.T) {
	h := newTwoHosts(t, attaching, attaching)
	workflow := h.a.recorded(t)[0].Workflow
	ofB, _, err := h.fb.Receipts(t.Context(), workflow, "", 100)
	if err != nil {
		t.Fatal(err)
	}
	refs := map[any]bool{}
	for _, r := range ofB {
		refs[peac.ReceiptRef(r.JWS)] = true
	}
	ofA, _ := h.fa.of(t, workflow)
	var told []string
	for _, r := range ofA {
		action, _ := r.Claims.Extensions[peac.ActionGroup].(map[string]any)
		exchange := r.Claims.Extensions[peac.ExchangeGroup].(map[string]any)
		if ref := action["upstream_artifact_ref"]; refs[ref] {
			told = append(told, fmt.Sprint(exchange["direction"], " ", exchange["protocol"], " ", exchange["outcome"]))
		} else if ref != nil {
			t.Errorf("%v is no receipt of B's", ref)
		}
	}
	if want := []string{"egress mcp ok"}; !slices.Equal(told, want) {
		t.Errorf("of A's receipts %v refer to B's, want those of %v", told, want)
	}
	h.b.wantSeries(t, `wopproxy_receipts_attached_total{carrier="mcp"}`, 1)
	h.a.wantSeries(t, `wopproxy_receipts_attached_total{carrier="mcp"}`, 0)
}

// TestAttachBesideAnother has a receipt of ours refer to the one that it stands beside,
// and none be taken for another's that is ours.
func TestAttachBesideAnother(t *testing.T) {
	other := peac.ReceiptRef("another")
	to := peer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"result":{"message":{"messageId":"m","metadata":{%q:{"carriers":[{"receipt_ref":%q}]}}}}}`, peac.TraceabilityExtension, other)
	})
	reg := prometheus.NewRegistry()
	f := newFile(t, "https://agent.example.com", func(o *evidence.Options) { o.Registerer = reg })
	s := newSidecar(t, "agent.example.com", "http://"+to, f.tune, attaching)
	post(t, http.DefaultClient, s.ingress.URL+"/a2a", askAgent, traceable)
	s.handled.wait(t)
	f.stop()
	receipts, _ := f.of(t, s.recorded(t)[0].Workflow)
	if len(receipts) != 1 {
		t.Fatalf("%d receipts, want 1", len(receipts))
	}
	if got := receipts[0].Claims.Extensions[peac.ActionGroup].(map[string]any)["upstream_artifact_ref"]; got != other {
		t.Errorf("it refers to %v, want %s", got, other)
	}
	found := (&sidecar{reg: reg}).series(t)
	if found[`wopproxy_evidence_upstream_total{verdict="reference"}`] != 1 || found[`wopproxy_evidence_limit_hits_total{limit="upstream"}`] != 0 {
		t.Errorf("counted: %v", found)
	}
}
