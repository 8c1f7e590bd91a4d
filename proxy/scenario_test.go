package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/wopproxy/wopproxy/ancestry"
)

// A scenario states a rule in prose and proves it on the wire. Its sections
// are played in order:
//
//	config      settings of the sidecar, a line each
//	X request   a request is sent: to the ingress if X begins with "in", to the
//	            egress if it begins with "out"; the next section follows when it
//	            has arrived at the other side
//	X reply     the other side answers it; the next section follows when the
//	            client has read the answer and the sidecar has settled
//	restart     the sidecar goes, and another one takes its place on its store
//
// What comes of it is compared, and written by -update: "X forwarded" is what
// the other side was given, "X answer" what the client got, "links" what is
// recorded in the end, and "metrics" every series that is not zero then.
//
// Ids that vary from run to run are numbered as they turn up: $RUN1, $TRACE1,
// $SPAN1. Those that the script or the prose names stay. $HOST is the tag of this
// host in tracestate, $UPSTREAM its address, $PEER and $OTHER are two servers
// that it may call. All of them may be used in requests and
// replies. Content-Length is filled in where it is missing.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "scenario", "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := txtar.Format(playScenario(t, txtar.Parse(want)))
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

// scenario is the stage that one file is played on.
type scenario struct {
	t       *testing.T
	tune    func(*Options, *Policy)
	store   ancestry.Store
	sidecar *sidecar
	before  []*notebook // of sidecars that were restarted
	host    string      // URL of the host
	names   *names

	arrivals  chan *arrival
	exchanges map[string]*played
}

// arrival is a request that has come to a server of the test, which waits for
// what to reply.
type arrival struct {
	text  string
	reply chan string
}

// played is one exchange of the script.
type played struct {
	arrived *arrival
	answer  chan string
}

func playScenario(t *testing.T, ar *txtar.Archive) *txtar.Archive {
	if strings.TrimSpace(string(ar.Comment)) == "" {
		t.Error("no prose: which rule does this prove?")
	}
	sc := &scenario{
		t: t, store: ancestry.NewMemory(), arrivals: make(chan *arrival),
		exchanges: map[string]*played{},
	}
	sc.tune = sc.config("")
	sc.host = "http://" + peer(t, sc.stage)
	sc.names = newNames(ar, map[string]string{
		"UPSTREAM": strings.TrimPrefix(sc.host, "http://"), "PEER": peer(t, sc.stage), "OTHER": peer(t, sc.stage),
	})

	out := &txtar.Archive{Comment: ar.Comment}
	add := func(name, text string) {
		out.Files = append(out.Files, txtar.File{Name: name, Data: []byte(text)})
	}
	for _, f := range ar.Files {
		name, verb, _ := strings.Cut(f.Name, " ")
		if verb == "forwarded" || verb == "answer" || name == "links" || name == "metrics" {
			continue // results, made anew
		}
		add(f.Name, string(f.Data))
		switch {
		case name == "config":
			sc.tune = sc.config(string(f.Data))
			continue
		case sc.sidecar == nil:
			sc.start()
		}
		switch {
		case name == "restart":
			sc.settle()
			sc.restart()
		case verb == "request":
			if p := sc.send(name, string(f.Data)); p.arrived != nil {
				add(name+" forwarded", sc.names.hide(p.arrived.text))
			} else {
				add(name+" answer", sc.names.hide(receive(t, p.answer, "an answer")))
			}
		case verb == "reply":
			add(name+" answer", sc.names.hide(sc.reply(name, string(f.Data))))
			sc.settle()
		default:
			t.Fatalf("section %q means nothing", f.Name)
		}
	}
	sc.settle()
	add("links", sc.names.hide(sc.links()))
	add("metrics", sc.metrics())
	return out
}

func (sc *scenario) start() {
	sc.sidecar = newSidecarOn(sc.t, sc.store, "agent.example.com", sc.host, sc.tune)
}

