package evidence

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wopproxy/wopproxy/ancestry/peac"
)

// Digests of cards.
var ownCard, peersCard = CardRef([]byte("the host's")), CardRef([]byte("the peer's"))

// TestTaskHandoff has the states of a task be told as a handoff from agent to agent
// where it is known who has handed it over, and else as progress.
func TestTaskHandoff(t *testing.T) {
	const peer, agent = "https://b.example.com", "b.example.com:443/a2a"
	states := []string{"submitted", "working", "input-required", "auth-required", "unknown", "canceled", "rejected", "failed", "completed"}
	for _, tt := range []struct {
		name                string
		mode                Privacy
		own, peers          string
		direction, protocol string
		types               string // of the receipts but the last
		to                  bool
	}{
		{"both are known", Balanced, ownCard, peersCard, Egress, A2A, "SCCCpCRFD", true},
		{"open", Open, ownCard, peersCard, Egress, A2A, "SCCCpCRFD", true},
		{"who is called is not known", Balanced, ownCard, "", Egress, A2A, "SCCCpCRFD", false},
		{"who is called has a pseudonym", Strict, ownCard, peersCard, Egress, A2A, "SCCCpCRFD", false},
		{"who calls is not known", Balanced, "", peersCard, Egress, A2A, "ppppppppp", false},
		{"the host is called", Balanced, ownCard, peersCard, Ingress, A2A, "ppppppppp", false},
		{"it is no agent", Balanced, ownCard, peersCard, Egress, MCP, "ppppppppp", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			of := newOffice(t, func(o *Options) { o.Privacy = tt.mode })
			if tt.own != "" {
				of.Introduce("", tt.own)
			}
			if tt.peers != "" {
				of.Introduce(agent, CardRef([]byte("an older one")))
				of.Introduce(agent, tt.peers)
			}
			run := of.Open("run_1", Origin{})
			now := time.Now()
			s := of.Leave(run, now)
			s.Direction, s.Protocol, s.Peer, s.Agent = tt.direction, tt.protocol, peer, agent
			for _, state := range states {
				of.State(s, state, Observed{Direction: tt.direction, Protocol: tt.protocol, Task: "task-0123456789abcdef", Ended: now})
			}
			of.End(s, Observed{Direction: tt.direction, Protocol: tt.protocol, Outcome: Ongoing, Callee: "b.example.com", Ended: now})
			of.work()
			of.stop()
			receipts, _ := of.receipts(t, run.Workflow)
			if faults := peac.CheckSet(receipts, nil); len(faults) > 0 {
				t.Error(faults)
			}
			letter := map[string]string{
				progress: "p", peac.TaskSubmitted: "S", peac.TaskStateChanged: "C", peac.TaskRejected: "R", peac.TaskFailed: "F", peac.TaskCompleted: "D",
			}
			told := map[string]string{}
			for _, r := range receipts {
				if r.Claims.Type == progress {
					told[group(t, r, progress, "state").(string)] = "p"
				}
				g, handoff := r.Claims.Extensions[peac.HandoffGroup].(map[string]any)
				if !handoff {
					continue
				}
				told[g["state"].(string)] = letter[r.Claims.Type]
				want := map[string]any{
					"type": r.Claims.Type, "event": g["event"], "task_id": of.names.TaskRef("", peer, "task-0123456789abcdef"), "state": g["state"],
					"from_agent": map[string]any{"card_ref": tt.own}, "observed_at": instant(now),
				}
				if tt.to {
					want["to_agent"] = map[string]any{"card_ref": tt.peers}
				}
				if diff := cmp.Diff(want, g); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
			got := ""
			for _, state := range states {
				got += told[state]
			}
			if got != tt.types || len(receipts) != len(states)+1 {
				t.Errorf("%d receipts, by state %s, want %s", len(receipts), got, tt.types)
			}
		})
	}
}

// TestDiscover has a card that was fetched be a step after those that the run had
// begun by then, and nothing where who is called is to have no name that others know.
func TestDiscover(t *testing.T) {
	for _, mode := range []Privacy{Strict, Balanced, Open} {
		of := newOffice(t, func(o *Options) { o.Privacy = mode })
		run := of.Open("run_1", Origin{})
		now := time.Now()
		first := of.Arrive(run, Place{}, now)
		second := of.Arrive(run, Place{}, now.Add(time.Second))
		o := Observed{Direction: Egress, Protocol: A2A, Outcome: OK, Card: &Card{peersCard, true}, Ended: now.Add(2 * time.Second)}
		of.Discover(run, now.Add(time.Millisecond), o)
		of.Discover(nil, now, o)
		of.End(first, ended(OK))
		of.End(second, ended(OK))
		of.work()
		of.stop()
		var told []string
		receipts, _ := of.receipts(t, run.Workflow)
		for _, r := range receipts {
			told = append(told, strings.TrimPrefix(r.Claims.Type, "org.peacprotocol/"))
			if r.Claims.Type != peac.CardObserved {
				continue
			}
			want := map[string]any{
				"type": peac.CardObserved, "card_ref": peersCard, "discovered_at": instant(o.Ended), "discovery_path": "/.well-known/agent-card.json",
				"signature_observation": map[string]any{"present": true, "caller_reported_verification": "not_checked"},
			}
			if diff := cmp.Diff(want, r.Claims.Extensions[peac.HandoffGroup]); diff != "" {
				t.Errorf("%s (-want +got):\n%s", mode, diff)
			}
			if p := r.Workflow.ParentStepIDs; len(p) != 1 || p[0] != first.Step || r.Workflow.ToolName != "" {
				t.Errorf("%s: %+v, want the parent %s alone, and no tool", mode, r.Workflow, first.Step)
			}
		}
		slices.Sort(told)
		want := "[agent-action-invoked-observed agent-action-invoked-observed]"
		if mode != Strict {
			want = "[a2a-agent-card-observation agent-action-invoked-observed agent-action-invoked-observed]"
		}
		if got := fmt.Sprint(told); got != want {
			t.Errorf("%s: %s, want %s", mode, got, want)
		}
		if of.open != 0 {
			t.Errorf("%s: %d steps are open", mode, of.open)
		}
	}
}

