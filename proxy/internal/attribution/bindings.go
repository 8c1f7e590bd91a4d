package attribution

import (
	"strings"
	"time"
)

// Key is the id of a conversation: something both sides repeat on each of its
// messages.
type Key struct{ Kind, ID string }

// Bind notes that key belongs to r. It reports false when there is no place.
func (t *Table) Bind(r *Run, key Key) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bindLocked(r, key)
}

func (t *Table) bindLocked(r *Run, key Key) bool {
	if r.node == nil || t.bindings[key].has(r) {
		return true
	}
	if t.bound >= t.o.MaxBindings {
		// A conversation whose second run is unknown must not look like one
		// with a single run.
		t.blindUntil, t.blindWhy = time.Now().Add(t.o.TTL), ReasonTableFull
		return false
	}
	t.bound++
	add(t.bindings, key, r)
	r.bindings = append(r.bindings, key)
	return true
}

// Mention notes the ids, as Mentions returns them, in a request that r was
// given later than the one that started it; all says that there are no more.
// After one without all, r may know the ids of every other run, and none is
// evidence, as if r had been started without Read.
// It reports false when there is no place.
func (t *Table) Mention(r *Run, ids []string, all bool) bool {
	fits := true
	for _, id := range ids {
		fits = t.Bind(r, Key{kindMentioned, id}) && fits
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.node == nil || r.read == all {
		return fits
	}
	if r.read = all; all {
		t.unread--
	} else {
		t.unread++
	}
	return fits
}

// Own notes that id is one of r's own, if it is one that nobody else uses by
// chance. It reports false when there is no place.
func (t *Table) Own(r *Run, id string) bool {
	return !t.o.Echoes || !Opaque(id) || t.Bind(r, Key{kindOwn, strings.ToLower(id)})
}

// Bound returns the one live run that key is bound to, or nil.
func (t *Table) Bound(key Key) *Run {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expireLocked(time.Now())
	r := t.bindings[key].only()
	if r != nil {
		t.touchLocked(r, time.Now())
	}
	return r
}