// restart puts a new sidecar in the place of the one that ran, as soon as all
// that it had to record is in the store.
func (sc *scenario) restart() {
	old := sc.sidecar.notebook
	for _, l := range old.noted() {
		eventually(sc.t, "the store to have "+string(l.Run), func() bool {
			_, err := sc.store.Lookup(sc.t.Context(), l.Run)
			return err == nil || l.Host != ""
		})
	}
	sc.before = append(sc.before, old)
	sc.start()
}

// stage is every server of the test: it shows what comes and waits for its cue.
func (sc *scenario) stage(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		sc.t.Errorf("body of %s %s: %v", r.Method, r.RequestURI, err)
	}
	a := &arrival{showRequest(r, body), make(chan string, 1)}
	select {
	case sc.arrivals <- a:
	case <-r.Context().Done():
		return
	}
	select {
	case text := <-a.reply:
		resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(text)), r)
		if err != nil {
			sc.t.Errorf("reply %q: %v", text, err)
			return
		}
		maps.Copy(w.Header(), resp.Header)
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	case <-r.Context().Done():
	}
}

// send sends a request and waits until it has arrived or was answered without
// that.
func (sc *scenario) send(name, text string) *played {
	sc.t.Helper()
	p := &played{answer: make(chan string, 1)}
	sc.exchanges[name] = p
	to, host := sc.sidecar.ingress.URL, "agent.example.com"
	if strings.HasPrefix(name, "out") {
		to = sc.sidecar.egress.URL
		host = strings.TrimPrefix(strings.TrimPrefix(to, "http://"), "https://")
		if _, rest, ok := strings.Cut(text, "://"); ok && !strings.Contains(strings.SplitN(text, "://", 2)[0], "_run") {
			host, _, _ = strings.Cut(rest, "/")
		}
	}
	method, _, _ := strings.Cut(text, " ")
	c := dialRaw(sc.t, to)
	text, err := sc.names.show(text)
	if err != nil {
		sc.t.Fatal(err)
	}
	host, err = sc.names.show(host)
	if err != nil {
		sc.t.Fatal(err)
	}
	c.send(complete(text, "Host: "+host))
	go func() { // ends when the sidecar answers, or with the connection
		resp, err := http.ReadResponse(c.Reader, &http.Request{Method: method})
		if err != nil {
			p.answer <- "no answer: " + err.Error() + "\n"
			return
		}
		p.answer <- showResponse(resp)
	}()
	select {
	case p.arrived = <-sc.arrivals:
	case a := <-p.answer:
		p.answer <- a
	case <-time.After(patience):
		sc.t.Fatalf("%s neither arrived nor was answered", name)
	}
	return p
}

// reply lets the other side answer, and returns what the client got.
func (sc *scenario) reply(name, text string) string {
	sc.t.Helper()
	p := sc.exchanges[name]
	if p == nil || p.arrived == nil {
		sc.t.Fatalf("%s has not arrived, so nobody can answer it", name)
	}
	text, err := sc.names.show(text)
	if err != nil {
		sc.t.Fatal(err)
	}
	p.arrived.reply <- crlf(complete(text))
	p.arrived = nil
	return receive(sc.t, p.answer, "the answer to "+name)
}

// settle waits until every exchange but those that wait for their cue is done.
func (sc *scenario) settle() {
	sc.t.Helper()
	waiting := 0
	for _, p := range sc.exchanges {
		if p.arrived != nil {
			waiting++
		}
	}
	eventually(sc.t, "the exchanges to end", func() bool {
		sc.sidecar.handled.mu.Lock()
		defer sc.sidecar.handled.mu.Unlock()
		return sc.sidecar.handled.n == waiting
	})
}

