package proxy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/ancestry/ancestrytest"
)

// pipe is one stdio server and its client, both played by a test.
type pipe struct {
	t       testing.TB
	client  end
	server  end
	carried chan struct{} // closed when Stdio has returned
}

// end is where one of the two reads and writes.
type end struct {
	in  *bufio.Reader
	out io.WriteCloser
	r   io.ReadCloser // beneath in
}

// newPipe has p stand between the two until the end of the test.
func newPipe(t testing.TB, p *Proxy, env Environment) *pipe {
	t.Helper()
	fromClient, client := io.Pipe()
	toClient, clientOut := io.Pipe()
	fromServer, server := io.Pipe()
	toServer, serverIn := io.Pipe()
	s := &pipe{
		t:       t,
		client:  end{bufio.NewReader(toClient), client, toClient},
		server:  end{bufio.NewReader(toServer), server, toServer},
		carried: make(chan struct{}),
	}
	go func() {
		defer close(s.carried)
		p.Stdio(Pipes{FromClient: fromClient, ToClient: clientOut, FromServer: fromServer, ToServer: serverIn}, env)
	}()
	t.Cleanup(s.end)
	return s
}

// end closes both sides, and waits until all is settled.
func (s *pipe) end() {
	s.client.out.Close()
	_, _ = io.Copy(io.Discard, s.server.in) // to its end
	s.server.out.Close()
	_, _ = io.Copy(io.Discard, s.client.in)
	<-s.carried
}

func (e end) send(t testing.TB, text string) {
	t.Helper()
	if _, err := io.WriteString(e.out, text); err != nil {
		t.Errorf("write %.80q: %v", text, err)
	}
}

func (e end) line(t testing.TB) string {
	t.Helper()
	line, err := e.in.ReadString('\n')
	if err != nil {
		t.Errorf("after %.80q: %v", line, err)
	}
	return line
}

// says sends a line and returns what the other side gets.
func (s *pipe) says(from, to end, line string) string {
	s.t.Helper()
	from.send(s.t, line+"\n")
	return strings.TrimSuffix(to.line(s.t), "\n")
}

func (s *pipe) up(line string) string   { s.t.Helper(); return s.says(s.client, s.server, line) }
func (s *pipe) down(line string) string { s.t.Helper(); return s.says(s.server, s.client, line) }

