package proxy

import (
	"context"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/wopproxy/wopproxy/ancestry"
	"github.com/wopproxy/wopproxy/audit"
	"github.com/wopproxy/wopproxy/proxy/internal/attribution"
	"github.com/wopproxy/wopproxy/proxy/internal/openwop"
)

// follower reads the event logs of the host's runs by itself, where the policy
// says so: what they show is then seen although nobody else reads them. Its
// requests are no exchanges, and nothing that passes ever waits for them.
type follower struct {
	p     *Proxy
	begun chan followed // runs that Follow has not taken up yet

	quiet            time.Duration // a host that sends nothing for so long is asked again
	leastWait, worst time.Duration // between two requests for one log: at first, and at most

	mu   sync.Mutex
	runs map[ancestry.RunID]struct{} // whose logs are read, or about to be
	told map[followOutcome]bool      // what the log has said of runs since one could be read to its end
}

// followed is a run whose log is read.
type followed struct {
	id ancestry.RunID
	v1 bool // it began under 1.x, or looks as if it had
}

// followOutcome says how a request for the log of a run ended.
type followOutcome string

const (
	followEnded     followOutcome = "ended"     // with the end of the run
	followOpen      followOutcome = "open"      // before that: it is asked again
	followFailed    followOutcome = "failed"    // there was no answer, or an error that may pass: it is asked again
	followRefused   followOutcome = "refused"   // the host does not give the log out
	followAbandoned followOutcome = "abandoned" // the host sends what leads nowhere, or nothing for too long
	followOther     followOutcome = ""          // not in this way; also where nobody wants to know any longer
)

func followOutcomes() []followOutcome {
	return []followOutcome{followEnded, followOpen, followFailed, followRefused, followAbandoned}
}

// uselessEvents is how much of a stream is read that holds nothing new, in events
// of the greatest length.
const uselessEvents = 32

func newFollower(p *Proxy) *follower {
	return &follower{
		p: p, begun: make(chan followed, 256),
		quiet:     90 * time.Second, // hosts send at least a comment every 30
		leastWait: 250 * time.Millisecond, worst: 30 * time.Second,
		runs: map[ancestry.RunID]struct{}{}, told: map[followOutcome]bool{},
	}
}

// Follow reads the event logs of the runs that begin, where the policy says so,
// until ctx ends. Then it cuts what is open, and returns.
func (p *Proxy) Follow(ctx context.Context) {
	var logs sync.WaitGroup
	defer logs.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case run := <-p.follower.begun:
			logs.Go(func() { p.follower.follow(ctx, run) })
		}
	}
}

// begin has the log of a run read, unless it is already, or too many are.
func (f *follower) begin(id ancestry.RunID, v1 bool) {
	pol := f.p.policy.Load()
	if pol.WatchURL == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, known := f.runs[id]; known {
		return
	}
	if len(f.runs) < pol.MaxFollowed {
		select {
		case f.begun <- followed{id, v1}:
			f.runs[id] = struct{}{}
			return
		default: // Follow is behind, or not running
		}
	}
	f.p.metrics.limit(limitFollowed)
}

// resume has the log of a run read that began before this start of the proxy,
// unless it has no other id than ours, which the host can't be asked by.
func (f *follower) resume(run *attribution.Run) {
	id := run.ID()
	if _, minted := id.Minted(); !minted {
		f.begin(id, !id.TenantBound())
	}
}

// len returns how many logs are read.
func (f *follower) len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.runs)
}