// config reads the settings of a scenario.
func (sc *scenario) config(text string) func(*Options, *Policy) {
	all := func(string) bool { return true }
	isOther := func(to string) bool { return to == sc.names.values["OTHER"] }
	return func(o *Options, p *Policy) {
		o.Quarantine = time.Hour // a busy machine must not outlast it
		for line := range strings.Lines(text) {
			switch line = strings.TrimSpace(line); line {
			case "trust no caller":
				p.TrustCaller = func(netip.Addr) bool { return false }
			case "tell $PEER only":
				p.TrustDestination = func(to string) bool { return !isOther(to) }
			case "tylo for $PEER":
				p.Tylo = func(to string) bool { return !isOther(to) }
			case "tylo for all":
				p.Tylo = all
			case "a2a in message":
				p.A2AInMessage = all
			case "ancestry in message":
				p.AncestryInMessage = all
			case "sessions per run":
				p.SessionsPerRun = true
			case "secret s3cret":
				p.Secret = "s3cret"
			case "no quarantine":
				o.Quarantine = -1
			case "no single-flight":
				o.SingleFlight = false
			case "one run at most":
				o.MaxRuns = 1
			case "one webhook at most":
				o.MaxWebhooks = 1
			case "session header":
				p.SessionHeaders = []string{"x-vendor-session"}
			case "echoed ids":
				o.EchoedIDs = true
			case "webhook parent":
				p.WebhookParent = true
			case "one binding at most":
				o.MaxBindings = 1
			case "max depth 2":
				p.MaxDepth = 2
			case "max visits 1":
				p.MaxVisitsPerHost = 1
			case "other header names":
				p.AncestryHeader, p.RunIDHeader = "x-lineage", "x-lineage-run"
			case "rewrite host":
				p.RewriteHost = true
				p.AllowedHosts = func(h string) bool { return h == "agent.example.com" }
				p.AllowedOrigins = func(o string) bool { return o == "https://app.example.com" }
			default:
				sc.t.Fatalf("config: %q means nothing", line)
			}
		}
	}
}

// links lists what is recorded of the runs that turned up, in their order.
func (sc *scenario) links() string {
	var b strings.Builder
	seen := map[string]bool{}
	for _, n := range append(sc.before, sc.sidecar.notebook) {
		for _, l := range n.noted() {
			if seen[l.Key()] {
				continue
			}
			seen[l.Key()] = true
			b.WriteString(sc.link(n, l))
		}
	}
	return b.String()
}

// link describes what is stored of l.
func (sc *scenario) link(n *notebook, l ancestry.Link) string {
	sc.t.Helper()
	var stored ancestry.Link
	if l.Host == "" {
		var err error
		if stored, err = n.Lookup(sc.t.Context(), l.Run); err != nil {
			sc.t.Fatalf("Lookup(%s): %v", l.Run, err)
		}
	} else {
		children, _, err := sc.sidecar.recorder.Children(sc.t.Context(), l.Parent().Run, "", 100)
		i := slices.IndexFunc(children, func(c ancestry.Link) bool { return c.Key() == l.Key() })
		if err != nil || i < 0 {
			sc.t.Fatalf("Children(%s) = %v, %v, want %s among them", l.Parent().Run, children, err, l.Run)
		}
		stored = children[i]
	}
	var b strings.Builder
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "  %s: %s\n", name, value)
		}
	}
	fmt.Fprintf(&b, "%s", l.Run)
	if stored.Run != l.Run {
		fmt.Fprintf(&b, " is another name of %s\n", stored.Run)
		return b.String()
	}
	b.WriteString("\n")
	line("on", stored.Host)
	line("alias", string(stored.Alias))
	line("ancestry", stored.Chain.Header())
	line("evidence", string(stored.Evidence))
	line("no parent", stored.Reason)
	line("trace", text(stored.Trace))
	line("span", text(stored.Span))
	line("parent span", text(stored.ParentSpan))
	line("operation", stored.Operation)
	return b.String()
}

// text formats an id, and one that is not known as nothing.
func text(id interface{ MarshalText() ([]byte, error) }) string {
	b, _ := id.MarshalText() // has no error to return
	return string(b)
}

func (sc *scenario) metrics() string {
	var b strings.Builder
	all := sc.sidecar.series(sc.t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%s %v\n", name, all[name])
	}
	return b.String()
}

// complete adds the header lines that a message needs and does not have, and
// takes the line end that txtar puts behind the body away.
func complete(text string, lines ...string) string {
	head, body, _ := strings.Cut(text, "\n\n")
	head, body = strings.TrimSuffix(head, "\n"), strings.TrimSuffix(body, "\n")
	has := func(name string) bool {
		return strings.Contains(strings.ToLower(head), "\n"+strings.ToLower(name)+":")
	}
	if body != "" && !has("Content-Length") && !has("Transfer-Encoding") {
		lines = append(lines, "Content-Length: "+strconv.Itoa(len(body)))
	}
	for _, l := range lines {
		if name, _, _ := strings.Cut(l, ":"); !has(name) {
			head += "\n" + l
		}
	}
	return head + "\n\n" + body
}