// TestStdioTranscripts plays the files of testdata/stdio as TestScenarios does
// those beside them. The client's and the server's lines are sent one after the
// other; what the other side gets is compared. "client is refused" are lines that
// come back with an error. \r at the end of a line is written out.
func TestStdioTranscripts(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "stdio", "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := txtar.Format(playTranscript(t, txtar.Parse(want)))
			if *update {
				err = os.WriteFile(file, got, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" && !*update {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func playTranscript(t *testing.T, ar *txtar.Archive) *txtar.Archive {
	if strings.TrimSpace(string(ar.Comment)) == "" {
		t.Error("no prose: which rule does this prove?")
	}
	sc := &scenario{t: t, names: newNames(ar, map[string]string{"UPSTREAM": "unused:1", "PEER": "unused:2", "OTHER": "unused:3"})}
	tune, env := sc.config(""), Environment{}
	out := &txtar.Archive{Comment: ar.Comment}
	add := func(name, text string) {
		out.Files = append(out.Files, txtar.File{Name: name, Data: []byte(text)})
	}
	var p *pipe
	for _, f := range ar.Files {
		text := string(f.Data)
		switch f.Name {
		case "config":
			tune = sc.config(text)
		case "environment":
			for line := range strings.Lines(text) {
				name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
				*map[string]*string{"TRACEPARENT": &env.Traceparent, "TRACESTATE": &env.Tracestate, "BAGGAGE": &env.Baggage}[name] = value
			}
			sc.names.script += text
		case "client", "client is refused", "server":
			if p == nil {
				sc.sidecar = newSidecar(t, "agent.example.com", "http://127.0.0.1:1", tune)
				p = newPipe(t, sc.sidecar.Proxy, env)
			}
		default:
			continue // a result, made anew
		}
		add(f.Name, text)
		from, to, result := p.ends(f.Name)
		if result == "" {
			continue
		}
		sc.names.script += text
		seen := ""
		for line := range strings.Lines(text) {
			line, err := sc.names.show(strings.TrimSuffix(line, "\n"))
			if err != nil {
				t.Fatalf("%s: %v", f.Name, err)
			}
			got := p.says(from, to, strings.ReplaceAll(line, `\r`, "\r"))
			seen += sc.names.hide(strings.ReplaceAll(got, "\r", `\r`)) + "\n"
		}
		add(result, seen)
	}
	p.end()
	add("links", sc.names.hide(sc.links()))
	add("metrics", sc.metrics())
	return out
}

// ends tells who speaks in a section, who gets it, and how that is called.
func (s *pipe) ends(section string) (from, to end, result string) {
	switch section {
	case "client":
		return s.client, s.server, "server gets"
	case "client is refused":
		return s.client, s.client, "client gets"
	case "server":
		return s.server, s.client, "client gets"
	}
	return end{}, end{}, ""
}

// newLine is a proxy for tests that need no more than one.
func newLine(t testing.TB, tune ...func(*Options, *Policy)) *sidecar {
	t.Helper()
	return newSidecar(t, "agent.example.com", "http://127.0.0.1:1", tune...)
}

// TestStdioLongLines: what is longer than the limit passes byte by byte, before
// its end has come, and what follows it is read again.
func TestStdioLongLines(t *testing.T) {
	const limit = 100_000
	s := newLine(t, func(_ *Options, p *Policy) { p.StdioLine = limit })
	p := newPipe(t, s.Proxy, Environment{})
	request := func(n int) string {
		head, tail := `{"jsonrpc":"2.0","method":"ping","id":1,"params":{"x":"`, `"}}`
		return head + strings.Repeat("a", n-len(head)-len(tail)) + tail
	}
	traced := `{"jsonrpc":"2.0","method":"tools/call","id":2,"params":{"name":"x"}}`
	for _, tt := range []struct {
		name   string
		length int
		hits   float64
	}{{"at the limit", limit, 0}, {"one byte more", limit + 1, 1}, {"seven times as long", 7 * limit, 2}} {
		long := request(tt.length)
		go p.client.send(t, long+"\r\n")
		if got := p.server.line(t); got != long+"\r\n" {
			t.Errorf("%s: %d bytes became %d", tt.name, len(long)+2, len(got))
		}
		if got := s.series(t)[hit(limitLine)]; got != tt.hits {
			t.Errorf("%s: %v lines counted, want %v", tt.name, got, tt.hits)
		}
		if got := p.up(traced); !strings.Contains(got, `"traceparent"`) {
			t.Errorf("after a line %s: %s", tt.name, got)
		}
	}

	// The rest of this line never comes, and the other direction goes on.
	begin := request(3 * limit)[:2*limit]
	go func() { _, _ = io.WriteString(p.server.out, begin) }() // to the end of the test
	if _, err := io.ReadFull(p.client.in, make([]byte, limit)); err != nil {
		t.Errorf("the beginning of a long line is held back: %v", err)
	}
	p.up(traced)
}

// TestStdioLastLine: a line that no newline ends is still a message.
func TestStdioLastLine(t *testing.T) {
	s := newLine(t)
	p := newPipe(t, s.Proxy, Environment{})
	p.client.send(t, `{"jsonrpc":"2.0","method":"tools/call","id":2,"params":{"name":"x"}}`)
	p.client.out.Close()
	got, err := io.ReadAll(p.server.in)
	if err != nil || !bytes.Contains(got, []byte(`"traceparent"`)) || bytes.ContainsRune(got, '\n') {
		t.Errorf("the server got %q, %v", got, err)
	}
	p.server.send(t, `{"jsonrpc":"2.0","id":2,"result":{}}`)
	p.server.out.Close()
	if got, err := io.ReadAll(p.client.in); err != nil || string(got) != `{"jsonrpc":"2.0","id":2,"result":{}}` {
		t.Errorf("the client got %q, %v", got, err)
	}
	<-p.carried
	if n := s.series(t)[`mcp_server_operation_duration_seconds_count{mcp_method_name="tools/call"}`]; n != 1 {
		t.Errorf("%v operations counted, want the one", n)
	}
}

// chunks notes each write on its own.
type chunks struct {
	mu  sync.Mutex
	all []string
}

func (c *chunks) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, string(b))
	return len(b), nil
}

