package attribution

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
)

// TestWebhooksFind shows what names the run of a post, on a host where runs a
// and b have asked with a secret of their own, b and c with the same, d without
// any, and somebody unknown with one more.
func TestWebhooksFind(t *testing.T) {
	for _, tt := range []struct {
		name, secret, task string
		strangers          bool
		want               string
		why                Reason
	}{
		{name: "own secret, before the task is known", secret: "of-a", task: "new", want: "a"},
		{name: "own secret, task not readable", secret: "of-a", want: "a"},
		{name: "own secret, from anywhere", secret: "of-a", task: "new", strangers: true, want: "a"},
		{name: "one secret, task of one", secret: "of-both", task: "task-b", want: "b"},
		{name: "one secret, task of nobody, and one that has not told its task", secret: "of-both", task: "new", why: ReasonSharedKey},
		{name: "one secret, task not readable", secret: "of-both", why: ReasonSharedKey},
		{name: "secret of one, task of another", secret: "of-a", task: "task-b", why: ReasonSharedKey},
		{name: "unknown secret, task of one", secret: "other", task: "task-b", want: "b"},
		{name: "unknown secret from anywhere, task of one", secret: "other", task: "task-b", strangers: true},
		{name: "unknown secret and task", secret: "other", task: "new"},
		{name: "unknown secret, task not readable", secret: "other"},
		{name: "one secret, task of nobody, and two that have not told theirs", secret: "of-many", task: "new", why: ReasonSharedKey},
		{name: "no secret, its task", task: "task-d", want: "d"},
		{name: "no secret, its task, from anywhere", task: "task-d", strangers: true, want: "d"},
		{name: "no secret, another task", task: "new", why: ReasonSharedKey},
		{name: "no secret, another task, from anywhere", task: "new", strangers: true, why: ReasonSharedKey},
		{name: "secret of one whose run is not known", secret: "of-nobody", task: "new", why: ReasonSharedKey},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := NewWebhooks(10, time.Hour)
			runs := map[string]*Run{}
			add := func(run, task string, secrets ...string) *Webhook {
				w := &Webhook{Place: "here", Secrets: secrets}
				if run != "" {
					if runs[run] == nil {
						runs[run] = &Run{First: ancestry.RunID(run)}
					}
					w.Run = runs[run]
				}
				if !h.Add(w, task) {
					t.Fatal("Add = false, want true")
				}
				return w
			}
			add("a", "", "of-a")
			h.Name(add("b", "", "of-b", "of-both"), "task-b")
			add("c", "", "of-both")
			add("d", "task-d")
			add("", "", "of-nobody")
			add("e", "", "of-many")
			add("f", "", "of-many")
			got, why := h.Find("here", tt.secret, tt.task, tt.strangers)
			name := ""
			if got != nil {
				name = string(got.Run.First)
			}
			if name != tt.want || why != tt.why {
				t.Errorf("Find = %q, %q, want %q, %q", name, why, tt.want, tt.why)
			}
			if w, why := h.Find("there", tt.secret, tt.task, tt.strangers); w != nil || why != "" {
				t.Errorf("Find elsewhere = %v, %q, want nothing", w, why)
			}
		})
	}
}

// TestWebhookEarlyPost: what an early post leads to believe serves the posts
// behind it, until the answer knows better.
func TestWebhookEarlyPost(t *testing.T) {
	h := NewWebhooks(10, time.Hour)
	a, b := &Webhook{Place: "p", Secrets: []string{"s"}, Run: &Run{First: "a"}}, &Webhook{Place: "p", Secrets: []string{"s"}, Run: &Run{First: "b"}}
	h.Add(a, "")
	find := func(task string, want *Webhook) {
		t.Helper()
		if got, why := h.Find("p", "s", task, true); got != want {
			t.Errorf("Find %s = %v, %q, want %v", task, got, why, want)
		}
	}
	find("1", a)
	h.Add(b, "")
	find("1", a)
	find("2", nil) // a secret of several runs tells nothing by itself
	h.Name(b, "3") // the agent had more tasks than were asked for here
	find("3", b)
	find("2", nil)
	h.Remove(a)
	find("1", nil)
	h.Remove(b)
	h.Remove(b)
	if n := h.Len(); n+len(h.at)+len(h.bearer)+len(h.byTask) != 0 || h.Expects("p") {
		t.Errorf("%d webhooks are left: %v, %v, %v", n, h.at, h.bearer, h.byTask)
	}
}

