package inject

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// object is a mapping of a manifest.
type object = map[string]any

// path leads to a value: keys of mappings, and in lists what identifies the
// element, see [identity].
type path []string

// String is a JSON pointer, but for elements of lists, which have names here.
func (p path) String() string {
	parts := make([]string, len(p))
	for i, s := range p {
		parts[i] = strings.NewReplacer("~", "~0", "/", "~1").Replace(s)
	}
	return strings.Join(parts, "/")
}

func parsePath(s string) (p path) {
	for part := range strings.SplitSeq(s, "/") {
		p = append(p, strings.NewReplacer("~1", "/", "~0", "~").Replace(part))
	}
	return p
}

// lists are the keys whose value is a list of named elements.
var lists = []string{"containers", "initContainers", "env", "ports", "volumeMounts", "volumes"}

// identity is what an element of a list is known by: its name, but a port, which
// is renamed, by its number.
func identity(list string, element any) string {
	m, _ := element.(object)
	if list != "ports" {
		name, _ := m["name"].(string)
		return name
	}
	protocol, _ := m["protocol"].(string)
	if protocol == "" {
		protocol = "TCP"
	}
	return fmt.Sprintf("%v/%s", m["containerPort"], protocol)
}

// at returns what p leads to, nil if it leads nowhere.
func at(v any, p ...string) any {
	list := ""
	for _, key := range p {
		switch have := v.(type) {
		case object:
			v = have[key]
		case []any:
			i := index(list, have, key)
			if i < 0 {
				return nil
			}
			v = have[i]
		default:
			return nil
		}
		list = key
	}
	return v
}

func index(list string, elements []any, key string) int {
	return slices.IndexFunc(elements, func(e any) bool { return identity(list, e) == key })
}

// text returns the string that p leads to, or "".
func text(v any, p ...string) string {
	s, _ := at(v, p...).(string)
	return s
}

// objects returns the mappings in the list that p leads to.
func objects(v any, p ...string) (found []object) {
	list, _ := at(v, p...).([]any)
	for _, e := range list {
		if m, ok := e.(object); ok {
			found = append(found, m)
		}
	}
	return found
}

// undo is what takes back a row of edits. It is kept with what was edited, as JSON,
// and leads by names, so that it still fits when others have added to that.
type undo struct {
	Remove  map[string][]string `json:"remove,omitempty"`  // what was not there: keys by where they are
	Empty   []string            `json:"empty,omitempty"`   // what was not there, and goes if nothing is left in it
	Null    []string            `json:"null,omitempty"`    // what was a key without content, and is one again then
	Restore map[string]any      `json:"restore,omitempty"` // what had another value
}

// editor edits a pod and notes how to take it back.
type editor struct {
	pod  object // metadata and spec
	undo undo
}

// set puts value at p; what is missing on the way is made. New elements of lists
// come last.
func (e *editor) set(value any, p ...string) { e.put(value, false, p) }

// first is set for an element of a list that, if it is new, comes first.
func (e *editor) first(value any, p ...string) { e.put(value, true, p) }

func (e *editor) put(value any, first bool, p path) {
	for i := 1; i < len(p); i++ {
		if isNull(e.pod, p[:i]) {
			e.undo.Null = append(e.undo.Null, p[:i].String())
		} else if at(e.pod, p[:i]...) == nil {
			e.undo.Empty = append(e.undo.Empty, p[:i].String())
		}
	}
	if was := at(e.pod, p...); was == nil && !isNull(e.pod, p) {
		if e.undo.Remove == nil {
			e.undo.Remove = map[string][]string{}
		}
		last := len(p) - 1
		e.undo.Remove[p[:last].String()] = append(e.undo.Remove[p[:last].String()], p[last])
	} else {
		e.restore(p, was)
	}
	put(e.pod, value, first, "", p)
}

// replace puts value in the place of the element at p, which is then known by the
// path after.
func (e *editor) replace(value any, after, p path) {
	e.restore(after, at(e.pod, p...))
	put(e.pod, value, false, "", p)
}

func (e *editor) restore(p path, was any) {
	if e.undo.Restore == nil {
		e.undo.Restore = map[string]any{}
	}
	e.undo.Restore[p.String()] = was
}

// put returns v with value at p. A value of nil removes what is there.
func put(v, value any, first bool, list string, p path) any {
	key, rest := p[0], p[1:]
	below := func(v any) any {
		if len(rest) == 0 {
			return value
		}
		if v == nil {
			v = object{}
			if slices.Contains(lists, key) {
				v = []any{}
			}
		}
		return put(v, value, first, key, rest)
	}
	switch have := v.(type) {
	case object:
		if have[key] = below(have[key]); have[key] == nil {
			delete(have, key)
		}
		return have
	case []any:
		i := index(list, have, key)
		switch {
		case i >= 0 && value == nil && len(rest) == 0:
			return slices.Delete(have, i, i+1)
		case i >= 0:
			have[i] = below(have[i])
		case first:
			return slices.Insert(have, 0, below(nil))
		default:
			return append(have, below(nil))
		}
		return have
	}
	return v
}

// undone takes the edits back. What is no longer there is left alone.
func (u undo) undone(pod object) {
	for p, value := range u.Restore {
		switch p := parsePath(p); {
		case at(pod, p...) == nil:
		case value == nil:
			setNull(pod, p)
		default:
			put(pod, value, false, "", p)
		}
	}
	for in, keys := range u.Remove {
		for _, key := range keys {
			if p := append(parsePath(in), key); at(pod, p...) != nil {
				put(pod, nil, false, "", p)
			}
		}
	}
	// What was made first holds what was made later.
	for _, p := range slices.Backward(u.Empty) {
		if p := parsePath(p); empty(at(pod, p...)) {
			put(pod, nil, false, "", p)
		}
	}
	for _, p := range u.Null {
		if p := parsePath(p); empty(at(pod, p...)) {
			setNull(pod, p)
		}
	}
}

// isNull reports whether p leads to a key without content.
func isNull(pod object, p path) bool {
	above, _ := at(pod, p[:len(p)-1]...).(object)
	v, isKey := above[p[len(p)-1]]
	return isKey && v == nil
}

// setNull makes what p leads to a key without content.
func setNull(pod object, p path) {
	if above, ok := at(pod, p[:len(p)-1]...).(object); ok {
		above[p[len(p)-1]] = nil
	}
}

// empty reports whether v is a mapping or a list with nothing in it.
func empty(v any) bool {
	switch v := v.(type) {
	case object:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}

func (u *undo) UnmarshalJSON(text []byte) error {
	type plain undo // without this method
	dec := json.NewDecoder(strings.NewReader(string(text)))
	dec.UseNumber() // a port is 8080, not 8080.0
	if err := dec.Decode((*plain)(u)); err != nil {
		return err
	}
	for p, v := range u.Restore {
		u.Restore[p] = whole(v)
	}
	return nil
}

// whole returns v with numbers as YAML has them.
func whole(v any) any {
	switch v := v.(type) {
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return int(i)
		}
		f, _ := v.Float64()
		return f
	case []any:
		for i := range v {
			v[i] = whole(v[i])
		}
	case object:
		for k := range v {
			v[k] = whole(v[k])
		}
	}
	return v
}

// clone returns a copy of v that can be edited.
func clone(v any) any {
	switch v := v.(type) {
	case []any:
		c := make([]any, len(v))
		for i := range v {
			c[i] = clone(v[i])
		}
		return c
	case object:
		c := make(object, len(v))
		for k := range v {
			c[k] = clone(v[k])
		}
		return c
	}
	return v
}