func (*chunks) Close() error { return nil }

// TestStdioWritesWholeLines: a line and its end go out in one write, whatever the
// chunks that they came in.
func TestStdioWritesWholeLines(t *testing.T) {
	s := newLine(t)
	var toServer, toClient chunks
	long := `{"jsonrpc":"2.0","method":"x","params":{"a":"` + strings.Repeat("a", 200<<10) + `"}}` + "\n"
	text := "\n" + long + "{}\r\n" + "end"
	read, write := io.Pipe()
	go func() {
		for rest := text; len(rest) > 0; {
			n := min(len(rest), 1000)
			_, _ = io.WriteString(write, rest[:n])
			rest = rest[n:]
		}
		write.Close()
	}()
	s.Stdio(Pipes{FromClient: io.NopCloser(strings.NewReader(text)), ToServer: &toServer, FromServer: read, ToClient: &toClient}, Environment{})
	want := []string{"\n", long, "{}\r\n", "end"}
	if diff := cmp.Diff(want, toClient.all); diff != "" {
		t.Errorf("writes to the client (-want +got):\n%s", diff)
	}
	eventually(t, "the other direction", func() bool {
		toServer.mu.Lock()
		defer toServer.mu.Unlock()
		return reflect.DeepEqual(want, toServer.all)
	})
}

// TestStdioBrokenPipes: an end that goes away is gone for the other side, too,
// as it would be without us.
func TestStdioBrokenPipes(t *testing.T) {
	line := `{"jsonrpc":"2.0","method":"notifications/message"}` + "\n"
	writeUntilBroken := func(t *testing.T, w io.Writer) {
		t.Helper()
		eventually(t, "a broken pipe", func() bool {
			_, err := io.WriteString(w, line)
			return err != nil
		})
	}
	t.Run("client stops reading", func(t *testing.T) {
		p := newPipe(t, newLine(t).Proxy, Environment{})
		p.client.r.Close()
		writeUntilBroken(t, p.server.out)
	})
	t.Run("server stops reading", func(t *testing.T) {
		p := newPipe(t, newLine(t).Proxy, Environment{})
		p.server.r.Close()
		writeUntilBroken(t, p.client.out)
		p.down(strings.TrimSpace(line)) // it may still speak
	})
	t.Run("client has said all", func(t *testing.T) {
		p := newPipe(t, newLine(t).Proxy, Environment{})
		p.client.out.Close()
		if rest, err := io.ReadAll(p.server.in); err != nil || len(rest) > 0 {
			t.Errorf("the server reads %q, %v, want its end", rest, err)
		}
		p.down(strings.TrimSpace(line))
	})
	t.Run("server has said all", func(t *testing.T) {
		p := newPipe(t, newLine(t).Proxy, Environment{})
		p.server.out.Close()
		if rest, err := io.ReadAll(p.client.in); err != nil || len(rest) > 0 {
			t.Errorf("the client reads %q, %v, want its end", rest, err)
		}
		<-p.carried
		p.up(strings.TrimSpace(line)) // it may still listen
	})
}

const exchanged = `wopproxy_exchanges_total{direction=%q,outcome=%q,protocol="mcp"}`

