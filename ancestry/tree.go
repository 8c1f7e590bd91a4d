package ancestry

import (
	"net/http"
	"time"
)

const (
	maxTreeDepth = 16
	maxTreeNodes = 10_000
)

// Tree is a run and all that it is known to have caused.
type Tree struct {
	Root  *TreeNode `json:"root"`
	Nodes int       `json:"nodes"` // calls without a run included
	// Truncated says that some node's children are not all listed.
	Truncated bool `json:"truncated"`
}

// TreeNode is one run of a Tree.
type TreeNode struct {
	Run       RunID       `json:"runId"` // the host's own id, where it is known
	HostID    string      `json:"hostId"`
	Cause     Cause       `json:"cause,omitempty"` // how its parent started it
	Operation string      `json:"operation,omitempty"`
	Time      time.Time   `json:"time"`
	Children  []*TreeNode `json:"children,omitempty"`
	Truncated bool        `json:"truncated,omitempty"` // it has children or handoffs that are not listed

	Handoff  *Handoff  `json:"handoff,omitempty"`  // the call by which its parent started it, if that is remembered
	Handoffs []Handoff `json:"handoffs,omitempty"` // its calls of which it is not known what run they have started

	ids []RunID
}

// place tells the runs of different hosts apart that have the same id.
type place struct {
	host string
	run  RunID
}

// tree lists what a run caused, level by level, so that where the bounds cut it
// the nearest descendants are the ones that are listed.
//
// Runs on other hosts are leaves here, unless they called back.
func (a *API) tree(r *http.Request, link Link) (any, error) {
	root := a.node(link)
	body := &Tree{Root: root, Nodes: 1}
	seen := map[place]bool{{root.HostID, root.Run}: true}
	level := []*TreeNode{root}
	for depth := 0; len(level) > 0; depth++ {
		var below []*TreeNode
		for _, n := range level {
			limit := maxTreeNodes - body.Nodes
			if depth == maxTreeDepth {
				limit = 0
			}
			if err := a.grow(r, n, limit, seen); err != nil {
				return nil, err
			}
			body.Nodes += len(n.Children) + len(n.Handoffs)
			body.Truncated = body.Truncated || n.Truncated
			below = append(below, n.Children...)
		}
		level = below
	}
	return body, nil
}

// grow gives n its children and handoffs, at most limit of them.
func (a *API) grow(r *http.Request, n *TreeNode, limit int, seen map[place]bool) error {
	if err := a.addChildren(r, n, limit, seen); err != nil {
		return err
	}
	if n.HostID != a.o.HostID {
		return nil
	}
	started := map[place]*TreeNode{}
	for _, c := range n.Children {
		for _, id := range c.ids {
			started[place{c.HostID, id}] = c
		}
	}
	for _, h := range a.o.Handoffs(n.ids...) {
		switch c := started[place{h.Host, h.Child}]; {
		case c != nil:
			c.Handoff = &h // the newest, if the run was called again
		case len(n.Children)+len(n.Handoffs) >= limit:
			n.Truncated = true
		default:
			n.Handoffs = append(n.Handoffs, h)
		}
	}
	return nil
}

func (a *API) addChildren(r *http.Request, n *TreeNode, limit int, seen map[place]bool) error {
	for after := ""; ; {
		links, next, err := a.o.Reader.Children(r.Context(), n.Run, after, min(limit+1, maxPage))
		if err != nil {
			return err
		}
		for _, l := range links {
			p := l.Parent()
			c := a.node(l)
			if p == nil || p.Host != n.HostID || seen[place{c.HostID, c.Run}] {
				continue // the child of a namesake on another host, or one that is listed
			}
			if len(n.Children) == limit {
				n.Truncated = true
				return nil
			}
			seen[place{c.HostID, c.Run}] = true
			n.Children = append(n.Children, c)
		}
		if next == "" {
			return nil
		}
		after = next
	}
}

func (a *API) node(l Link) *TreeNode {
	n := &TreeNode{Run: l.ID(), HostID: l.Host, Operation: l.Operation, Time: l.Time, ids: []RunID{l.Run}}
	if l.Alias != "" {
		n.ids = append(n.ids, l.Alias)
	}
	if n.HostID == "" {
		n.HostID = a.o.HostID
	}
	if p := l.Parent(); p != nil {
		n.Cause = p.Cause
	}
	return n
}
