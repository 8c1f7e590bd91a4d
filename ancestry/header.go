package ancestry

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/dunglas/httpsfv"
)

// Default names of the header fields. Operators may choose others.
const (
	HeaderRunAncestry = "Run-Ancestry" // request: the ancestors of what it starts, nearest first
	HeaderRunID       = "Run-Id"       // request to a host: the run to act for; response: the run started
)

// Limits of the Run-Ancestry header.
const (
	MaxAncestors   = 16   // kept of a chain, and sent
	MaxHeaderBytes = 4096 // sent

	maxReceivedBytes     = 64 << 10
	maxReceivedAncestors = 64
	maxDepth             = 1_000_000_000
)

// ParseChain reads the values of a Run-Ancestry header: a List of Strings
// (RFC 9651), nearest ancestor first, each a run id with the parameters
//
//	host   String, 1 to 255 visible ASCII: the hostId of the host it ran on
//	cause  Token, one of OpenWOP's four: how it started the run below
//	wk     String, optional: that host's absolute http or https discovery URL
//	ev     String, optional, 1 to 128 visible ASCII: the event that did so
//	more   Boolean, on the last member: older ancestors were cut
//	depth  Integer, on the first member: the count of all ancestors
//	wf     String, optional, on the first member: its workflow, wf_ and 20 to 48 letters, digits, - and _
//	step   String, beside wf: its step there, step_ and the like
//
// Other parameters are ignored, and so are wf and step where they are not that, or
// one is without the other. Nothing is taken from a header that breaks any
// of this, is longer than 64 KiB or has more than 64 members. Of a longer chain
// the nearest MaxAncestors are kept, and More and Depth say so; they are always
// set together. No header is an empty chain.
func ParseChain(values []string) (Chain, error) {
	if err := bounded(values); err != nil {
		return Chain{}, fmt.Errorf("parse ancestry: %w", err)
	}
	list, err := httpsfv.UnmarshalList(values)
	if err != nil {
		return Chain{}, fmt.Errorf("parse ancestry: %w", err)
	}
	if len(list) > maxReceivedAncestors {
		return Chain{}, fmt.Errorf("parse ancestry: %d members: want at most %d", len(list), maxReceivedAncestors)
	}
	var c Chain
	for i, member := range list {
		item, ok := member.(httpsfv.Item)
		if !ok {
			return Chain{}, fmt.Errorf("parse ancestry: member %d is an inner list", i)
		}
		a, err := parseAncestor(item)
		if err == nil {
			err = c.parseExtent(item.Params, i == 0, i == len(list)-1)
		}
		if i == 0 {
			a.parsePlace(item.Params)
		}
		if err != nil {
			return Chain{}, fmt.Errorf("parse ancestry: member %d: %w", i, err)
		}
		c.Ancestors = append(c.Ancestors, a)
	}
	if c.Depth != 0 && c.Depth < len(c.Ancestors) {
		return Chain{}, fmt.Errorf("parse ancestry: depth %d with %d members", c.Depth, len(c.Ancestors))
	}
	if c = c.bound(); len(list) > MaxAncestors {
		c.Ancestors = slices.Clone(c.Ancestors) // without the others behind them
	}
	return c, nil
}

// bounded refuses more text than the parser should see.
func bounded(values []string) error {
	n := 0
	for _, v := range values {
		n += len(v)
	}
	if n > maxReceivedBytes {
		return fmt.Errorf("%d bytes: want at most %d", n, maxReceivedBytes)
	}
	return nil
}

// parseAncestor reads one member without what it says of the chain.
func parseAncestor(item httpsfv.Item) (Ancestor, error) {
	run, ok := item.Value.(string)
	if !ok {
		return Ancestor{}, fmt.Errorf("run id is a %T: want a string", item.Value)
	}
	a := Ancestor{Run: RunID(run)}
	for _, p := range []struct {
		name string
		dst  *string
	}{{"host", &a.Host}, {"wk", &a.WellKnown}, {"ev", &a.Event}} {
		v, ok := item.Params.Get(p.name)
		if !ok {
			continue
		}
		if *p.dst, ok = v.(string); !ok || *p.dst == "" {
			return Ancestor{}, fmt.Errorf("parameter %s is not a non-empty string", p.name)
		}
	}
	cause, ok := item.Params.Get("cause")
	if !ok {
		return Ancestor{}, errors.New("no cause")
	}
	token, ok := cause.(httpsfv.Token)
	if !ok {
		return Ancestor{}, errors.New("cause is not a token")
	}
	var err error
	if a.Cause, err = ParseCause(string(token)); err != nil {
		return Ancestor{}, err
	}
	return a, a.check()
}