// TestStdioEnd: what is open when the server ends is settled, by who went first.
func TestStdioEnd(t *testing.T) {
	for _, tt := range []struct {
		name        string
		clientFirst bool
		want        outcome
	}{{"the server dies", false, outcomeUpstream}, {"the client goes", true, outcomeClient}} {
		t.Run(tt.name, func(t *testing.T) {
			s := newLine(t)
			p := newPipe(t, s.Proxy, Environment{})
			p.up(`{"jsonrpc":"2.0","method":"tools/call","id":1,"params":{"name":"x"}}`)
			p.up(`{"jsonrpc":"2.0","method":"ping","id":"1"}`)
			p.down(`{"jsonrpc":"2.0","method":"roots/list","id":1}`)
			if n := len(s.Live()); n != 1 {
				t.Errorf("%d runs live, want 1", n)
			}
			if tt.clientFirst {
				p.client.out.Close()
				_, _ = io.Copy(io.Discard, p.server.in)
			}
			p.server.out.Close()
			<-p.carried
			series := s.series(t)
			if in, out := series[fmt.Sprintf(exchanged, "ingress", tt.want)], series[fmt.Sprintf(exchanged, "egress", tt.want)]; in != 2 || out != 1 {
				t.Errorf("%v calls in and %v out ended as %s, want 2 and 1", in, out, tt.want)
			}
			if n := len(s.Live()); n != 0 {
				t.Errorf("%d runs live, want none", n)
			}
		})
	}
}

// TestStdioCancelled: a request that was cancelled is over when its grace is,
// unless it is answered before.
func TestStdioCancelled(t *testing.T) {
	for _, answered := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newTestProxy(t, ancestry.NewMemory())
			p := newPipe(t, s.Proxy, Environment{})
			p.up(`{"jsonrpc":"2.0","method":"tools/call","id":1,"params":{"name":"x"}}`)
			p.up(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
			p.up(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
			p.up(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
			time.Sleep(cancelGrace - 1)
			synctest.Wait()
			if n := len(s.Live()); n != 1 {
				t.Errorf("within the grace: %d runs live, want 1", n)
			}
			want := outcomeClient
			if answered {
				want = outcomeAnswered
				p.down(`{"jsonrpc":"2.0","id":1,"result":{}}`)
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if n := len(s.Live()); n != 0 {
				t.Errorf("after the grace: %d runs live, want none", n)
			}
			// The three notifications are exchanges, too.
			n := s.series(t)[fmt.Sprintf(exchanged, "ingress", want)]
			if answered {
				n -= 3
			}
			if n != 1 {
				t.Errorf("answered = %v: %v exchanges %s, want 1", answered, n, want)
			}
			p.end()
		})
	}
}

// newTestProxy is a Proxy without listeners, for the bubbles of synctest.
func newTestProxy(t testing.TB, store ancestry.Store, tune ...func(*Options, *Policy)) *sidecar {
	t.Helper()
	return assemble(t, store, "agent.example.com", "http://127.0.0.1:1", tune...)
}

// TestStdioCommitWait: an answer waits for its link, but no answer makes those
// behind it wait longer than the commit timeout from when its call came.
func TestStdioCommitWait(t *testing.T) {
	const timeout = 100 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		store := ancestrytest.Memory()
		store.RecordHook = func([]ancestry.Link) error { time.Sleep(time.Hour); return nil }
		s := newTestProxy(t, store, func(_ *Options, p *Policy) { p.CommitTimeout = timeout })
		p := newPipe(t, s.Proxy, Environment{})
		began := time.Now()
		for i := range 50 {
			p.up(fmt.Sprintf(`{"jsonrpc":"2.0","method":"tools/call","id":%d,"params":{"name":"x"}}`, i))
		}
		for i := range 50 {
			p.down(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{}}`, i))
			if took := time.Since(began); took != timeout {
				t.Fatalf("answer %d came after %v, want %v", i, took, timeout)
			}
		}
		if n := s.series(t)[waitsOf(commitTimeout)]; n != 50 {
			t.Errorf("%v waits ran out, want 50", n)
		}
		p.end()
		time.Sleep(2 * time.Hour) // let the commit end
	})
}

// TestStdioTooMany: calls beyond the bound pass, and count as live until their
// time is over, because their end is not seen.
func TestStdioTooMany(t *testing.T) {
	s := newLine(t, func(o *Options, _ *Policy) { o.MaxRuns = 2 })
	p := newPipe(t, s.Proxy, Environment{})
	for i := range 3 {
		if got := p.up(fmt.Sprintf(`{"jsonrpc":"2.0","method":"ping","id":%d}`, i)); !strings.Contains(got, "ping") {
			t.Errorf("call %d came as %q", i, got)
		}
	}
	if n := s.series(t)[hit(limitRuns)]; n != 1 {
		t.Errorf("%v calls counted, want 1", n)
	}
	for i := range 3 {
		p.down(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{}}`, i))
	}
}

