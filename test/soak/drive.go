package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wopproxy/wopproxy/test/internal/program"
	"github.com/wopproxy/wopproxy/test/internal/rawhttp"
)

// scores are what has become of the traffic.
type scores struct {
	exchanges atomic.Int64 // through ingress and egress
	halves    atomic.Int64 // of them, those whose request broke off
	tunnels   atomic.Int64
	looked    atomic.Int64 // runs of which wopproxy was asked
	faults    atomic.Int64

	mu    sync.Mutex
	first []error // of the faults
}

// tooMany faults end the traffic.
const tooMany = 20

// note counts an exchange that has ended, which must be as it should.
func (s *scores) note(k *kind, n uint64, o outcome, err error) {
	k.times.Add(1)
	if k.way == tunnel {
		s.tunnels.Add(1)
	} else {
		s.exchanges.Add(1)
	}
	if k.fault == half {
		s.halves.Add(1)
	}
	if o != k.want {
		s.wrong(k, errors.Join(fmt.Errorf("number %d: %s, want %s", n, o, k.want), err))
	}
}

// wrong notes what must not be.
func (s *scores) wrong(k *kind, err error) {
	s.faults.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.first) < tooMany {
		s.first = append(s.first, fmt.Errorf("%s: %w", k.name, err))
	}
}

// asker asks over one connection as long as it holds.
type asker struct{ c *rawhttp.Client }

func (a *asker) drop() {
	if a.c != nil {
		_ = a.c.Close()
		a.c = nil
	}
}

// ask sends a request and sees how it ends. header, unless nil, is called with each
// line of the answer's head.
func (a *asker) ask(k *kind, request, answer []byte, header func([]byte), dial func(context.Context) (*rawhttp.Client, error)) (o outcome, err error) {
	if a.c == nil {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if a.c, err = dial(ctx); err != nil {
			a.drop()
			return other, err
		}
	}
	a.c.SetDeadline(time.Now().Add(patience))
	o, last, err := exchange(a.c, k, request, answer, header)
	if o != answered || last {
		a.drop()
	}
	return o, err
}

// exchange makes one, and says whether it was the last of its connection.
func exchange(c *rawhttp.Client, k *kind, request, answer []byte, header func([]byte)) (o outcome, last bool, err error) {
	if k.fault == half {
		request = request[:len(request)/2]
	}
	if err := c.Send(request); err != nil {
		return brokeOff, true, err
	}
	if k.fault == half {
		return left, true, c.Abort()
	}
	h, err := c.Head(header)
	switch {
	case err != nil:
		return brokeOff, true, err
	case h.Status == 502:
		return bad, true, nil
	case h.Status != k.status:
		return other, true, fmt.Errorf("answered %q", c.Status())
	case k.fault == hangs:
		if err := c.Event(); err != nil { // with the task that is asked for later
			return brokeOff, true, err
		}
		return left, true, nil
	}
	err = c.Body(h, &rawhttp.Answer{Body: answer})
	switch {
	case errors.Is(err, rawhttp.ErrDiffers):
		return other, true, err
	case err != nil:
		return brokeOff, true, err
	}
	return answered, h.Last, nil
}

// caller begins runs and makes other requests, one after the other.
type caller struct {
	*stage
	asker
	chance *rand.Rand
	texts  map[*kind]*texts
	buf    []byte
}

func (s *stage) caller(seed uint64) *caller {
	return &caller{stage: s, chance: rand.New(rand.NewPCG(seed, 0)), texts: map[*kind]*texts{}}
}

// work goes on until more returns false.
func (c *caller) work(more func() bool) {
	defer c.drop()
	for more() {
		c.play(c.lots[c.chance.IntN(len(c.lots))], c.numbers.Add(1))
	}
}

// lots has each kind as often as its share.
func lots(kinds []*kind) (all []*kind) {
	for _, k := range kinds {
		for range k.share {
			all = append(all, k)
		}
	}
	return all
}

// sampled is of how many runs wopproxy is asked about one.
const sampled = 256