// parsePlace reads wf and step. They say nothing of who the ancestor is: one that
// is not as it should be costs nobody a parent.
func (a *Ancestor) parsePlace(p *httpsfv.Params) {
	get := func(name string, valid func(string) bool) string {
		v, _ := p.Get(name)
		if s, ok := v.(string); ok && valid(s) {
			return s
		}
		return ""
	}
	if wf, step := get("wf", ValidWorkflow), get("step", validStep); wf != "" && step != "" {
		a.Workflow, a.Step = wf, step
	}
}

// ValidWorkflow reports whether id is that of a workflow in evidence: wf_ and 20 to
// 48 letters, digits, - and _.
func ValidWorkflow(id string) bool { return isPlace(id, "wf_") }

func validStep(id string) bool { return isPlace(id, "step_") }

func isPlace(id, prefix string) bool {
	const shortest, longest = 20, 48
	rest, ok := strings.CutPrefix(id, prefix)
	foreign := func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-' && c != '_'
	}
	return ok && len(rest) >= shortest && len(rest) <= longest && !strings.ContainsFunc(rest, foreign)
}

// parseExtent reads more and depth. On any other member than theirs they are
// the trace of two chains run together, which none can take apart.
func (c *Chain) parseExtent(p *httpsfv.Params, first, last bool) error {
	if v, ok := p.Get("more"); ok {
		more, ok := v.(bool)
		if !ok {
			return errors.New("parameter more is not a boolean")
		}
		if more && !last {
			return errors.New("parameter more before the last member")
		}
		c.More = more
	}
	if v, ok := p.Get("depth"); ok {
		depth, ok := v.(int64)
		if !ok || depth < 1 || depth > maxDepth {
			return fmt.Errorf("depth %v: want an integer from 1 to %d", v, maxDepth)
		}
		if !first {
			return errors.New("parameter depth after the first member")
		}
		c.Depth = int(depth)
	}
	return nil
}

// check reports what keeps a from standing in a header.
func (a Ancestor) check() error {
	if _, err := ParseRunID(string(a.Run)); err != nil {
		return err
	}
	if err := checkHost(a.Host); err != nil {
		return err
	}
	if _, err := ParseCause(string(a.Cause)); err != nil {
		return err
	}
	if a.Event != "" && !ValidEvent(a.Event) {
		return fmt.Errorf("event id %.140q: want at most 128 bytes of visible ASCII", a.Event)
	}
	if a.WellKnown == "" {
		return nil
	}
	return checkURL(a.WellKnown)
}

// ValidEvent reports whether id can stand in a header as an event's id: 1 to 128
// bytes of visible ASCII.
func ValidEvent(id string) bool { return id != "" && len(id) <= 128 && visible(id) }

func checkHost(s string) error {
	if len(s) == 0 || len(s) > 255 || !visible(s) {
		return fmt.Errorf("host %.260q: want 1 to 255 bytes of visible ASCII", s)
	}
	return nil
}

