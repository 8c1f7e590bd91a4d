package proxy

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/wopproxy/wopproxy/audit"
	"github.com/wopproxy/wopproxy/proxy/internal/wire"
)

// advertised knows what the host's discovery documents say, one for each major.
// They are read when somebody first asks, and again while somebody does.
type advertised struct {
	p *Proxy

	mu     sync.Mutex
	majors [2]contract // v2, v1
}

// contract is what is known of the document of one major.
type contract struct {
	model  audit.Model
	claims map[Claim]bool // those by which callers get a document that claims cross-host causation
	until  time.Time      // when it is to be read again; zero: it never was
	read   chan struct{}  // closed when the reading under way has ended; nil: none is
}

// Bounds on discovery.
const (
	discoveryTTL     = 10 * time.Minute
	discoveryRetry   = 5 * time.Second // a document that could not be read is not asked for
	discoveryTimeout = 5 * time.Second
	maxDiscovery     = 4 << 20
)

func newAdvertised(p *Proxy) *advertised {
	unknown := contract{model: audit.UnknownModel}
	return &advertised{p: p, majors: [2]contract{unknown, unknown}}
}

// now returns what is known of a major, and sees to it that more is known soon.
func (a *advertised) now(v1 bool) contract {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.majorLocked(v1)
	if c.read == nil && time.Now().After(c.until) {
		c.read = make(chan struct{})
		go a.ask(v1, c.read) // ends within discoveryTimeout
	}
	return *c
}

// of returns what is known of a major. The first to ask waits until its document
// was read, for no longer than discoveryTimeout.
func (a *advertised) of(ctx context.Context, v1 bool) contract {
	c := a.now(v1)
	if !c.until.IsZero() {
		return c
	}
	select {
	case <-c.read:
	case <-ctx.Done():
	}
	return a.now(v1)
}

func (a *advertised) majorLocked(v1 bool) *contract {
	if v1 {
		return &a.majors[1]
	}
	return &a.majors[0]
}

// ask reads the document of a major. What was known stands if it can't be read.
func (a *advertised) ask(v1 bool, read chan struct{}) {
	doc := a.p.fetchDiscovery(v1)
	model, fault := audit.ParseDiscovery(doc)
	claims := map[Claim]bool{}
	for _, by := range []Claim{ClaimLevel3, ClaimAll} {
		claims[by] = doc != nil && wire.ClaimsCausation(doc, wire.DiscoveryEdit{HostID: a.p.o.HostID, Claim: by.level(), Extension: a.p.extension})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	defer close(read)
	c := a.majorLocked(v1)
	c.read = nil
	if doc == nil {
		c.until = time.Now().Add(discoveryRetry)
		return
	}
	if fault == nil {
		c.model = model
	}
	c.claims, c.until = claims, time.Now().Add(discoveryTTL)
}

// fetchDiscovery returns the host's discovery document of a major, or nil. It
// returns within discoveryTimeout.
func (p *Proxy) fetchDiscovery(v1 bool) []byte {
	ctx, cancel := context.WithTimeout(context.Background(), discoveryTimeout)
	defer cancel()
	u := *p.o.Upstream
	u.Path = strings.TrimSuffix(u.Path, "/") + discoveryPath
	resp, err := p.askHost(ctx, &u, v1, nil)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	doc, err := io.ReadAll(io.LimitReader(resp.Body, maxDiscovery))
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil
	}
	return doc
}

// askHost sends the host a question of our own, under a major. It is no exchange:
// it passes neither listener, and begins nothing.
func (p *Proxy) askHost(ctx context.Context, u *url.URL, v1 bool, header http.Header) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	if header != nil {
		r.Header = header
	}
	r.Header["User-Agent"] = []string{""}
	r.Header["Openwop-Version"] = []string{"2"}
	if v1 {
		r.Header["Openwop-Version"] = []string{"1"}
	}
	return p.inbound.RoundTrip(r)
}
