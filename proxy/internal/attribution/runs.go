package attribution

import "slices"

// runSet is a set of runs: of one, nearly always, and of as many as are live
// where all of them share a trace or a session.
type runSet struct {
	all []*Run
	at  map[*Run]int // where each stands in all; nil while there are few
}

// few is how many runs are found as fast by looking at each.
const few = 8

// add puts r into the set under k.
func add[K comparable](index map[K]*runSet, k K, r *Run) {
	s := index[k]
	if s == nil {
		s = &runSet{}
		index[k] = s
	}
	if s.has(r) {
		return
	}
	s.all = append(s.all, r)
	switch {
	case s.at != nil:
		s.at[r] = len(s.all) - 1
	case len(s.all) > few:
		s.at = make(map[*Run]int, 2*few)
		for i, r := range s.all {
			s.at[r] = i
		}
	}
}

// drop takes r out of the set under k.
func drop[K comparable](index map[K]*runSet, k K, r *Run) {
	s := index[k]
	i := s.place(r)
	if i < 0 {
		return
	}
	last := len(s.all) - 1
	s.all[i] = s.all[last]
	s.all[last] = nil
	s.all = s.all[:last]
	if s.at != nil {
		if delete(s.at, r); i < last {
			s.at[s.all[i]] = i
		}
	}
	if last == 0 {
		delete(index, k)
	}
}

// place is where r stands in s.all, or -1.
func (s *runSet) place(r *Run) int {
	switch {
	case s == nil:
		return -1
	case s.at == nil:
		return slices.Index(s.all, r)
	}
	if i, ok := s.at[r]; ok {
		return i
	}
	return -1
}

func (s *runSet) has(r *Run) bool { return s.place(r) >= 0 }

func (s *runSet) len() int {
	if s == nil {
		return 0
	}
	return len(s.all)
}

// only returns the run of a set of one, else nil.
func (s *runSet) only() *Run {
	if s.len() != 1 {
		return nil
	}
	return s.all[0]
}
