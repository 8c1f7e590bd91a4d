package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/wopproxy/wopproxy/config"
)

// healthHandler answers what a platform asks.
func healthHandler(metrics *prometheus.Registry, ready http.HandlerFunc) *http.ServeMux {
	mux := http.NewServeMux()
	ok := func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") }
	mux.HandleFunc("GET /livez", ok)
	mux.HandleFunc("GET /startupz", ok) // every listener was bound before this one served
	mux.HandleFunc("GET /readyz", ready)
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{Registry: metrics}))
	return mux
}

// adminHandler answers what operators and the platform ask.
func (s *sidecar) adminHandler(c *config.Config) http.Handler {
	mux := healthHandler(s.metrics, s.ready)
	mux.Handle("/ancestry/v1/", s.api.Admin())
	mux.HandleFunc("GET /log/level", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, s.level.Level()) })
	mux.HandleFunc("PUT /log/level", s.setLevel)
	mux.HandleFunc("PUT /drain", s.drainNow)
	if c.Admin.Pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	}
	return mux
}

// ready is the readiness probe. Links that can't be stored leave the proxy
// ready, but degraded: taking the host out of service for that would harm its
// traffic, which outranks the record of it.
func (s *sidecar) ready(w http.ResponseWriter, _ *http.Request) {
	switch {
	case s.drain.begun.Load():
		http.Error(w, "draining", http.StatusServiceUnavailable)
	case s.recorder.Degraded():
		io.WriteString(w, "degraded: links can't be stored, or only late: see wopproxy_store_commit_seconds, wopproxy_store_dropped_total and the log\n")
	default:
		io.WriteString(w, "ok\n")
	}
}

// setLevel changes the level of the log until the next reload.
func (s *sidecar) setLevel(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64))
	var level slog.Level
	if err == nil {
		err = level.UnmarshalText(text)
	}
	if err != nil {
		http.Error(w, "send debug, info, warn or error", http.StatusBadRequest)
		return
	}
	s.level.Set(level)
	fmt.Fprintln(w, level)
}

// buildInfo says which program answers.
func buildInfo() prometheus.Collector {
	version, revision := build()
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "wopproxy_build_info", Help: "1, with what the program was built from.",
		ConstLabels: prometheus.Labels{"version": version, "revision": revision},
	}, func() float64 { return 1 })
}