// follow reads the log of a run to its end.
func (f *follower) follow(ctx context.Context, run followed) {
	defer func() {
		f.mu.Lock()
		delete(f.runs, run.id)
		f.mu.Unlock()
	}()
	l := &runLog{
		followed: run, p: f.p, news: time.Now(), ways: waysTo(run.v1),
	}
	wait := f.leastWait
	for {
		next := l.next
		outcome, least := l.read(ctx)
		if ctx.Err() != nil || f.p.policy.Load().WatchURL == nil {
			return
		}
		if outcome == followOther {
			continue
		}
		if (outcome == followOpen || outcome == followFailed) && l.stale() {
			outcome = followAbandoned
		}
		f.p.metrics.follows.WithLabelValues(string(outcome)).Inc()
		f.tell(outcome, l)
		switch {
		case outcome == followEnded || outcome == followRefused || outcome == followAbandoned:
			return
		case l.next > next:
			wait = f.leastWait
		}
		// Hosts that come back must not be met by everybody at once.
		pause := time.NewTimer(max(wait/2+rand.N(wait/2+1), min(least, f.worst)))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return
		}
		wait = min(2*wait, f.worst)
	}
}

// tell logs why a run is not followed any further. What is wrong with one is most
// often wrong with all, so it is told again only when a log could be read since.
func (f *follower) tell(o followOutcome, l *runLog) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o == followEnded {
		clear(f.told)
		return
	}
	if o != followRefused && o != followAbandoned || f.told[o] {
		return
	}
	f.told[o] = true
	if base := f.p.policy.Load().WatchURL; base != nil {
		l.ways = waysTo(l.v1) // the first of them is the one that was to be expected
		f.p.o.Logger.Warn("the event log of a run is not read to its end; until one is, others are only counted (executionModel.watch)",
			"run", l.id, "outcome", string(o), "status", l.status, "url", l.url(base).Redacted())
	}
}

// way is one of those in which hosts give out a log.
type way struct{ v1, poll bool }

func waysTo(v1 bool) []way { return []way{{v1: v1}, {v1, true}, {v1: !v1}, {!v1, true}} }

// runLog is the log of a run, as far as it was read.
type runLog struct {
	followed
	p       *Proxy
	ways    []way // that are left to try, the one in use first
	status  int   // of the newest answer
	checked *audit.Run
	next    int64     // the sequence number behind the newest event
	news    time.Time // when that came
	ended   bool
}

// read asks for what follows in the log, and takes it in. least is how long the
// host wants not to be asked again.
func (l *runLog) read(ctx context.Context) (o followOutcome, least time.Duration) {
	w := l.ways[0]
	l.p.advertised.of(ctx, w.v1) // what is new is judged by it
	pol := l.p.policy.Load()     // once: a credential is for the URL that it came with
	if pol.WatchURL == nil {
		return followOther, 0
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	quiet := time.AfterFunc(l.p.follower.quiet, cancel)
	defer quiet.Stop()
	resp, err := l.p.askHost(ctx, l.url(pol.WatchURL), w.v1, l.header(pol.WatchCredential))
	if err != nil {
		l.status = 0
		return followFailed, 0
	}
	defer resp.Body.Close()
	l.status = resp.StatusCode
	switch code := resp.StatusCode; {
	case code == http.StatusOK:
		return l.take(resp, quiet), 0
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return followRefused, 0
	case code == http.StatusTooManyRequests || code >= 500 && code != http.StatusNotImplemented:
		seconds, _ := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 16) // a date counts as none
		return followFailed, time.Duration(seconds) * time.Second
	}
	return l.otherwise(), 0 // 404, 406 or 400: the host may have the log in another form
}

// otherwise goes on to the next way to read the log.
func (l *runLog) otherwise() followOutcome {
	if len(l.ways) == 1 || l.next > 0 {
		return followRefused
	}
	l.ways = l.ways[1:]
	return followOther
}

// url is where the log is to be had.
func (l *runLog) url(base *url.URL) *url.URL {
	w, u := l.ways[0], *base
	prefix, segment := "/runs/", l.id.Segment()
	if w.v1 {
		prefix, segment = "/v1/runs/", url.PathEscape(string(l.id))
	}
	tail, query := "/events", "streamMode=debug"
	if w.poll {
		cursor := "afterSequence"
		if w.v1 {
			cursor = "lastSequence"
		}
		tail, query = "/events/poll", "timeout=30"
		if l.next > 0 {
			query += "&" + cursor + "=" + strconv.FormatInt(l.next-1, 10)
		}
	}
	path := prefix + segment + tail
	bare, _ := url.PathUnescape(path) // what is escaped here is valid
	u.Path, u.RawPath, u.RawQuery = bare, path, query
	prefixPath(&u, base)
	return &u
}

