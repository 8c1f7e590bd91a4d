package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/wopproxy/wopproxy/test/internal/rawhttp"
)

// The names of this play.
const (
	hostID   = "soak.example.com/agent"
	callerID = "caller.example.com"
	toolsID  = "tools.example.com"
	trace    = "4bf92f3577b34da6" // begins every trace id; the number ends it
)

// peers are the host behind wopproxy, and the tools that it calls.
type peers struct {
	rawhttp.Server
	host, tools, toolsTLS, blindTLS string     // addresses
	nobody                          string     // one where nobody listens
	holds                           []net.Conn // the port of it

	byPath map[string]*kind
	scores *scores
	egress string         // where calls go
	roots  *x509.CertPool // whom they trust

	lanes chan *lane // that no call uses now
}

// maxLanes are as many as the host keeps; with more calls at once it opens others.
const maxLanes = 256

func newPeers(ctx context.Context, kinds []*kind, s *scores, cert *tls.Certificate) (p *peers, err error) {
	p = &peers{byPath: map[string]*kind{}, scores: s, lanes: make(chan *lane, maxLanes)}
	for i, k := range kinds {
		if k.path == "" {
			k.path = fmt.Sprint("/soak/", i)
		}
		k.rendered = k.render()
		p.byPath[strings.TrimSuffix(k.path, rawhttp.Mark)] = k
	}
	p.Handle = p.serve
	for _, ln := range []struct {
		address *string
		cert    *tls.Certificate
	}{{&p.host, nil}, {&p.tools, nil}, {&p.toolsTLS, cert}, {&p.blindTLS, cert}} {
		if *ln.address, err = p.Listen(ln.cert); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	if err = p.hold(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// hold takes a port where nobody can listen: a connection was made from it.
func (p *peers) hold(ctx context.Context) error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer ln.Close()
	var d net.Dialer
	near, err := d.DialContext(ctx, "tcp", ln.Addr().String())
	if err != nil {
		return err
	}
	far, err := ln.Accept()
	if err != nil {
		return errors.Join(err, near.Close())
	}
	p.nobody, p.holds = near.LocalAddr().String(), []net.Conn{near, far}
	return nil
}

// Close stops all peers.
func (p *peers) Close() error {
	for _, conn := range p.holds {
		_ = conn.Close()
	}
	return p.Server.Close()
}

// rest closes what the host holds open to egress, and returns how many connections
// wopproxy has held to all peers, which are closed, too.
func (p *peers) rest() (held int) {
	for {
		select {
		case l := <-p.lanes:
			l.close()
		default:
			held = p.Open()
			p.HangUp()
			return held
		}
	}
}

// render makes the pieces of an answer as they go over the wire.
func (k *kind) render() (texts []text) {
	id := "" // also with an error: who refuses a call may have begun a run for it
	if k.way != arrives && k.agent && k.fault == none {
		id = fmt.Sprintf("Run-Id: \"tool-%s\";host=\"%s\"\r\n", rawhttp.Mark, toolsID)
	}
	head := fmt.Sprintf("HTTP/1.1 %d Soak\r\nContent-Type: %s\r\n%s", k.status, k.answer.contentType, id)
	var pieces []string
	if k.answer.contentType == asStream {
		head += "Transfer-Encoding: chunked\r\n\r\n"
		for event := range strings.SplitAfterSeq(string(k.answer.body), "\n\n") {
			if event != "" {
				pieces = append(pieces, fmt.Sprintf("%x\r\n%s\r\n", len(event), event))
			}
		}
		pieces[len(pieces)-1] += "0\r\n\r\n"
	} else {
		all := string(k.answer.body)
		head += fmt.Sprintf("Content-Length: %d\r\n\r\n", len(all))
		for i := range k.pieces {
			pieces = append(pieces, all[i*len(all)/k.pieces:(i+1)*len(all)/k.pieces])
		}
	}
	pieces[0] = head + pieces[0]
	for _, p := range pieces {
		texts = append(texts, newText([]byte(p)))
	}
	return texts
}

// The headers that peers look at. Those of the soak tell each other what is to be
// found in the others.
var (
	soakNumber  = []byte("\r\nsoak-number:")
	soakRun     = []byte("\r\nsoak-run:")
	runID       = []byte("\r\nrun-id:")
	runAncestry = []byte("\r\nrun-ancestry:")
	traceparent = []byte("\r\ntraceparent:")
	tracestate  = []byte("\r\ntracestate:")
)

func header(head, name []byte) string {
	return string(bytes.TrimSpace(rawhttp.Header(head, name)))
}

// serve answers one request, of a caller or of the host itself.
func (p *peers) serve(conn net.Conn, head, body []byte) error {
	target := string(rawhttp.Target(head))
	path := target
	if strings.HasPrefix(target, "/v1/runs/") {
		path = target[:max(0, len(target)-len(rawhttp.Mark))]
	}
	k := p.byPath[path]
	if k == nil { // the host has no such document
		_, err := conn.Write([]byte("HTTP/1.1 404 Soak\r\nContent-Length: 0\r\n\r\n"))
		return err
	}
	n, err := strconv.ParseUint(header(head, soakNumber), 16, 64)
	if err != nil {
		p.scores.wrong(k, fmt.Errorf("a request without its number: %q", head))
		return err
	}
	if err := errors.Join(k.check(head, n), k.came(body, n)); err != nil {
		p.scores.wrong(k, fmt.Errorf("number %d: %w", n, err))
	}
	if k.call != nil {
		p.call(k.call, head, n)
	}
	err = k.respond(conn, n)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		p.scores.wrong(k, fmt.Errorf("number %d: who asked has left, and the request is still there after %v", n, patience))
	}
	return err
}

// check looks at what wopproxy has written into a request.
func (k *kind) check(head []byte, n uint64) error {
	got, run := header(head, runAncestry), header(head, soakRun)
	switch {
	case k.agent || k.begins:
		if id := traceOf(n); !k.unknown && !strings.HasPrefix(header(head, traceparent), "00-"+id) {
			return fmt.Errorf("traceparent %q, want trace %s", header(head, traceparent), id)
		}
		if k.way == arrives {
			if k.begins && header(head, runID) == "" {
				return errors.New("the host is not told the id of a run")
			}
			return nil
		}
		if want := fmt.Sprintf(`"%s";host="%s"`, run, hostID); run != "" && !strings.HasPrefix(got, want) {
			return fmt.Errorf("WRONG PARENT: Run-Ancestry %q, want it to begin with %s", got, want)
		}
		if want := fmt.Sprintf(`"%s";host="%s"`, parentOf(n), callerID); run != "" && !strings.Contains(got, want) {
			return fmt.Errorf("WRONG ANCESTOR: Run-Ancestry %q, want it to have %s", got, want)
		}
	}
	if k.way != arrives && run == "" && got != "" {
		return fmt.Errorf("WRONG PARENT: Run-Ancestry %q of a call that belongs to no run", got)
	}
	return nil
}

// came compares a body with what was sent. wopproxy writes into an agent's alone,
// and not into what stands at its end.
func (k *kind) came(body []byte, n uint64) error {
	want := k.request.body
	if !k.agent {
		if number := fmt.Sprintf("%016x", n); string(body) != strings.Replace(string(want), rawhttp.Mark, number, 1) {
			return errors.New("the body is not what was sent")
		}
		return nil
	}
	if end := want[max(0, len(want)-512):]; len(rawhttp.Marks(end)) == 0 && !bytes.HasSuffix(body, end) {
		return errors.New("the end of the body is not what was sent")
	}
	return nil
}

// traceOf is the trace of what has that number, and parentOf the run that has
// caused it.
func traceOf(n uint64) string  { return fmt.Sprintf("%s%016x", trace, n) }
func parentOf(n uint64) string { return fmt.Sprintf("run-%016x", n) }

// buffers are for pieces of answers with their numbers.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// respond sends the answer, with the fault that belongs to it.
func (k *kind) respond(conn net.Conn, n uint64) error {
	if k.fault == silent {
		return rawhttp.Abort(conn)
	}
	b := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	for i, piece := range k.rendered {
		if i > 0 && i == len(k.rendered)/2 {
			switch k.fault {
			case slow:
				time.Sleep(20 * time.Millisecond)
			case reset:
				return rawhttp.Abort(conn)
			case hangs:
				return awaitEnd(conn)
			}
		}
		*b = append((*b)[:0], piece.bytes...)
		for _, at := range piece.at {
			rawhttp.Number((*b)[at:], n)
		}
		if _, err := conn.Write(*b); err != nil {
			return err
		}
	}
	return nil
}

// awaitEnd waits until the other side has left.
func awaitEnd(conn net.Conn) error {
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	var b [1]byte
	_, err := conn.Read(b[:])
	return err
}

// patience bounds every wait for a peer.
const patience = 2 * time.Minute

// lane is how the host calls, one call at a time.
type lane struct {
	p     *peers
	asker map[way]*asker
	texts map[*kind]*texts
	buf   []byte
}

func (p *peers) lane() *lane {
	select {
	case l := <-p.lanes:
		return l
	default:
		return &lane{p: p, asker: map[way]*asker{leaves: {}, opened: {}}, texts: map[*kind]*texts{}}
	}
}

func (l *lane) close() {
	for _, a := range l.asker {
		a.drop()
	}
}

// texts are what is sent and expected, of one goroutine.
type texts struct{ head, body, answer text }

func (l *lane) textsOf(k *kind, to string) *texts {
	t := l.texts[k]
	if t == nil {
		target := k.path
		if k.way == leaves {
			target = "http://" + to + target
		}
		t = &texts{
			head: newText(fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nAccept: application/json, text/event-stream\r\nSoak-Number: %s\r\n",
				target, to, k.request.contentType, len(k.request.body), rawhttp.Mark)),
			body: newText(k.request.body), answer: newText(k.answer.body),
		}
		l.texts[k] = t
	}
	return t
}

