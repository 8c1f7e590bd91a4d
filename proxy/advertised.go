package proxy

import (
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
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
	model audit.Model
	told  map[int]wire.Told // what callers find in it, by the level of the claim that is made
	known bool              // whether there is one
	odd   bool              // there is none by an answer that no host of the protocol gives
	until time.Time         // when it is to be read again; zero: it never was
	read  chan struct{}     // closed when the reading under way has ended; nil: none is
}

// Bounds on discovery.
const (
	discoveryTTL     = 10 * time.Minute
	discoveryMissing = time.Minute            // where there is no document
	discoveryRetry   = 5 * time.Second        // a document that could not be read again is not asked for
	discoveryFirst   = 200 * time.Millisecond // nor is one that never was: its host may be starting
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
	if c.read == nil && !time.Now().Before(c.until) {
		c.read = make(chan struct{})
		go a.ask(v1, c.read) // ends within discoveryTimeout
	}
	return *c
}

// of returns what is known of a major. While nothing is, it waits until the document
// was read, for no longer than discoveryFirst and discoveryTimeout.
func (a *advertised) of(ctx context.Context, v1 bool) contract {
	c := a.now(v1)
	if !c.known && c.read == nil {
		select {
		case <-time.After(time.Until(c.until)):
		case <-ctx.Done():
		}
		c = a.now(v1)
	}
	if !c.known && c.read != nil {
		select {
		case <-c.read:
		case <-ctx.Done():
		}
		c = a.now(v1)
	}
	return c
}

func (a *advertised) majorLocked(v1 bool) *contract {
	if v1 {
		return &a.majors[1]
	}
	return &a.majors[0]
}

// by returns what callers find in the document where a claim is made.
func (c contract) by(claim Claim) wire.Told { return c.told[claim.level()] }

// AncestryEndpoint returns what callers are told of OpenWOP's ancestry endpoint under
// a major. A host without a discovery document is bound to nothing by it.
func (p *Proxy) AncestryEndpoint(ctx context.Context, v1 bool) ancestry.Endpoint {
	c := p.advertised.of(ctx, v1)
	told := c.by(p.policy.Load().Claim)
	switch {
	case !c.known:
		return ancestry.EndpointUnknown
	case !told.Document:
		return ancestry.EndpointServed
	case !told.Endpoint:
		return ancestry.EndpointAbsent
	case told.HostID != "" && told.HostID != p.o.HostID:
		p.foreignName.Do(func() {
			p.o.Logger.WarnContext(ctx, "the host advertises ancestry in another name than ours, and answers for it itself: host.id has to be the hostId that the host advertises",
				"host", told.HostID, "configured", p.o.HostID)
		})
		return ancestry.EndpointForeign
	}
	return ancestry.EndpointServed
}

// ask reads the document of a major. What was known stands if it can't be read.
func (a *advertised) ask(v1 bool, read chan struct{}) {
	now := a.p.fetchDiscovery(v1)
	a.mu.Lock()
	defer a.mu.Unlock()
	defer close(read)
	c := a.majorLocked(v1)
	c.read = nil
	if now == nil || now.odd && c.by(ClaimExtension).Document {
		wait := discoveryRetry
		if !c.known {
			wait = discoveryFirst
		}
		c.until = time.Now().Add(wait)
		return
	}
	if now.model == audit.UnknownModel {
		now.model = c.model
	}
	*c = *now
}

// fetchDiscovery returns what the host's discovery document of a major says, or nil if
// there is no telling. It returns within discoveryTimeout.
func (p *Proxy) fetchDiscovery(v1 bool) *contract {
	ctx, cancel := context.WithTimeout(context.Background(), discoveryTimeout)
	defer cancel()
	u := *p.o.Upstream
	u.Path = strings.TrimSuffix(u.Path, "/") + discoveryPath
	resp, err := p.askHost(ctx, &u, v1, nil)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	c := &contract{model: audit.UnknownModel, known: true}
	switch s := resp.StatusCode; {
	case s == http.StatusOK:
		return p.readDiscovery(resp, c)
	case s == http.StatusNotAcceptable: // it has one, of the other major
		c.until, c.told = time.Now().Add(discoveryTTL), map[int]wire.Told{}
		for _, claim := range claims {
			c.told[claim.level()] = wire.Told{Document: true}
		}
		return c
	case s == http.StatusNotImplemented, s == http.StatusInternalServerError && !isJSON(resp.Header.Get("Content-Type")):
		c.odd = true // a host that fails at whatever it does not know, where OpenWOP's say so in JSON
	case s >= 500, s == http.StatusRequestTimeout, s == http.StatusTooEarly, s == http.StatusTooManyRequests:
		return nil
	}
	c.until = time.Now().Add(discoveryMissing) // discovery is for everybody: what strangers can't read is none
	return c
}

// readDiscovery reads the document in resp into c. Callers get one that we can't edit
// as it is.
func (p *Proxy) readDiscovery(resp *http.Response, c *contract) *contract {
	body := io.Reader(resp.Body)
	edited := uneditable(resp) == ""
	switch encoding := resp.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
	case "gzip":
		z, err := gzip.NewReader(body)
		if err != nil {
			return nil
		}
		body = z
	default:
		return nil
	}
	doc, err := io.ReadAll(io.LimitReader(body, maxDiscovery+1))
	if err != nil || len(doc) > maxDiscovery {
		return nil
	}
	edited = edited && int64(len(doc)) <= p.policy.Load().InspectedBody
	c.told = map[int]wire.Told{}
	for _, claim := range claims {
		e := wire.DiscoveryEdit{HostID: p.o.HostID, Claim: claim.level(), Extension: p.extension}
		if !edited {
			e.Claim = nothing
		}
		c.told[claim.level()] = wire.Tells(doc, e)
	}
	if model, err := audit.ParseDiscovery(doc); err == nil {
		c.model = model
	}
	c.until = time.Now().Add(discoveryTTL)
	return c
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
	return p.inbound.http1.RoundTrip(r)
}