// play makes one exchange, and what belongs to it.
func (c *caller) play(k *kind, n uint64) {
	if k.way == tunnel {
		o, err := c.dig(k, n)
		c.scores.note(k, n, o, err)
		return
	}
	t := c.textsOf(k)
	request := append(append(c.buf[:0], t.head.number(n)...), t.body.number(n)...)
	c.buf = request
	run := ""
	o, err := c.ask(k, request, t.answer.number(n), func(line []byte) {
		if name, value, _ := strings.Cut(string(line), ":"); strings.EqualFold(name, "Run-Id") {
			run, _, _ = strings.Cut(strings.TrimPrefix(strings.TrimSpace(value), `"`), `"`)
		}
	}, func(ctx context.Context) (*rawhttp.Client, error) { return rawhttp.Dial(ctx, c.at.Ingress) })
	c.scores.note(k, n, o, err)
	if k.begins && o == answered && run == "" {
		c.scores.wrong(k, fmt.Errorf("number %d: the caller is not told the id of the run", n))
	}
	if k.begins && o == answered && n%sampled == 0 {
		if err := c.look(k, run, n); err != nil {
			c.scores.wrong(k, fmt.Errorf("number %d, run %s: %w", n, run, err))
		}
		c.scores.looked.Add(1)
	}
	if k.then != nil {
		c.play(k.then, n)
	}
}

func (c *caller) textsOf(k *kind) *texts {
	t := c.texts[k]
	if t == nil {
		method := "POST"
		if k.request.body == nil {
			method = "GET"
		}
		head := fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: agent.example.com\r\nSoak-Number: %s\r\n", method, k.path, rawhttp.Mark)
		if k.request.body != nil {
			head = fmt.Appendf(head, "Content-Type: %s\r\nContent-Length: %d\r\n", k.request.contentType, len(k.request.body))
		}
		if k.agent || k.begins {
			head = fmt.Appendf(head, "Accept: application/json, text/event-stream\r\nTraceparent: 00-%s%s-00f067aa0ba902b7-00\r\n", trace, rawhttp.Mark)
			head = fmt.Appendf(head, "Run-Ancestry: \"run-%s\";host=%q;wk=\"https://%s/.well-known/openwop\";cause=mcp-tool-call\r\n", rawhttp.Mark, callerID, callerID)
		}
		t = &texts{head: newText(append(head, "\r\n"...)), body: newText(k.request.body), answer: newText(k.answer.body)}
		c.texts[k] = t
	}
	return t
}

// dig opens a tunnel through which a few requests pass.
func (c *caller) dig(k *kind, n uint64) (o outcome, err error) {
	t := c.textsOf(k)
	var a asker
	defer a.drop()
	request := append(append(c.buf[:0], t.head.number(n)...), t.body.number(n)...)
	c.buf = request
	for range 5 {
		o, err = a.ask(k, request, t.answer.number(n), nil, func(ctx context.Context) (*rawhttp.Client, error) {
			cl, err := rawhttp.Dial(ctx, c.at.Egress)
			if err == nil {
				err = cl.Connect(c.peers.blindTLS)
			}
			if err == nil {
				err = cl.Secure(ctx, c.authority.Pool)
			}
			return cl, err
		})
		if o != answered {
			break
		}
	}
	return o, err
}

// ancestor is a run as wopproxy tells of it.
type ancestor struct {
	Run  string `json:"runId"`
	Host string `json:"hostId"`
}

// look asks who caused a run, on both listeners, and which one it has caused.
func (c *caller) look(k *kind, run string, n uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	want, id := ancestor{parentOf(n), callerID}, url.PathEscape(run)
	var link struct {
		Chain struct{ Ancestors []ancestor }
	}
	if err := program.GetJSON(ctx, "http://"+c.at.Admin+"/ancestry/v1/runs/"+id, &link); err != nil {
		return err
	}
	if a := link.Chain.Ancestors; len(a) != 1 || a[0] != want {
		return fmt.Errorf("WRONG PARENT: the store has %+v, want %+v", a, want)
	}
	var answer struct{ Parent ancestor }
	if err := program.GetJSON(ctx, "http://"+c.at.Ingress+"/v1/runs/"+id+"/ancestry", &answer); err != nil {
		return err
	}
	if answer.Parent != want {
		return fmt.Errorf("WRONG PARENT: the ancestry endpoint has %+v, want %+v", answer.Parent, want)
	}
	var children struct {
		Runs []struct {
			Run string `json:"runId"`
		}
	}
	if err := program.GetJSON(ctx, "http://"+c.at.Admin+"/ancestry/v1/runs/"+id+"/children", &children); err != nil {
		return err
	}
	child := ""
	if k.call != nil && k.call.agent && !k.call.unknown && k.call.fault == none {
		child = fmt.Sprintf("tool-%016x", n)
	}
	switch runs := children.Runs; {
	case child == "" && len(runs) > 0, len(runs) > 1, len(runs) == 1 && runs[0].Run != child:
		return fmt.Errorf("WRONG CHILD: %+v, want %q", runs, child)
	case child != "" && len(runs) == 0:
		return fmt.Errorf("no child, want %q", child)
	}
	return nil
}