// TestFullWebhooksAreNotTrusted: a post may be of the request that found no
// place, unless its task is another's.
func TestFullWebhooksAreNotTrusted(t *testing.T) {
	h := NewWebhooks(1, time.Hour)
	w := &Webhook{Place: "p", Secrets: []string{"s"}, Run: &Run{First: "a"}}
	h.Add(w, "")
	h.Add(&Webhook{Place: "p", Secrets: []string{"s"}, Run: &Run{First: "b"}}, "")
	if got, why := h.Find("p", "s", "task", true); got != nil || why != ReasonSharedKey {
		t.Errorf("before the task is known: %v, %q, want %s", got, why, ReasonSharedKey)
	}
	h.Name(w, "task")
	if got, _ := h.Find("p", "s", "task", true); got != w {
		t.Error("when the task is known: not found")
	}
}

func TestWebhooksForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewWebhooks(1, time.Hour)
		w := &Webhook{Place: "p", Secrets: []string{"s"}, Run: &Run{First: "a"}}
		h.Add(w, "task")
		time.Sleep(time.Hour - time.Nanosecond)
		if got, _ := h.Find("p", "s", "task", true); got != w {
			t.Fatal("just before the ttl: not found")
		}
		if h.Add(&Webhook{Place: "p", Secrets: []string{"s"}, Run: &Run{First: "b"}}, "") {
			t.Fatal("Add without a place = true, want false")
		}
		time.Sleep(time.Hour - time.Nanosecond) // it was used
		if got, why := h.Find("p", "s", "other", true); got != nil || why != ReasonSharedKey {
			t.Errorf("a post that may be of the one without a place = %v, %q, want %s", got, why, ReasonSharedKey)
		}
		if got, _ := h.Find("p", "s", "task", true); got != w {
			t.Error("a post whose task is known: not found")
		}
		time.Sleep(time.Hour)
		if got, _ := h.Find("p", "s", "task", true); got != nil || h.Len() != 0 {
			t.Errorf("at the ttl: %v, %d left, want none", got, h.Len())
		}
	})
}

// TestVisit: what works for a run that is over makes it live meanwhile, so that
// another run is not taken for the only one.
func TestVisit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(Options{})
		expect := func(when string, id ancestry.RunID, why Reason) {
			t.Helper()
			if v := tab.Attribute(Clues{}); v.ID != id || v.Reason != why {
				t.Errorf("%s: Attribute = %q (%s), want %q (%s)", when, v.ID, v.Reason, id, why)
			}
		}
		a := start(t, tab, &Run{First: "a", Trace: traceA})
		tab.End(a)
		time.Sleep(time.Minute)
		start(t, tab, &Run{First: "b", Trace: traceB})
		expect("before", "b", "")
		for _, when := range []string{"first visit", "second visit"} {
			if r, ok := tab.Visit(a, traceB); r != a || !ok {
				t.Fatalf("%s: Visit = %v, %v", when, r, ok)
			}
		}
		tab.Leave(a)
		expect("one of two visits", "", ReasonManyLiveRuns)
		if !tab.Owns(a, traceB) {
			t.Error("a is not known in the trace of its visit")
		}
		tab.End(a) // as a terminal state does
		time.Sleep(time.Minute)
		expect("ended while visited", "", ReasonManyLiveRuns)
		tab.Leave(a)
		expect("quarantine", "", ReasonManyLiveRuns)
		time.Sleep(time.Second)
		expect("after", "b", "")
		tab.Leave(a) // one too many

		tab.Visit(a, traceB)
		if tab.Resume("a") != a {
			t.Fatal("Resume of a visited run = nil")
		}
		tab.Leave(a)
		time.Sleep(time.Minute)
		expect("a goes on", "", ReasonManyLiveRuns)
	})
	full := newTable(Options{MaxRuns: 1})
	start(t, full, &Run{First: "a"})
	if _, ok := full.Visit(&Run{First: "b"}, traceA); ok {
		t.Error("Visit into a full table = true, want false")
	}
}
