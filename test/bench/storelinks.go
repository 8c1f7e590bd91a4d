package main

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
)

// idKind is what the ids of runs look like.
type idKind string

const (
	ulids idKind = "ULID" // minted by wopproxy: they ascend
	uuids idKind = "UUID" // given by hosts: they are random
)

// links makes links that are all different and can be made again from their
// numbers, so that none has to be remembered.
type links struct {
	ids  idKind
	salt uint64 // those with another have other ids
}

// siblings is how many runs have one parent, and one trace.
const siblings = 10

// link returns link i: the child of a run on another host.
func (s links) link(i int) ancestry.Link {
	l := ancestry.Link{
		Run: s.run(i),
		Chain: ancestry.Chain{Ancestors: []ancestry.Ancestor{
			{
				Run: s.parent(i), Host: "planner.example.com/agent",
				WellKnown: "https://planner.example.com/.well-known/openwop", Cause: ancestry.CauseMCPToolCall,
			},
			{
				Run: s.id('g', i/1000), Host: "front.example.com/agent",
				WellKnown: "https://front.example.com/.well-known/openwop", Cause: ancestry.CauseA2AMessage,
			},
		}},
		Evidence:  ancestry.EvidenceTraceState,
		Operation: "tools/call",
		Time:      began.Add(time.Duration(i) * time.Millisecond),
	}
	random := s.random('t', i/siblings)
	copy(l.Trace[:], random[:])
	random = s.random('s', i)
	copy(l.Span[:], random[:])
	copy(l.ParentSpan[:], random[8:])
	return l
}

// began is when the first run of a store was.
var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (s links) run(i int) ancestry.RunID    { return s.id('r', i) }
func (s links) parent(i int) ancestry.RunID { return s.id('p', i/siblings) }

// id returns an id of the kind, the ith of its family.
func (s links) id(family byte, i int) ancestry.RunID {
	b := s.random(family, i)
	if s.ids == uuids {
		b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
		t := hex.EncodeToString(b[:])
		return ancestry.RunID(t[:8] + "-" + t[8:12] + "-" + t[12:16] + "-" + t[16:20] + "-" + t[20:])
	}
	const digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	ms := uint64(began.UnixMilli()) + uint64(i)
	var text [26]byte
	for n := range 10 {
		text[n] = digits[ms>>(45-5*n)&31]
	}
	for n := range 16 {
		text[10+n] = digits[b[n]&31]
	}
	return "run_" + ancestry.RunID(text[:])
}

// random returns what is always the same for family and i, and like no other.
func (s links) random(family byte, i int) (b [16]byte) {
	r := rand.NewPCG(s.salt<<8|uint64(family), uint64(i))
	binary.BigEndian.PutUint64(b[:8], r.Uint64())
	binary.BigEndian.PutUint64(b[8:], r.Uint64())
	return b
}