// call makes a call of the run that the host was told in head, in one of the ways
// in which hosts say so.
func (p *peers) call(k *kind, head []byte, n uint64) {
	l := p.lane()
	to := map[way]string{leaves: p.tools, opened: p.toolsTLS}[k.way]
	if k.fault == refused {
		to = p.nobody
	}
	t := l.textsOf(k, to)
	b := append(l.buf[:0], t.head.number(n)...)
	if run := header(head, runID); k.agent && !k.unknown {
		b = fmt.Appendf(b, "Soak-Run: %s\r\n", run)
		switch n % 3 {
		case 0:
			b = fmt.Appendf(b, "Run-Id: %s\r\n", run)
		case 1:
			b = fmt.Appendf(b, "Traceparent: %s\r\nTracestate: %s\r\n", header(head, traceparent), header(head, tracestate))
		case 2: // a span of its own
			b = fmt.Appendf(b, "Traceparent: 00-%s-%016x-00\r\n", traceOf(n), n)
		}
	}
	b = append(b, "\r\n"...)
	b = append(b, t.body.number(n)...)
	l.buf = b
	a := l.asker[k.way]
	o, err := a.ask(k, b, t.answer.number(n), nil, func(ctx context.Context) (*rawhttp.Client, error) {
		c, err := rawhttp.Dial(ctx, p.egress)
		if err == nil && k.way == opened {
			if err = c.Connect(to); err == nil {
				err = c.Secure(ctx, p.roots)
			}
		}
		return c, err
	})
	p.scores.note(k, n, o, err)
	select {
	case p.lanes <- l:
	default:
		l.close()
	}
}
