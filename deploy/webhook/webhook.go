// Package webhook serves package inject to the API server of a cluster, as a mutating
// admission webhook, and keeps the certificate that it is believed by.
//
// It never stands in a pod's way: every review is answered with "allowed", and what
// can't be answered is an error that the failurePolicy Ignore passes over.
package webhook

import (
	"errors"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wopproxy/wopproxy/deploy/inject"
)

// Path is where the webhook is served.
const Path = "/inject"

// maxReview bounds a request. The API server accepts objects of 3 MiB at most, which
// no pod comes near.
const maxReview = 3 << 20

// Options are those of a webhook.
type Options struct {
	// Inject are those of the injection.
	Inject inject.Options
	// Registerer takes the metrics. Required.
	Registerer prometheus.Registerer
	// Logger is told of each pod. Required.
	Logger *slog.Logger
}

// Handler answers reviews at [Path].
func Handler(o Options) http.Handler {
	h := &handler{Options: o}
	h.reviews = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "wopproxy_webhook_reviews_total", Help: "Admission reviews of pods, by what became of them.",
	}, []string{"outcome"})
	h.seconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "wopproxy_webhook_review_seconds", Help: "How long admission reviews took.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5},
	})
	for _, outcome := range []string{string(inject.Injected), string(inject.Unchanged), string(inject.Refusal), invalid, tooLarge} {
		h.reviews.WithLabelValues(outcome)
	}
	o.Registerer.MustRegister(h.reviews, h.seconds)
	mux := http.NewServeMux()
	mux.Handle("POST "+Path, h)
	return mux
}

// Outcomes of what is no review.
const (
	invalid  = "invalid"
	tooLarge = "too_large"
)

type handler struct {
	Options
	reviews *prometheus.CounterVec
	seconds prometheus.Histogram
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	outcome := h.serve(w, r)
	h.seconds.Observe(time.Since(began).Seconds())
	h.reviews.WithLabelValues(outcome).Inc()
}

func (h *handler) serve(w http.ResponseWriter, r *http.Request) (outcome string) {
	refuse := func(code int, why, outcome string) string {
		h.Logger.WarnContext(r.Context(), "not a review that can be answered", "peer", r.RemoteAddr, "err", why)
		http.Error(w, why, code)
		return outcome
	}
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media != "application/json" {
		return refuse(http.StatusUnsupportedMediaType, "want application/json", invalid)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxReview))
	if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
		return refuse(http.StatusRequestEntityTooLarge, "the review is larger than 3 MiB", tooLarge)
	} else if err != nil {
		return refuse(http.StatusBadRequest, "the review was cut off", invalid)
	}
	v, err := inject.Review(body, h.Inject)
	if err != nil {
		return refuse(http.StatusBadRequest, err.Error(), invalid)
	}
	for _, n := range v.Notes {
		h.Logger.WarnContext(r.Context(), "a note on a pod", "object", n.Object, "note", n.Text)
	}
	h.Logger.DebugContext(r.Context(), "reviewed", "outcome", string(v.Outcome))
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(v.Answer) // the API server has gone; the pod starts without us
	return string(v.Outcome)
}
