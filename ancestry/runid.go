package ancestry

import (
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
)

// RunID names one run. It is what a host or its proxy calls the run; two hosts
// may use the same id for different runs.
//
// A RunID that came from ParseRunID is safe to put into a header, a log line
// and, by Segment, into a path.
type RunID string

// MaxRunID is the longest run id there is, in bytes. OpenWOP's v2 grammar needs
// 262 for an anon: tenant, and v1 needs 128.
const MaxRunID = 272

// mintedPrefix and a ULID make an id of ours.
const mintedPrefix = "run_"

// ErrProjection says that a path segment holds a ~ that is not followed by two
// hex digits, which OpenWOP v2 answers with 400 where other ids are not found.
var ErrProjection = errors.New("~ is not followed by two hex digits")

// ParseRunID accepts 1 to MaxRunID bytes of visible ASCII, 0x21 to 0x7e, so no
// id can end a header line or hide in a log. It refuses "." and "..": neither
// can be a path segment of its own.
func ParseRunID(s string) (RunID, error) {
	if len(s) == 0 || len(s) > MaxRunID {
		return "", fmt.Errorf("run id of %d bytes: want 1 to %d", len(s), MaxRunID)
	}
	if !visible(s) {
		return "", fmt.Errorf("run id %q: want visible ASCII", s)
	}
	if s == "." || s == ".." {
		return "", fmt.Errorf("run id %q cannot stand in a path", s)
	}
	return RunID(s), nil
}

// visible reports whether s is printable ASCII without spaces.
func visible(s string) bool {
	for i := range len(s) {
		if s[i] < 0x21 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// entropy is shared by all who mint, because ids of one millisecond can only
// ascend if each knows the one before. It draws from crypto/rand: ids travel to
// peers, who must not be able to tell another id from the one they were given.
// That is also why ids of one millisecond are up to 2^48 apart.
var entropy = &ulid.LockedMonotonicReader{
	MonotonicReader: ulid.Monotonic(rand.Reader, 1<<48-1),
}

// NewRunID mints an id, "run_" and a ULID of now. Ids sort by their millisecond,
// and those minted one after the other in one millisecond ascend. It may be
// called concurrently.
func NewRunID(now time.Time) RunID {
	ms := uint64(min(max(now.UnixMilli(), 0), int64(ulid.MaxTime())))
	for {
		id, err := ulid.New(ms, entropy)
		if err == nil {
			return RunID(mintedPrefix + id.String())
		}
		// crypto/rand never fails and ms is in range: the 80 bits of this
		// millisecond ran over, once in 2^30 ids.
		ms = min(ms+1, ulid.MaxTime())
	}
}

// Minted reports whether NewRunID could have made the id, and when. The time is
// what the id says: a peer can send any.
func (id RunID) Minted() (time.Time, bool) {
	s, ok := strings.CutPrefix(string(id), mintedPrefix)
	if !ok || len(s) != ulid.EncodedSize {
		return time.Time{}, false
	}
	u, err := ulid.ParseStrict(s)
	if err != nil || u.String() != s { // the parser takes lower case as well
		return time.Time{}, false
	}
	return time.UnixMilli(int64(u.Time())), true
}

// TenantBound reports whether the id has the form that OpenWOP v2 requires in
// bodies, <tenant>/<opaque>.
func (id RunID) TenantBound() bool {
	tenant, opaque, ok := strings.Cut(strings.TrimPrefix(string(id), "anon:"), "/")
	return ok && v2Name(tenant, 1) && v2Name(opaque, 16)
}

// v2Name reports whether s is [A-Za-z0-9._~-]{least,128}.
func v2Name(s string, least int) bool {
	if len(s) < least || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		if !verbatim(s[i]) && s[i] != '~' {
			return false
		}
	}
	return true
}

// verbatim reports whether the projection leaves c as it is.
func verbatim(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return c == '.' || c == '_' || c == '-'
}

// Segment projects the id into one path segment as OpenWOP v2 does (RFC 0184):
// each byte outside [A-Za-z0-9._-] becomes ~ and two upper-case hex digits. The
// result needs no further escaping, and must not be projected again.
func (id RunID) Segment() string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(id) {
		if c := id[i]; verbatim(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('~')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
	return b.String()
}

// ParseSegmentV1 returns the run id that one raw path segment of OpenWOP v1
// stands for: percent escapes are decoded once. A v1 id is any string, so a ~
// stands for itself.
func ParseSegmentV1(raw string) (RunID, error) {
	s, err := url.PathUnescape(raw)
	if err != nil {
		return "", fmt.Errorf("run id in path: %w", err)
	}
	return ParseRunID(s)
}

// ParseSegmentV2 returns the run id that one raw path segment of OpenWOP v2
// stands for: percent escapes are decoded once, then the projection is, in
// either case of its digits. Clients send acme~2Frun and acme%2Frun alike. The
// error is ErrProjection if a ~ is not followed by two hex digits.
func ParseSegmentV2(raw string) (RunID, error) {
	s, err := url.PathUnescape(raw)
	if err != nil {
		return "", fmt.Errorf("run id in path: %w", err)
	}
	if s, err = unproject(s); err != nil {
		return "", fmt.Errorf("run id in path: %w", err)
	}
	return ParseRunID(s)
}

// unproject decodes each ~HH of s.
func unproject(s string) (string, error) {
	if strings.IndexByte(s, '~') < 0 {
		return s, nil
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '~' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", ErrProjection
		}
		hi, lo := unhex(s[i+1]), unhex(s[i+2])
		if hi > 15 || lo > 15 {
			return "", ErrProjection
		}
		b.WriteByte(hi<<4 | lo)
		i += 2
	}
	return b.String(), nil
}

// unhex returns the value of a hex digit, and 255 for any other byte.
func unhex(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return math.MaxUint8
}
