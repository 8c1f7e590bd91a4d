package evidence

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
)

// Receipt is a signed receipt, and what it takes to find it.
type Receipt struct {
	ID       string         // its jti; sorts by when the exchange began, to the millisecond
	Workflow string         // wf_…
	Audience string         // the origin that it is for alone; empty: for whoever may read of the run
	Step     string         // step_…; several receipts of one are a chain
	Run      ancestry.RunID // the run of this host, by the first id it was known by; empty: of none
	Exchange string         // the random id that Step was derived from
	External []string       // those parents of Step that a peer has carried in
	JWS      string
}

// Store keeps receipts. The methods may be called concurrently.
type Store interface {
	// Add makes receipts durable, all or none, and notes workflows of which receipts
	// were lost; "" stands for all that were at work just then. A receipt that is
	// there already changes nothing. From the first Add on, be it of nothing, the
	// store finds out when the process has ended in disorder.
	Add(ctx context.Context, receipts []Receipt, lost []string) error

	// Receipts returns the receipts of a workflow, by ID, at most limit of them.
	// after is the cursor of the page before ("" for the first); next is "" on the
	// last page. A workflow that is not known has none.
	Receipts(ctx context.Context, workflow, after string, limit int) (page []Receipt, next string, err error)

	// Latest returns the newest receipts of a workflow by ID, newest first, at most
	// limit of them.
	Latest(ctx context.Context, workflow string, limit int) ([]Receipt, error)

	// Workflow returns the workflow of a run, by the id that its receipts have, or
	// ancestry.ErrNotFound: the first that was stored with it stays.
	Workflow(ctx context.Context, run ancestry.RunID) (string, error)

	// Whole reports whether no receipt of a workflow is known to be lost: none was
	// dropped, none was forgotten while others were kept, and the proxy has not ended
	// in disorder while it was at work.
	Whole(ctx context.Context, workflow string) (bool, error)
}

// quiet is how long after its last receipt a workflow may still be at work.
const quiet = time.Hour

// Affected reports whether a workflow may have lost receipts at a time when the
// proxy ended in disorder, by when its exchanges and runs began: it was at work
// then, or may have been.
func Affected(began []time.Time, at time.Time) bool {
	var last time.Time // before that
	later := false
	for _, t := range began {
		if t.After(at) {
			later = true
		} else if t.After(last) {
			last = t
		}
	}
	return !last.IsZero() && (later || at.Sub(last) < quiet)
}

// Began returns when the exchange began whose receipt has an id, as far as the id
// tells: a UUID of version 7.
func Began(id string) (time.Time, bool) {
	const millisecond, high = 48, 8 // bits, and digits before the first dash
	if len(id) != 36 || id[high] != '-' {
		return time.Time{}, false
	}
	ms, err := strconv.ParseUint(id[:high]+id[high+1:13], 16, millisecond)
	return time.UnixMilli(int64(ms)), err == nil
}

// Memory is a Store that forgets everything when the process ends.
type Memory struct {
	mu        sync.Mutex
	workflows map[string][]Receipt // sorted
	runs      map[ancestry.RunID]string
	lost      map[string]bool
	breaks    []time.Time
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{workflows: map[string][]Receipt{}, runs: map[ancestry.RunID]string{}, lost: map[string]bool{}}
}

func byID(a, b Receipt) int { return cmp.Compare(a.ID, b.ID) }

// Add keeps receipts as Store promises, but for durability.
func (m *Memory) Add(ctx context.Context, receipts []Receipt, lost []string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range receipts {
		of := m.workflows[r.Workflow]
		at, there := slices.BinarySearchFunc(of, r, byID)
		if !there {
			m.workflows[r.Workflow] = slices.Insert(of, at, r)
		}
		if r.Run != "" && m.runs[r.Run] == "" {
			m.runs[r.Run] = r.Workflow
		}
	}
	for _, workflow := range lost {
		if workflow == "" {
			m.breaks = append(m.breaks, time.Now())
		}
		m.lost[workflow] = true
	}
	return nil
}

// Receipts lists the receipts of a workflow.
func (m *Memory) Receipts(ctx context.Context, workflow, after string, limit int) ([]Receipt, string, error) {
	if err := ctx.Err(); err != nil || limit <= 0 {
		return nil, "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.workflows[workflow]
	at, there := slices.BinarySearchFunc(of, Receipt{ID: after}, byID)
	if there {
		at++
	}
	page := slices.Clone(of[at:])
	if len(page) <= limit {
		return page, "", nil
	}
	return page[:limit], page[limit-1].ID, nil
}

// Latest lists the newest receipts of a workflow.
func (m *Memory) Latest(ctx context.Context, workflow string, limit int) ([]Receipt, error) {
	if err := ctx.Err(); err != nil || limit <= 0 {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.workflows[workflow]
	page := slices.Clone(of[max(0, len(of)-limit):])
	slices.Reverse(page)
	return page, nil
}

// Workflow returns the workflow of a run.
func (m *Memory) Workflow(ctx context.Context, run ancestry.RunID) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if workflow := m.runs[run]; workflow != "" {
		return workflow, nil
	}
	return "", ancestry.ErrNotFound
}

// Whole reports whether nothing of a workflow is known to be lost.
func (m *Memory) Whole(ctx context.Context, workflow string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var began []time.Time
	for _, r := range m.workflows[workflow] {
		at, _ := Began(r.ID)
		began = append(began, at)
	}
	affected := func(at time.Time) bool { return Affected(began, at) }
	return !m.lost[workflow] && !slices.ContainsFunc(m.breaks, affected), nil
}
