package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/cgi"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

// goHost is an A2A agent as one finds them: net/http, and one pool of
// connections for the calls of all runs.
type goHost struct {
	cooperation, tools, proxy, secret string

	proxied, direct *http.Client // what base paths go to is no proxy for the client
}

// plan is what a message asks its run to do.
type plan struct {
	Marker   string `json:"marker"`   // to be named in the arguments of each call
	Together bool   `json:"together"` // all calls at once, instead of one after the other
	Think    []int  `json:"think"`    // for each call, the milliseconds before it
}

// incoming is an A2A message as far as the host reads it.
type incoming struct {
	ID     json.RawMessage `json:"id"`
	Params struct {
		Message struct {
			MessageID string `json:"messageId"`
			ContextID string `json:"contextId"`
			Parts     []struct {
				Text string `json:"text"`
			} `json:"parts"`
		} `json:"message"`
	} `json:"params"`
}

// runHost is the Go host. Where each run has a process of its own it is a web
// server with CGI, and also the program that the server starts. What arrives
// passes wrap first, if that is given.
func runHost(ctx context.Context, stdout io.Writer, wrap func(http.Handler) http.Handler) error {
	h := &goHost{
		cooperation: os.Getenv("COOPERATION"), tools: os.Getenv("TOOLS"),
		proxy: os.Getenv("HTTP_PROXY"), secret: os.Getenv("SECRET"),
	}
	proxy, err := url.Parse(h.proxy)
	if err != nil {
		return err
	}
	h.proxied = &http.Client{Timeout: patience, Transport: &http.Transport{Proxy: http.ProxyURL(proxy), MaxConnsPerHost: 4}}
	h.direct = &http.Client{Timeout: patience, Transport: &http.Transport{MaxConnsPerHost: 4}}
	if os.Getenv("GATEWAY_INTERFACE") != "" {
		return cgi.Serve(h)
	}
	handler := http.Handler(h)
	if h.cooperation == "process" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		handler = &cgi.Handler{Path: self, Args: []string{"host"}, Env: os.Environ()}
	}
	if wrap != nil {
		handler = wrap(handler)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:"+os.Getenv("PORT"))
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: patience}
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	fmt.Fprintln(stdout, "ready")
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (h *goHost) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in incoming
	var p plan
	err := json.NewDecoder(r.Body).Decode(&in)
	if err == nil {
		err = json.Unmarshal([]byte(in.Params.Message.Parts[0].Text), &p)
	}
	if err == nil {
		err = h.work(r.Context(), p, h.handOn(r.Header, in.Params.Message.MessageID, in.Params.Message.ContextID))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"jsonrpc": "2.0", "id": in.ID, "result": map[string]any{
		"kind": "task", "id": random(16), "contextId": in.Params.Message.ContextID,
		"status": map[string]any{"state": "completed"},
	}})
}

// outgoing is what a call says of the run that makes it.
type outgoing struct {
	client   *http.Client
	url      string
	headers  map[string]string
	mentions map[string]string // in its arguments
}

// handOn decides it by what the host was handed.
func (h *goHost) handOn(in http.Header, messageID, contextID string) outgoing {
	out := outgoing{client: h.proxied, url: h.tools, headers: map[string]string{}}
	run := in.Get("Run-Id")
	switch h.cooperation {
	case "ids":
		out.mentions = map[string]string{"message": messageID, "context": contextID}
	case "opentelemetry":
		if parent := strings.Split(in.Get("Traceparent"), "-"); len(parent) == 4 {
			parent[2] = random(8)
			out.headers["Traceparent"] = strings.Join(parent, "-")
			out.headers["Tracestate"] = in.Get("Tracestate")
		}
	case "traceparent":
		out.headers["Traceparent"] = in.Get("Traceparent")
	case "run-id":
		out.headers["Run-Id"] = run
	case "credential":
		r := http.Request{Header: http.Header{}}
		r.SetBasicAuth(run, h.secret)
		out.headers["Proxy-Authorization"] = r.Header.Get("Authorization")
	case "base-path":
		out.client, out.url = h.direct, h.proxy+"/_run/"+url.PathEscape(run)+"/"+h.tools
	}
	return out
}

// work makes the calls of a run, each after it has thought.
func (h *goHost) work(ctx context.Context, p plan, out outgoing) error {
	errs := make([]error, len(p.Think))
	var calls sync.WaitGroup
	for i, ms := range p.Think {
		calls.Go(func() {
			<-time.After(time.Duration(ms) * time.Millisecond)
			errs[i] = h.call(ctx, p.Marker, out)
		})
		if !p.Together {
			calls.Wait()
		}
	}
	calls.Wait()
	return errors.Join(errs...)
}

// call makes one call of a run.
func (h *goHost) call(ctx context.Context, marker string, out outgoing) error {
	arguments := map[string]string{"marker": marker}
	maps.Copy(arguments, out.mentions)
	body, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": random(16), "method": "tools/call",
		"params": map[string]any{"name": "note", "arguments": arguments},
	})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, out.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for name, value := range out.headers {
		req.Header.Set(name, value)
	}
	resp, err := out.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err = io.Copy(io.Discard, resp.Body); err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", resp.StatusCode)
	}
	return err
}

// random returns n random bytes in hex.
func random(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
