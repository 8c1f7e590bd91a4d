package ancestry_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wopproxy/wopproxy/ancestry"
)

// runs renders an admin answer's runs as ids, and what lies beyond them.
func runs(t *testing.T, api *ancestry.API, path string) string {
	t.Helper()
	resp := ask(api.Admin(), path)
	var list struct {
		Runs  []struct{ RunID string }
		Total int
		Next  string
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil || resp.StatusCode != 200 || list.Runs == nil {
		t.Fatalf("%s: %d %+v %v", path, resp.StatusCode, list, err)
	}
	var b strings.Builder
	for _, r := range list.Runs {
		b.WriteString(r.RunID + " ")
	}
	fmt.Fprintf(&b, "total=%d next=%s", list.Total, list.Next)
	return b.String()
}

func TestAdminLiveRuns(t *testing.T) {
	at := func(sec int64) time.Time { return time.Unix(sec, 0).UTC() }
	live := []ancestry.LiveRun{
		{Run: "b", Began: at(2), Active: at(9)},
		{Run: "c", Began: at(2)},
		{Run: "a", Began: at(3), Parent: &ancestry.Ancestor{Run: "p", Host: "h", Cause: ancestry.CauseDispatch}},
	}
	a := newAPI(t, ancestry.APIOptions{Live: func() []ancestry.LiveRun { return live }})
	for path, want := range map[string]string{
		"/ancestry/v1/runs":              "b c a total=3 next=",
		"/ancestry/v1/runs?limit=2":      "b c total=3 next=",
		"/ancestry/v1/runs?limit=100000": "b c a total=3 next=",
	} {
		if got := runs(t, a, path); got != want {
			t.Errorf("%s = %q, want %q", path, got, want)
		}
	}
	if got, want := runs(t, newAPI(t, ancestry.APIOptions{}), "/ancestry/v1/runs"), "total=0 next="; got != want {
		t.Errorf("without live runs = %q, want %q", got, want)
	}
	if got, want := body(t, ask(a.Admin(), "/ancestry/v1/runs?limit=1")),
		`{"runs":[{"runId":"b","parent":null,"began":"1970-01-01T00:00:02Z","active":"1970-01-01T00:00:09Z"}],"total":3}`; got != want {
		t.Errorf("one live run = %s\nwant %s", got, want)
	}
}

func TestAdminRun(t *testing.T) {
	a := newAPI(t, ancestry.APIOptions{})
	want := family().list[0]
	for _, spelled := range []string{string(minted), "acme%2Fchild-0000000000001", "acme~2Fchild-0000000000001"} {
		var got ancestry.Link
		if err := json.Unmarshal([]byte(body(t, ask(a.Admin(), "/ancestry/v1/runs/"+spelled))), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", spelled, diff)
		}
	}
	if got := ask(a.Admin(), "/ancestry/v1/runs/til~de").StatusCode; got != 200 {
		t.Errorf("an id with a ~ of its own: status = %d, want 200", got)
	}
}

func TestAdminErrors(t *testing.T) {
	a := newAPI(t, ancestry.APIOptions{Logger: slog.New(slog.DiscardHandler)})
	for target, want := range map[string]string{
		"/ancestry/v1/runs/nope":                                       `404 not_found`,
		"/ancestry/v1/runs/elsewhere-1":                                `404 not_found`,
		"/ancestry/v1/runs/a~2":                                        `404 not_found`,
		"/ancestry/v1/runs/a%20b":                                      `400 validation_error`,
		"/ancestry/v1/runs?limit=0":                                    `400 validation_error`,
		"/ancestry/v1/runs?limit=x":                                    `400 validation_error`,
		"/ancestry/v1/runs/root-1/children?limit=-1":                   `400 validation_error`,
		"/ancestry/v1/traces/4bf92f":                                   `400 validation_error`,
		"/ancestry/v1/traces/00000000000000000000000000000000":         `400 validation_error`,
		"/ancestry/v1/traces/4bf92f3577b34da6a3ce929d0e0e473z":         `400 validation_error`,
		"/ancestry/v1/traces/4bf92f3577b34da6a3ce929d0e0e4736?limit=0": `400 validation_error`,
	} {
		resp := ask(a.Admin(), target)
		var e struct{ Error, Message string }
		_ = json.NewDecoder(resp.Body).Decode(&e)
		if got := fmt.Sprint(resp.StatusCode, " ", e.Error); got != want || e.Message == "" {
			t.Errorf("%s = %s (%q), want %s", target, got, e.Message, want)
		}
	}
	for target, want := range map[string]int{"POST /ancestry/v1/runs": 405, "/ancestry/v1/": 404, "/v1/runs/root-1/ancestry": 404} {
		if got := ask(a.Admin(), target).StatusCode; got != want {
			t.Errorf("%s: status = %d, want %d", target, got, want)
		}
	}
	broken := newAPI(t, ancestry.APIOptions{Reader: links{err: errors.New("disk on fire")}})
	for _, path := range []string{"/runs/x", "/runs/x/tree", "/runs/x/chain", "/traces/4bf92f3577b34da6a3ce929d0e0e4736"} {
		resp := ask(broken.Admin(), "/ancestry/v1"+path)
		if b := body(t, resp); resp.StatusCode != 500 || strings.Contains(b, "fire") {
			t.Errorf("%s: %d %s, want 500 without the cause", path, resp.StatusCode, b)
		}
	}
}

// Findings are the business of whoever watches; the API says who is meant, by
// every id that it knows.
func TestAdminFindings(t *testing.T) {
	a := newAPI(t, ancestry.APIOptions{Findings: func(ids ...ancestry.RunID) (any, bool) {
		return ids, ids[0] != "root-1" && ids[0] != "nobody"
	}})
	for path, want := range map[string]string{
		"plain":                          `{"runId":"plain","findings":["plain"]}`,
		"run_01JD0000000000000000000000": `{"runId":"run_01JD0000000000000000000000","findings":["acme/child-0000000000001","run_01JD0000000000000000000000"]}`,
		"acme~2Fchild-0000000000001":     `{"runId":"acme~2Fchild-0000000000001","findings":["acme/child-0000000000001","acme~2Fchild-0000000000001","run_01JD0000000000000000000000"]}`,
		"not-recorded":                   `{"runId":"not-recorded","findings":["not-recorded"]}`,
		"root-1":                         `{"runId":"root-1","findings":[]}`,
		"nobody":                         `{"error":"not_found","message":"run not found"}`,
	} {
		if got := body(t, ask(a.Admin(), "/ancestry/v1/runs/"+path+"/findings")); got != want {
			t.Errorf("%s = %s, want %s", path, got, want)
		}
	}
}

// Evidence is the business of whoever signs; the API says what is asked for.
func TestAdminEvidence(t *testing.T) {
	ref := "sha256:" + strings.Repeat("ab", 32)
	a := newAPI(t, ancestry.APIOptions{Evidence: func(_ context.Context, q ancestry.EvidenceQuery) (any, error) {
		switch q.Runs[0] {
		case "nobody":
			return nil, fmt.Errorf("read: %w", ancestry.ErrNotFound)
		case "told-to-all":
			return nil, fmt.Errorf("read: %w", ancestry.ErrNoAudiences)
		case "root-1":
			return nil, errors.New("disk on fire")
		}
		return q, nil
	}})
	for path, want := range map[string]string{
		"plain/evidence": `{"Runs":["plain"],"After":"","Limit":1000,"Proof":"","Audience":null}`,
		"run_01JD0000000000000000000000/evidence?after=x&limit=2": `{"Runs":["acme/child-0000000000001","run_01JD0000000000000000000000"],"After":"x","Limit":2,"Proof":"","Audience":null}`,
		"not-recorded/evidence?limit=9999":                        `{"Runs":["not-recorded"],"After":"","Limit":1000,"Proof":"","Audience":null}`,
		"plain/evidence?proof=" + ref:                             `{"Runs":["plain"],"After":"","Limit":1000,"Proof":"` + ref + `","Audience":null}`,
		"plain/evidence?proof=x":                                  `{"error":"validation_error","message":"proof is the reference of a receipt: sha256: and 64 hex digits"}`,
		"plain/evidence?audience=https://B.example.com:443/":      `{"Runs":["plain"],"After":"","Limit":1000,"Proof":"","Audience":{"Scheme":"https","Opaque":"","User":null,"Host":"B.example.com:443","Path":"",`,
		"plain/evidence?audience=stdio://localhost":               `{"Runs":["plain"],"After":"","Limit":1000,"Proof":"","Audience":{"Scheme":"stdio","Opaque":"","User":null,"Host":"localhost","Path":"",`,
		"plain/evidence?audience=":                                `{"error":"validation_error","message":"audience is an origin that was called, such as https://agent.example.com"}`,
		"plain/evidence?audience=b.example.com":                   `{"error":"validation_error","message":"audience is an origin`,
		"plain/evidence?audience=https://b.example.com/agent":     `{"error":"validation_error","message":"audience is an origin`,
		"plain/evidence?audience=https://me@b.example.com":        `{"error":"validation_error","message":"audience is an origin`,
		"plain/evidence?audience=https://b.example.com?":          `{"error":"validation_error","message":"audience is an origin`,
		"told-to-all/evidence?audience=https://b.example.com":     `{"error":"validation_error","message":"nothing is signed for an audience alone: that takes evidence.privacy: strict"}`,
		"plain/evidence?limit=0":                                  `{"error":"validation_error","message":"limit must be a number from 1"}`,
		"a%20b/evidence":                                          `{"error":"validation_error","message":`,
		"nobody/evidence":                                         `{"error":"not_found","message":"no such receipt of such a run: its call goes on, it was not signed here or not for that audience, it is older than what is kept, or its workflow has more than a bundle may have"}`,
		"root-1/evidence":                                         `{"error":"internal_error","message":"internal error"}`,
	} {
		if got := body(t, ask(a.Admin(), "/ancestry/v1/runs/"+path)); !strings.HasPrefix(got, want) {
			t.Errorf("%s = %s, want %s", path, got, want)
		}
	}
	resp := ask(newAPI(t, ancestry.APIOptions{}).Admin(), "/ancestry/v1/runs/plain/evidence")
	if got := body(t, resp); resp.StatusCode != 404 || !strings.Contains(got, "evidence.issuer is not configured") {
		t.Errorf("where nothing is signed: %d %s", resp.StatusCode, got)
	}
}

func TestAdminTrace(t *testing.T) {
	id := ancestry.TraceID{0x4b, 15: 1}
	a := newAPI(t, ancestry.APIOptions{Reader: links{list: []ancestry.Link{{Run: "a", Trace: id}, {Run: "b"}, {Run: "c", Trace: id}}}})
	for path, want := range map[string]string{
		"/ancestry/v1/traces/" + id.String():                                   "a c total=0 next=",
		"/ancestry/v1/traces/" + id.String() + "?limit=1":                      "a total=0 next=",
		"/ancestry/v1/traces/" + ancestry.TraceID{15: 1}.String() + "?limit=1": "total=0 next=",
	} {
		if got := runs(t, a, path); got != want {
			t.Errorf("%s = %q, want %q", path, got, want)
		}
	}
}

// at names an ancestor that ran on a host.
func at(host string, run ancestry.RunID) ancestry.Ancestor {
	return ancestry.Ancestor{Run: run, Host: host, Cause: ancestry.CauseA2AMessage}
}

func TestAdminChain(t *testing.T) {
	long := make([]ancestry.Ancestor, 70)
	for i := range long {
		long[i] = at("far.example", ancestry.RunID(fmt.Sprint("far-", i)))
	}
	a := newAPI(t, ancestry.APIOptions{Reader: links{list: []ancestry.Link{
		{Run: "root"},
		child("mid", at("far.example", "far-root")),
		{Run: "leaf", Chain: ancestry.Chain{Ancestors: []ancestry.Ancestor{at(selfID, "mid")}}},
		child("knot-1", at(selfID, "knot-2")),
		child("knot-2", at(selfID, "knot-1")),
		{Run: "cut", Chain: ancestry.Chain{Ancestors: []ancestry.Ancestor{at("far.example", "x")}, More: true, Depth: 9}},
		{Run: "long", Chain: ancestry.Chain{Ancestors: long}},
		child("namesake", at("far.example", "mid")),
		child("lost", at(selfID, "forgotten")),
	}}})
	for run, want := range map[string]string{
		"root":     "root: [] more=false depth=0",
		"leaf":     "leaf: [mid far-root] more=false depth=2",
		"namesake": "namesake: [mid] more=false depth=1",
		"cut":      "cut: [x] more=true depth=9",
		"lost":     "lost: [forgotten] more=false depth=1",
		// A loop ends where it closes.
		"knot-1": "knot-1: [knot-2 knot-1] more=false depth=2",
	} {
		if got := chain(t, a, run); got != want {
			t.Errorf("chain of %s = %q, want %q", run, got, want)
		}
	}
	if got, want := body(t, ask(a.Admin(), "/ancestry/v1/runs/root/chain")),
		`{"runId":"root","hostId":"self.example.com/agent","ancestors":[],"more":false,"depth":0}`; got != want {
		t.Errorf("chain of root = %s, want %s", got, want)
	}
	if got := chain(t, a, "long"); !strings.HasSuffix(got, " far-63] more=true depth=70") {
		t.Errorf("chain of long = %q, want 64 ancestors, more and depth 70", got)
	}
}

func chain(t *testing.T, a *ancestry.API, run string) string {
	t.Helper()
	var c struct {
		RunID     string
		Ancestors []ancestry.Ancestor
		More      bool
		Depth     int
	}
	if err := json.Unmarshal([]byte(body(t, ask(a.Admin(), "/ancestry/v1/runs/"+run+"/chain"))), &c); err != nil {
		t.Fatal(err)
	}
	ids := []ancestry.RunID{}
	for _, anc := range c.Ancestors {
		ids = append(ids, anc.Run)
	}
	return fmt.Sprintf("%s: %v more=%v depth=%d", c.RunID, ids, c.More, c.Depth)
}

func TestAdminChildren(t *testing.T) {
	s := links{list: []ancestry.Link{{Run: "p"}}}
	for i := range 1001 {
		s.list = append(s.list, child(ancestry.RunID(fmt.Sprintf("c%04d", i)), at(selfID, "p")))
	}
	a := newAPI(t, ancestry.APIOptions{Reader: s})
	if got, want := runs(t, a, "/ancestry/v1/runs/p/children?limit=2"), "c0000 c0001 total=0 next=3"; got != want {
		t.Errorf("first page = %q, want %q", got, want)
	}
	if got, want := runs(t, a, "/ancestry/v1/runs/p/children?limit=2&after=3"), "c0002 c0003 total=0 next=5"; got != want {
		t.Errorf("second page = %q, want %q", got, want)
	}
	for _, query := range []string{"", "?limit=5000"} {
		if got := runs(t, a, "/ancestry/v1/runs/p/children"+query); !strings.HasSuffix(got, "c0999 total=0 next=1001") {
			t.Errorf("children%s = %q, want 1000 of them", query, got)
		}
	}
	if got, want := runs(t, a, "/ancestry/v1/runs/c0000/children"), "total=0 next="; got != want {
		t.Errorf("children of a leaf = %q, want %q", got, want)
	}
}

type tree struct {
	Root      node
	Nodes     int
	Truncated bool
}

type node struct {
	RunID, HostID, Cause string
	Children             []node
	Truncated            bool
}

// String renders a node as run(child child…), with * where children are cut.
func (n node) String() string {
	s := n.RunID
	if n.Truncated {
		s += "*"
	}
	if len(n.Children) > 0 {
		s += fmt.Sprint(n.Children)
	}
	return s
}

func treeOf(t *testing.T, s links, run string) (got tree) {
	t.Helper()
	a := newAPI(t, ancestry.APIOptions{Reader: s})
	if err := json.Unmarshal([]byte(body(t, ask(a.Admin(), "/ancestry/v1/runs/"+run+"/tree"))), &got); err != nil {
		t.Fatal(err)
	}
	return got
}

func TestAdminTree(t *testing.T) {
	away := child("task", at(selfID, "b"))
	away.Host = "other.example"
	s := links{list: []ancestry.Link{
		{Run: "a"},
		child("b", at(selfID, "a")),
		child("c", at(selfID, "a")),
		away,
		child("back", at("other.example", "task")), // the other host called us
		child("namesake", at("third.example", "a")),
		child("a", at(selfID, "back")), // a loop
	}}
	got := treeOf(t, s, "a")
	if want := "a[b[task[back]] c]"; got.Root.String() != want || got.Nodes != 5 || got.Truncated {
		t.Errorf("tree = %v, %d nodes, truncated %v; want %s, 5, false", got.Root, got.Nodes, got.Truncated, want)
	}
	if b := got.Root.Children[0]; b.HostID != selfID || b.Cause != "a2a-message" || b.Children[0].HostID != "other.example" {
		t.Errorf("hosts and causes = %+v", b)
	}
}

func TestAdminTreeIsBounded(t *testing.T) {
	deep := links{list: []ancestry.Link{{Run: "0"}}}
	for i := range 17 {
		deep.list = append(deep.list, child(ancestry.RunID(fmt.Sprint(i+1)), at(selfID, ancestry.RunID(fmt.Sprint(i)))))
	}
	got := treeOf(t, deep, "0")
	if !got.Truncated || got.Nodes != 17 || !strings.Contains(got.Root.String(), "[16*]") {
		t.Errorf("deep tree = %v, %d nodes, truncated %v; want it cut at depth 16", got.Root, got.Nodes, got.Truncated)
	}
	if got := treeOf(t, deep, "1"); got.Truncated || got.Nodes != 17 {
		t.Errorf("a tree of just depth 16: %d nodes, truncated %v; want 17, false", got.Nodes, got.Truncated)
	}
	wide := links{list: []ancestry.Link{{Run: "w"}}}
	for i := range 10_000 {
		wide.list = append(wide.list, child(ancestry.RunID(fmt.Sprint("c", i)), at(selfID, "w")))
	}
	if got := treeOf(t, wide, "w"); !got.Truncated || !got.Root.Truncated || got.Nodes != 10_000 {
		t.Errorf("wide tree: %d nodes, truncated %v; want 10000, true", got.Nodes, got.Truncated)
	}
	wide.list = wide.list[:10_000]
	if got := treeOf(t, wide, "w"); got.Truncated || got.Nodes != 10_000 {
		t.Errorf("a tree of just 10000 nodes: %d nodes, truncated %v; want 10000, false", got.Nodes, got.Truncated)
	}
}