// crlf ends the lines of a message's head as HTTP does.
func crlf(text string) string {
	head, body, _ := strings.Cut(text, "\n\n")
	return strings.ReplaceAll(head, "\n", "\r\n") + "\r\n\r\n" + body
}

func showRequest(r *http.Request, body []byte) string {
	length := strconv.FormatInt(r.ContentLength, 10)
	if r.ContentLength < 0 {
		length = "none"
	}
	h := r.Header.Clone()
	if r.ContentLength != 0 {
		h["Content-Length"] = []string{length}
	}
	return fmt.Sprintf("%s %s %s\nHost: %s\n%s\n%s", r.Method, r.RequestURI, r.Proto, r.Host, showHeader(h), showBody(body))
}

func showResponse(resp *http.Response) string {
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		body = append(body, " broken off: "+err.Error()...)
	}
	h := resp.Header.Clone()
	h.Del("Date")
	return fmt.Sprintf("%s %s\n%s\n%s", resp.Proto, resp.Status, showHeader(h), showBody(body))
}

func showHeader(h http.Header) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(h)) {
		for _, v := range h[name] {
			fmt.Fprintf(&b, "%s: %s\n", name, v)
		}
	}
	return b.String()
}

func showBody(body []byte) string {
	if len(body) == 0 {
		return ""
	}
	return string(bytes.TrimSuffix(body, []byte("\n"))) + "\n"
}

// names gives ids that vary a name, and takes it away again.
type names struct {
	values map[string]string // by name
	known  map[string]string // the names by value
	counts map[string]int
	script string // ids that stand in it, or in the prose, do not vary
}

// varying are the ids that turn up: of runs, of traces, of spans. Tylo spells
// traces in its own way.
var varying = []struct {
	kind string
	form *regexp.Regexp
}{
	{"RUN", regexp.MustCompile(`\brun_[0-9A-HJKMNP-TV-Z]{26}\b`)},
	{"TRACE", regexp.MustCompile(`\b[0-9a-f]{32}\b`)},
	{"SPAN", regexp.MustCompile(`\b[0-9a-f]{16}\b`)},
}

func newNames(ar *txtar.Archive, given map[string]string) *names {
	n := &names{values: map[string]string{}, known: map[string]string{}, counts: map[string]int{}, script: string(ar.Comment)}
	for name, value := range given {
		n.values[name], n.known[value] = value, name
	}
	for _, f := range ar.Files {
		if strings.HasSuffix(f.Name, " request") || strings.HasSuffix(f.Name, " reply") {
			n.script += string(f.Data)
		}
	}
	// As attribution makes it: the first half of the SHA-256 of the host id.
	const tag = "21834c1131b011cf"
	n.values["HOST"], n.known[tag] = tag, "HOST"
	return n
}

// hide puts names in the place of values.
func (n *names) hide(text string) string {
	for _, name := range []string{"UPSTREAM", "PEER", "OTHER"} {
		text = strings.ReplaceAll(text, n.values[name], "$"+name)
	}
	for _, v := range varying {
		text = v.form.ReplaceAllStringFunc(text, func(id string) string {
			if strings.Contains(n.script, id) {
				return id
			}
			name, ok := n.known[id]
			if !ok {
				n.counts[v.kind]++
				name = v.kind + strconv.Itoa(n.counts[v.kind])
				n.known[id], n.values[name] = name, id
			}
			return "$" + name
		})
	}
	return text
}

var reference = regexp.MustCompile(`\$[A-Z]+[0-9]*`)

// show puts values in the place of names.
func (n *names) show(text string) (string, error) {
	var err error
	text = reference.ReplaceAllStringFunc(text, func(ref string) string {
		v, ok := n.values[ref[1:]]
		if !ok {
			err = fmt.Errorf("%s is not known yet", ref)
		}
		return v
	})
	return text, err
}