// TestStdioConcurrent: many calls in flight, in both directions, each with the
// context of its own run and no other.
func TestStdioConcurrent(t *testing.T) {
	const calls = 64
	s := newLine(t)
	p := newPipe(t, s.Proxy, Environment{})
	type message struct {
		ID     json.Number
		Method string
		Params struct {
			Name string
			Meta struct{ Traceparent, Tracestate string } `json:"_meta"`
		}
	}
	serve := func() { // asks the client in the middle of each call, and answers when it is answered
		contexts := map[string]message{}
		var answers int
		for answers < calls {
			line, err := p.server.in.ReadString('\n')
			if err != nil {
				t.Error(err)
				return
			}
			var m message
			_ = json.Unmarshal([]byte(line), &m)
			if m.Method != "" {
				contexts[string(m.ID)] = m
				go p.server.send(t, fmt.Sprintf(`{"jsonrpc":"2.0","method":"sampling/createMessage","id":%s,"params":{"name":%q,"_meta":{"traceparent":%q,"tracestate":%q}}}`+"\n",
					m.ID, m.Params.Name, m.Params.Meta.Traceparent, m.Params.Meta.Tracestate))
				continue
			}
			answers++
			go p.server.send(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`+"\n", m.ID))
		}
	}
	go serve()
	trace := func(i int) string { return fmt.Sprintf("%032x", i+1) }
	for i := range calls {
		go p.client.send(t, fmt.Sprintf(`{"jsonrpc":"2.0","method":"tools/call","id":%d,"params":{"name":%q,"_meta":{"traceparent":"00-%s-00f067aa0ba902b7-01"}}}`+"\n", i, trace(i), trace(i)))
	}
	for answers := 0; answers < calls; {
		var m message
		if err := json.Unmarshal([]byte(p.client.line(t)), &m); err != nil {
			t.Fatal(err)
		}
		if m.Method == "" {
			answers++
			continue
		}
		if got := m.Params.Meta.Traceparent; !strings.Contains(got, m.Params.Name) {
			t.Errorf("the question of %s bears %s", m.Params.Name, got)
		}
		go p.client.send(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`+"\n", m.ID))
	}
	if n := s.series(t)[`wopproxy_attributions_total{evidence="trace-state"}`]; n != calls {
		t.Errorf("%v questions attributed, want %d", n, calls)
	}
	if n := len(s.Live()); n != 0 {
		t.Errorf("%d runs live, want none", n)
	}
}

