package main

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wopproxy/wopproxy/deploy/inject"
	"github.com/wopproxy/wopproxy/deploy/webhook"
)

// TestWebhook runs the webhook as a pod does: it answers in TLS, tells how it is, lets
// a review in flight finish when it is told to stop, and serves the metrics that are
// documented.
func TestWebhook(t *testing.T) {
	cert, key := caFiles(t, time.Now().Add(time.Hour))
	w, err := newWebhook(webhookOptions{
		listen: "127.0.0.1:0", admin: "127.0.0.1:0", cert: cert, key: key, delay: time.Hour,
		inject: inject.Options{Image: "w:1"},
	}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	serving := begin(ctx, w.run)
	admin := w.admin.Addr().String()
	for _, path := range []string{"/livez", "/readyz", "/startupz", "/metrics"} {
		ask(t, http.MethodGet, admin+path)
	}
	client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	review := func() *http.Response {
		t.Helper()
		resp, err := client.Post("https://"+w.https.Addr().String()+webhook.Path, "application/json",
			strings.NewReader(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"a","ports":[{"name":"http","containerPort":8080}]}]}}}}`))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp
	}
	if resp := review(); resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
		t.Errorf("a review is answered %s by %s, want 200 by HTTP/2", resp.Status, resp.Proto)
	}
	goldenMetrics(t, "webhook-metrics.golden", w.metrics, keeperMetrics(t))

	// Told to stop it is unready, and goes on: API servers have yet to hear.
	stop()
	for deadline := time.Now().Add(time.Minute); ; {
		resp, err := http.Get("http://" + admin + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusServiceUnavailable {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it is still ready a minute after it was told to stop")
		}
	}
	if resp := review(); resp.StatusCode != http.StatusOK {
		t.Errorf("a review while it drains is answered %s", resp.Status)
	}
	select {
	case <-serving.done:
		t.Errorf("it has ended before its time: %v", serving.err)
	default:
	}
	w.https.Close() // instead of an hour's wait
	if <-serving.done; serving.err == nil {
		t.Error("a listener that has failed is no error")
	}
}

// TestWebhookStops: without a delay it is done at once, orderly.
func TestWebhookStops(t *testing.T) {
	cert, key := caFiles(t, time.Now().Add(time.Hour))
	w, err := newWebhook(webhookOptions{listen: "127.0.0.1:0", admin: "127.0.0.1:0", cert: cert, key: key, inject: inject.Options{Image: "w:1"}}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	serving := begin(t.Context(), w.run)
	ask(t, http.MethodGet, w.admin.Addr().String()+"/readyz")
	if err := serving.stop(); err != nil {
		t.Error(err)
	}
}

// keeperMetrics serves what a webhook does besides that keeps its own certificate.
func keeperMetrics(t *testing.T) *prometheus.Registry {
	t.Helper()
	reg := prometheus.NewRegistry()
	webhook.NewKeeper(webhook.KeeperOptions{Registerer: reg})
	return reg
}