// header is that of a request for the log.
func (l *runLog) header(credential string) http.Header {
	h := http.Header{"Accept": {"text/event-stream"}}
	if l.ways[0].poll {
		h["Accept"] = []string{"application/json"}
	} else if l.next > 0 {
		h["Last-Event-Id"] = []string{strconv.FormatInt(l.next-1, 10)}
	}
	if credential != "" {
		h["Authorization"] = []string{"Bearer " + credential}
	}
	return h
}

// take reads an answer, in whichever form it is.
func (l *runLog) take(resp *http.Response, quiet *time.Timer) followOutcome {
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case resp.Header["Content-Encoding"] != nil: // which was not asked for
		return followAbandoned
	case media == "text/event-stream":
		return l.takeStream(resp.Body, quiet)
	case media == "application/json" && l.ways[0].poll:
		return l.takePoll(resp.Body)
	}
	return l.otherwise()
}

func (l *runLog) takeStream(body io.Reader, quiet *time.Timer) followOutcome {
	pol := l.p.policy.Load()
	stream := events{limit: pol.InspectedEvent}
	buf := make([]byte, 16<<10)
	useless := 0
	for {
		n, err := body.Read(buf)
		quiet.Reset(l.p.follower.quiet)
		useless += n
		before := l.next
		l.p.guard(func() {
			stream.write(buf[:n], func(data []byte) {
				l.see(data)
				l.reached(stream.id)
			}, func() {
				l.p.metrics.limit(limitEvent)
				l.reached(stream.id)
				l.ended = l.ended || openwop.EndsRun(string(stream.name))
			})
		})
		if l.next > before {
			useless = 0
		}
		switch {
		case l.ended:
			l.end()
			return followEnded
		case useless > uselessEvents*pol.InspectedEvent || l.stale():
			return followAbandoned
		case err != nil || l.p.policy.Load().WatchURL == nil:
			return followOpen
		}
	}
}

func (l *runLog) takePoll(body io.Reader) followOutcome {
	limit := l.p.policy.Load().InspectedBody
	doc, err := io.ReadAll(io.LimitReader(body, limit+1))
	switch {
	case int64(len(doc)) > limit:
		l.p.metrics.limit(limitAnswer)
		return followAbandoned // the next one would be longer
	case err != nil:
		return followFailed
	}
	l.p.guard(func() {
		l.see(doc)
		l.ended = l.ended || openwop.Ended(openwop.Poll, doc)
	})
	if l.ended {
		l.end()
		return followEnded
	}
	return followOpen
}

// see takes an event, or what a poll has brought.
func (l *runLog) see(doc []byte) {
	l.p.watch.see(doc, l.ways[0].v1, true, &l.checked)
	// Under v2 the host may spell the id of a run of v1 with its tenant in front.
	if c := l.checked; c != nil && (c.ID() == string(l.id) || strings.HasSuffix(c.ID(), "/"+string(l.id))) {
		l.reach(c.Next())
		l.ended = l.ended || c.Ended()
	}
}

// reached notes the id of a frame, which is the sequence number of its event.
func (l *runLog) reached(id []byte) {
	if n, err := strconv.ParseInt(string(id), 10, 63); err == nil {
		l.reach(n + 1)
	}
}

// stale reports whether nothing new has come for as long as a run is live then.
func (l *runLog) stale() bool { return time.Since(l.news) > l.p.o.runTTL() }

func (l *runLog) reach(next int64) {
	if next > l.next {
		l.next, l.news = next, time.Now()
	}
}

// end ends the run, as its log says.
func (l *runLog) end() {
	if run := l.p.runs.Known(l.id); run != nil {
		l.p.runs.End(run)
	}
}