// checkURL accepts what a walker may be asked to follow. Quotes and backslashes
// are no part of a URL, and would make one member larger than a header.
func checkURL(s string) error {
	if len(s) > 2048 || !visible(s) || strings.ContainsAny(s, `"\`) {
		return fmt.Errorf("URL %.80q: want at most 2048 bytes of URL characters", s)
	}
	u, err := url.Parse(s)
	if err != nil {
		return err
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return fmt.Errorf("URL %.80q: want an absolute http or https URL without credentials", s)
	}
	return nil
}

// Count returns how many ancestors there are, those not listed included, or
// the least it can be.
func (c Chain) Count() int {
	n := len(c.Ancestors)
	if c.More {
		n++
	}
	return max(n, c.Depth)
}

// With returns the chain of what a causes: a in front of c, older ancestors
// beyond MaxAncestors cut.
func (c Chain) With(a Ancestor) Chain {
	depth := c.Count() + 1
	return Chain{
		Ancestors: append([]Ancestor{a}, c.Ancestors[:min(len(c.Ancestors), MaxAncestors)]...),
		Depth:     min(depth, maxDepth),
	}.bound()
}

// bound brings c into the one form a chain is compared in: at most MaxAncestors
// listed, and More and Depth set if there are more, else neither.
func (c Chain) bound() Chain {
	return c.Nearest(MaxAncestors)
}

// Nearest returns c without the ancestors beyond the first n. More and Depth
// say what was cut.
func (c Chain) Nearest(n int) Chain {
	depth := c.Count()
	n = min(n, len(c.Ancestors))
	c.Ancestors = c.Ancestors[:n:n]
	c.More, c.Depth = depth > n, 0
	if c.More {
		c.Depth = depth
	}
	return c
}

// Compact returns c without the ancestors for which Header has no room, and which
// it shows are there. It holds on to no more than the rest needs: less than 7 KB.
func (c Chain) Compact() Chain {
	n, size := 0, 0
	for _, a := range c.Ancestors[:min(len(c.Ancestors), MaxAncestors)] {
		if size += len(a.Run) + len(a.Host) + len(a.WellKnown) + len(a.Event); size > MaxHeaderBytes {
			break
		}
		n++
	}
	if n == len(c.Ancestors) {
		return c
	}
	c = c.Nearest(n)
	c.Ancestors = slices.Clone(c.Ancestors)
	return c
}

// Header formats c as the value of a Run-Ancestry header, or returns "" when
// there is nothing to send. At most MaxAncestors members and MaxHeaderBytes are
// sent: the oldest ancestors are cut, the last kept member bears more and the
// first bears depth. A member that ParseChain would refuse is cut as well, with
// all that are older.
func (c Chain) Header() string {
	members := make([]string, 0, min(len(c.Ancestors), MaxAncestors))
	for i, a := range c.Ancestors[:cap(members)] {
		if a.check() != nil {
			break
		}
		if i > 0 {
			a.Workflow = "" // of another step than the one that causes what is sent
		}
		members = append(members, a.format())
	}
	for n := len(members); n > 0; n-- {
		if s := c.Nearest(n).join(members[:n]); len(s) <= MaxHeaderBytes {
			return s
		}
	}
	return ""
}

// join lists the formatted members of c.
func (c Chain) join(members []string) string {
	var b strings.Builder
	for i, m := range members {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(m)
		if i == 0 && c.Depth > 0 {
			b.WriteString(";depth=")
			b.WriteString(strconv.Itoa(min(c.Depth, maxDepth)))
		}
	}
	if c.More {
		b.WriteString(";more")
	}
	return b.String()
}

// format writes one member. Serialising is simple enough to go without the
// library's map per member; the fuzz test holds it to the library's parser.
func (a Ancestor) format() string {
	b := make([]byte, 0, 256)
	b = appendString(b, string(a.Run))
	b = appendString(append(b, ";host="...), a.Host)
	if a.WellKnown != "" {
		b = appendString(append(b, ";wk="...), a.WellKnown)
	}
	b = append(append(b, ";cause="...), a.Cause...)
	if a.Event != "" {
		b = appendString(append(b, ";ev="...), a.Event)
	}
	if ValidWorkflow(a.Workflow) && validStep(a.Step) {
		b = appendString(append(b, ";wf="...), a.Workflow)
		b = appendString(append(b, ";step="...), a.Step)
	}
	return string(b)
}

// appendString appends s, which is visible ASCII, as a String of RFC 9651.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return append(b, '"')
}

// FormatRunID formats the value of a Run-Id header: an Item, the run id as a
// String, with the parameter host unless that is empty. It returns "" for an
// id or a host that ParseRunIDHeader would refuse.
func FormatRunID(id RunID, host string) string {
	if _, err := ParseRunID(string(id)); err != nil {
		return ""
	}
	b := appendString(nil, string(id))
	if host == "" {
		return string(b)
	}
	if checkHost(host) != nil {
		return ""
	}
	return string(appendString(append(b, ";host="...), host))
}

// ParseRunIDHeader reads the values of a Run-Id header. host is "" where the
// sender did not name one; other parameters are ignored.
func ParseRunIDHeader(values []string) (id RunID, host string, err error) {
	if err := bounded(values); err != nil {
		return "", "", fmt.Errorf("parse run id header: %w", err)
	}
	item, err := httpsfv.UnmarshalItem(values)
	if err != nil {
		return "", "", fmt.Errorf("parse run id header: %w", err)
	}
	run, ok := item.Value.(string)
	if !ok {
		return "", "", fmt.Errorf("parse run id header: run id is a %T: want a string", item.Value)
	}
	if id, err = ParseRunID(run); err != nil {
		return "", "", fmt.Errorf("parse run id header: %w", err)
	}
	if v, ok := item.Params.Get("host"); ok {
		if host, ok = v.(string); !ok {
			return "", "", errors.New("parse run id header: parameter host is not a string")
		}
		if err := checkHost(host); err != nil {
			return "", "", fmt.Errorf("parse run id header: %w", err)
		}
	}
	return id, host, nil
}
