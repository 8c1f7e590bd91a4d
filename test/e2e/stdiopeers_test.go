package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// roleVariable makes this test binary a peer of the program.
const roleVariable = "WOPPROXY_E2E_ROLE"

// play is what the test binary does in a role.
func play(role string) int {
	if role != "stdio-server" {
		fmt.Fprintln(os.Stderr, "no such role:", role)
		return 1
	}
	if err := stdioServer().Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// stdioServer is a server of the official SDK that asks its client for all that
// there is. Each tool answers with the _meta that it was called with.
func stdioServer() *mcp.Server {
	srv := mcp.NewServer(&mcp.Implementation{Name: "tools", Version: "1"}, nil)
	add := func(name string, do func(context.Context, *mcp.CallToolRequest) error) {
		srv.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)},
			func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				if err := do(ctx, r); err != nil {
					return nil, err
				}
				meta, err := json.Marshal(r.Params.Meta)
				return text(string(meta)), err
			})
	}
	question := &mcp.ElicitParams{Message: "really?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{}}`)}
	add("echo", func(context.Context, *mcp.CallToolRequest) error { return nil })
	add("ask", func(ctx context.Context, r *mcp.CallToolRequest) error {
		_, roots := r.Session.ListRoots(ctx, nil)
		_, elicit := r.Session.Elicit(ctx, question)
		return errors.Join(r.Session.Ping(ctx, nil), roots, elicit)
	})
	// A host that hands on what it was given, as OpenTelemetry does.
	add("sample", func(ctx context.Context, r *mcp.CallToolRequest) error {
		meta := mcp.Meta{}
		for _, key := range []string{"traceparent", "tracestate"} {
			meta[key] = r.Params.Meta[key]
		}
		_, err := r.Session.CreateMessage(ctx, &mcp.CreateMessageParams{Meta: meta, MaxTokens: 1, Messages: []*mcp.SamplingMessage{{Role: "user", Content: &mcp.TextContent{Text: "?"}}}})
		return err
	})
	add("progress", func(ctx context.Context, r *mcp.CallToolRequest) error {
		return r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: 1})
	})
	add("hang", func(ctx context.Context, _ *mcp.CallToolRequest) error {
		fmt.Fprintln(os.Stderr, "hanging")
		<-ctx.Done()
		fmt.Fprintln(os.Stderr, "cancelled")
		return ctx.Err()
	})
	add("die", func(context.Context, *mcp.CallToolRequest) error {
		fmt.Fprintln(os.Stderr, "dying")
		os.Exit(9)
		return nil
	})
	return srv
}

// stdioSession is a client of the official SDK, and a server that it has started
// inside of wopproxy.
type stdioSession struct {
	*mcp.ClientSession
	*sidecar // its admin listener, and the program as far as the test has to do with it
	command  *exec.Cmd
	store    string
	stderr   *logBook

	mu   sync.Mutex
	seen []question
}

// question is what the server has sent to its client.
type question struct {
	method string
	meta   mcp.Meta
}

// newStdioSession starts a server and connects to it, in the given revision.
func newStdioSession(t testing.TB, revision string, env []string, overrides ...settings) *stdioSession {
	t.Helper()
	s := &stdioSession{sidecar: &sidecar{hostID: "tools.example.com"}, store: t.TempDir(), stderr: newLogBook()}
	s.file = filepath.Join(t.TempDir(), "wopproxy.yaml")
	values := settings{
		"host.id": s.hostID, "host.wellKnownUrl": "https://tools.example.com/.well-known/openwop",
		"ingress.upstream":       "http://127.0.0.1:1",
		"ancestry.commitTimeout": "10s", "attribution.quarantine": "0s",
	}
	for _, o := range overrides {
		maps.Copy(values, o)
	}
	s.configure(t, values)
	log := filepath.Join(t.TempDir(), "log")
	s.command = wrapped([]string{"-config", s.file, "-store", s.store, "-admin", "127.0.0.1:0", "-log", log}, os.Args[0])
	s.command.Env = append(append(s.command.Env, roleVariable+"=stdio-server"), env...)
	s.command.Stderr = s.stderr
	client := mcp.NewClient(&mcp.Implementation{Name: "client", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept"}, nil
		},
		CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			return &mcp.CreateMessageResult{Role: "assistant", Model: "m", Content: &mcp.TextContent{Text: "!"}}, nil
		},
	})
	client.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, r mcp.Request) (mcp.Result, error) {
			s.mu.Lock()
			s.seen = append(s.seen, question{method, r.GetParams().GetMeta()})
			s.mu.Unlock()
			return next(ctx, method, r)
		}
	})
	cs, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: s.command, TerminateDuration: patience}, &mcp.ClientSessionOptions{ProtocolVersion: revision})
	if err != nil {
		t.Fatalf("connect: %v\n%s", err, s.stderr)
	}
	s.ClientSession = cs
	t.Cleanup(func() { _ = cs.Close() }) // the test itself judges how it ends
	if got := cs.InitializeResult().ProtocolVersion; got != revision {
		t.Errorf("protocol version = %s, want %s", got, revision)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	book := newLogBook()
	_, _ = book.Write(text)
	serving, _ := book.find("serving")
	if len(serving) != 1 {
		t.Fatalf("log: %s", text)
	}
	s.admin = fmt.Sprintf("http://%v", serving[0]["admin"])
	return s
}

// wrapped is the program around a command, with the flags given.
func wrapped(flags []string, command ...string) *exec.Cmd {
	cmd := exec.Command(program, append(append(append([]string{"stdio"}, flags...), "--"), command...)...)
	cmd.Env = append(cleanEnv(), "GORACE=atexit_sleep_ms=0")
	return cmd
}

// use calls a tool and returns the _meta that the server saw.
func (s *stdioSession) use(ctx context.Context, tool string, meta mcp.Meta) (map[string]any, error) {
	r, err := s.CallTool(ctx, &mcp.CallToolParams{Name: tool, Meta: meta})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tool, err)
	}
	said := r.Content[0].(*mcp.TextContent).Text
	if r.IsError {
		return nil, fmt.Errorf("%s: %s", tool, said)
	}
	var saw map[string]any
	return saw, json.Unmarshal([]byte(said), &saw)
}

// asked returns what the server has asked the client for, of one method.
func (s *stdioSession) asked(method string) []mcp.Meta {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []mcp.Meta
	for _, a := range s.seen {
		if a.method == method {
			all = append(all, a.meta)
		}
	}
	return all
}

// awaitStderr waits until the server has said something.
func (s *stdioSession) awaitStderr(t testing.TB, line string) {
	t.Helper()
	eventually(t, "the server says "+line, func() bool { return slices.Contains(lines(s.stderr.String()), line) })
}

// waitFor waits for the process of a command, which has to end within patience.
func waitFor(t testing.TB, cmd *exec.Cmd) int {
	t.Helper()
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	select {
	case <-done:
		return cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		_ = cmd.Process.Kill()
		t.Fatalf("%q is still running", cmd.Args)
		return 0
	}
}