// FuzzStdio holds the promise against any bytes, in either direction: as many
// lines, each as it was, but for params._meta of requests and notifications.
func FuzzStdio(f *testing.F) {
	files, _ := filepath.Glob(filepath.Join("testdata", "stdio", "*.txtar"))
	for _, file := range files {
		ar, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, section := range ar.Files {
			f.Add(section.Data)
		}
	}
	f.Add([]byte("{}\r\n\r\n[]\nnull\n" + strings.Repeat("a", 300) + "\n{\"jsonrpc\":\"2.0\",\"method\":\"tools/call\",\"id\":1}"))
	s := newTestProxy(f, ancestry.NewMemory(), func(_ *Options, p *Policy) { p.StdioLine = 200 })
	env := Environment{Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
	f.Fuzz(func(t *testing.T, in []byte) {
		var toServer, toClient chunks
		s.Stdio(Pipes{
			FromClient: io.NopCloser(bytes.NewReader(nil)), ToServer: &toServer,
			FromServer: io.NopCloser(bytes.NewReader(in)), ToClient: &toClient,
		}, env)
		compareLines(t, in, strings.Join(toClient.all, ""))
		x := &stdio{p: s.Proxy, client: &lineWriter{w: &toClient}, ambient: env.context()}
		x.calls = map[direction]map[string]*open{ingress: {}, egress: {}}
		toServer.all = nil
		x.pump(ingress, bytes.NewReader(in), &lineWriter{w: &toServer})
		compareLines(t, in, strings.Join(toServer.all, ""))
		x.close(outcomeClient)
	})
}

func compareLines(t *testing.T, in []byte, out string) {
	t.Helper()
	want, got := strings.SplitAfter(string(in), "\n"), strings.SplitAfter(out, "\n")
	if len(want) != len(got) {
		t.Fatalf("%d lines became %d:\n%q\n%q", len(want), len(got), in, out)
	}
	for i := range want {
		if want[i] == got[i] {
			continue
		}
		if a, b := withoutMeta(want[i]), withoutMeta(got[i]); a == nil || !reflect.DeepEqual(a, b) {
			t.Errorf("line %q became %q", want[i], got[i])
		}
	}
}

// withoutMeta decodes a request or notification but for its params._meta, and
// params if there is nothing else in it; nil for anything else.
func withoutMeta(line string) map[string]any {
	d := json.NewDecoder(strings.NewReader(line))
	d.UseNumber()
	var m map[string]any
	if d.Decode(&m) != nil || m["method"] == nil || m["result"] != nil || m["error"] != nil {
		return nil
	}
	if params, ok := m["params"].(map[string]any); ok {
		if delete(params, "_meta"); len(params) == 0 {
			delete(m, "params")
		}
	}
	return m
}

// TestStdioSpans: a call and what the server asks in it are spans below each
// other, as over HTTP, and say that they came through a pipe.
func TestStdioSpans(t *testing.T) {
	exporter, tune := traces()
	s := newLine(t, tune)
	const env = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb"
	p := newPipe(t, s.Proxy, Environment{Traceparent: "00-" + env + "-01"})
	var seen struct {
		Params struct {
			Meta struct{ Traceparent string } `json:"_meta"`
		}
	}
	if err := json.Unmarshal([]byte(p.up(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search","_meta":{"traceparent":"`+traced+`"}}}`)), &seen); err != nil {
		t.Fatal(err)
	}
	p.down(`{"jsonrpc":"2.0","id":1,"method":"roots/list"}`)
	p.up(`{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no roots"}}`)
	p.down(`{"jsonrpc":"2.0","id":1,"result":{"isError":true}}`)
	var got []string
	for _, span := range exporter.GetSpans() {
		got = append(got, describeSpan(span))
	}
	server := seen.Params.Meta.Traceparent[3:52]
	want := []string{
		"client roots/list\nparent " + server + " remote=true\nerror.type=-32601\njsonrpc.request.id=1\nmcp.method.name=roots/list\nnetwork.transport=pipe\n" +
			"rpc.response.status_code=-32601\nwopproxy.attribution=single-flight\nwopproxy.run.id=RUN\nstatus Error no roots\n",
		"server tools/call search\nparent " + traced[3:52] + " remote=true\nlink " + env + "\nerror.type=tool_error\ngen_ai.operation.name=execute_tool\n" +
			"gen_ai.tool.name=search\njsonrpc.request.id=1\nmcp.method.name=tools/call\nnetwork.transport=pipe\nwopproxy.run.id=RUN\nstatus Error \n",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
}