// TestProgress has a callee that tells of its progress again and again leave a chain
// that grows more and more slowly, up to the bound, and nothing once it has ended.
func TestProgress(t *testing.T) {
	for _, tt := range []struct {
		times, states int
		want          string
	}{
		{0, 32, "[]"}, {1, 32, "[1]"}, {3, 32, "[1 2]"}, {100, 32, "[1 2 4 8 16 32 64]"}, {100, 3, "[1 2 4]"},
	} {
		of := newOffice(t, func(o *Options) { o.States = tt.states })
		run := of.Open("run_1", Origin{})
		s := of.Arrive(run, Place{}, time.Now())
		for range tt.times {
			of.Progress(s, ended(OK))
		}
		of.End(s, ended(ProtocolError))
		for range 2 * tt.times {
			of.Progress(s, ended(OK))
		}
		of.work()
		of.stop()
		receipts, _ := of.receipts(t, run.Workflow)
		if faults := peac.CheckSet(receipts, nil); len(faults) > 0 {
			t.Error(faults)
		}
		var counts []int
		for _, r := range receipts {
			if r.Claims.Type != progress {
				continue
			}
			n, _ := group(t, r, progress, "count").(float64)
			counts = append(counts, int(n))
			if outcome := group(t, r, peac.ExchangeGroup, "outcome"); outcome != "ongoing" || r.Workflow.StepID != s.Step {
				t.Errorf("progress of %s: %v", r.Workflow.StepID, outcome)
			}
		}
		slices.Sort(counts)
		if got := fmt.Sprint(counts); got != tt.want || len(receipts) != len(counts)+1 {
			t.Errorf("%d times, at most %d: %d receipts, %s, want %s", tt.times, tt.states, len(receipts), got, tt.want)
		}
	}
}

// TestCancel has a call that its caller wants no more end as cancelled, unless it is
// answered, and none that is not the only one of its name.
func TestCancel(t *testing.T) {
	for _, tt := range []struct {
		name   string
		cancel func(of *office, run *Run, s *Step)
		end    Observed
		want   string
	}{
		{"without an answer", func(of *office, _ *Run, _ *Step) { of.Cancel("call") }, Observed{Outcome: Ongoing}, "cancelled"},
		{"broken off", func(of *office, _ *Run, _ *Step) { of.Cancel("call") }, Observed{Outcome: Unreachable}, "cancelled"},
		{"an error that says so", func(of *office, _ *Run, _ *Step) { of.Cancel("call") }, Observed{Outcome: ProtocolError}, "cancelled"},
		{"another error", func(of *office, _ *Run, _ *Step) { of.Cancel("call") }, Observed{Outcome: ProtocolError, Answered: true}, "protocol_error"},
		{"an answer", func(of *office, _ *Run, _ *Step) { of.Cancel("call") }, Observed{Outcome: OK, Answered: true}, "ok"},
		{"a task that goes on", func(of *office, _ *Run, _ *Step) { of.Cancel("call") }, Observed{Outcome: Ongoing, Answered: true}, "ongoing"},
		{"a refusal", func(of *office, _ *Run, _ *Step) { of.Cancel("call") }, Observed{Outcome: Rejected}, "rejected"},
		{"another call", func(of *office, _ *Run, _ *Step) { of.Cancel("another"); of.Cancel("") }, Observed{Outcome: Ongoing}, "ongoing"},
		{"one of two", func(of *office, run *Run, _ *Step) {
			of.Name(of.Leave(run, time.Now()), "call")
			of.Cancel("call")
		}, Observed{Outcome: Ongoing}, "ongoing"},
		{"after another of its name", func(of *office, run *Run, _ *Step) {
			other := of.Leave(run, time.Now())
			of.Name(other, "call")
			of.End(other, Observed{Direction: Egress, Protocol: MCP, Outcome: OK, Ended: time.Now()})
			of.Cancel("call")
		}, Observed{Outcome: Ongoing}, "cancelled"},
	} {
		of := newOffice(t)
		run := of.Open("run_1", Origin{})
		s := of.Leave(run, time.Now())
		of.Name(s, "call")
		tt.cancel(of, run, s)
		tt.end.Direction, tt.end.Protocol, tt.end.Ended = Egress, MCP, time.Now()
		of.End(s, tt.end)
		of.work()
		of.stop()
		receipts, _ := of.receipts(t, run.Workflow)
		for _, r := range receipts {
			if r.Workflow.StepID != s.Step {
				continue
			}
			if got := group(t, r, peac.ExchangeGroup, "outcome"); got != tt.want || (r.Claims.Type == peac.ActionCancelled) != (tt.want == "cancelled") {
				t.Errorf("%s: %s, %v, want %s", tt.name, r.Claims.Type, got, tt.want)
			}
		}
		if tt.name != "one of two" && len(of.calls) > 0 {
			t.Errorf("%s: the names of calls that have ended are kept: %v", tt.name, of.calls)
		}
	}
}
