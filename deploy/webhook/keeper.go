package webhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// KeeperOptions say where a webhook's certificate is kept. All but the last are
// required.
type KeeperOptions struct {
	API *API
	// Namespace is that of the Service and the Secret.
	Namespace string
	// Service is the name by which API servers call the webhook.
	Service string
	// Secret keeps the keys. It has to exist; what is in it is made.
	Secret string
	// Configuration is the MutatingWebhookConfiguration, whose webhooks that lead to
	// the Service get the caBundle.
	Configuration string

	Registerer prometheus.Registerer
	Logger     *slog.Logger

	// Interval is how often the certificate is looked after. Default a minute.
	Interval time.Duration
}

// Keeper keeps the certificate of a webhook: it makes one, renews it in time, and has
// the API servers trust it. The replicas of a webhook share one Secret; who writes
// it first is followed by the others.
type Keeper struct {
	KeeperOptions
	cert   atomic.Pointer[tls.Certificate]
	checks *prometheus.CounterVec
}

// NewKeeper returns a keeper that does nothing until [Keeper.Run].
func NewKeeper(o KeeperOptions) *Keeper {
	k := &Keeper{KeeperOptions: o,
		checks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wopproxy_webhook_certificate_checks_total", Help: "Looks after the certificate of the webhook, by what came of them.",
		}, []string{"outcome"}),
	}
	for _, outcome := range []string{"kept", "renewed", "failed"} {
		k.checks.WithLabelValues(outcome)
	}
	o.Registerer.MustRegister(expiry{k.cert.Load}, k.checks)
	return k
}

// Ready reports whether there is a certificate that API servers trust.
func (k *Keeper) Ready() bool { return k.cert.Load() != nil }

// Certificate is for a tls.Config.
func (k *Keeper) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := k.cert.Load(); c != nil {
		return c, nil
	}
	return nil, errors.New("there is no certificate yet")
}

// Run looks after the certificate until ctx ends. What fails is tried again after a
// second, then after two, and so on.
func (k *Keeper) Run(ctx context.Context) {
	interval := cmp.Or(k.Interval, time.Minute)
	retry := time.Second
	for {
		next := interval
		if err := k.check(ctx); err == nil {
			retry = time.Second
		} else if ctx.Err() == nil {
			k.checks.WithLabelValues("failed").Inc()
			k.Logger.ErrorContext(ctx, "the webhook's certificate can't be looked after; the last one stays", "err", err)
			next, retry = retry, min(2*retry, interval)
		}
		t := time.NewTimer(next)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}

// check makes the certificate what it has to be. API servers are told of an authority
// before anything is shown that it has signed.
func (k *Keeper) check(ctx context.Context) error {
	keys, renewed, err := k.keys(ctx)
	if err != nil {
		return err
	}
	if err := k.publish(ctx, keys.bundle()); err != nil {
		return err
	}
	k.cert.Store(keys.certificate())
	if renewed {
		k.checks.WithLabelValues("renewed").Inc()
		k.Logger.InfoContext(ctx, "the webhook has a new certificate", "until", keys.serving.cert.NotAfter)
	} else {
		k.checks.WithLabelValues("kept").Inc()
	}
	return nil
}

// secret is as much of a Secret as is needed. Its metadata goes back as it came.
type secret struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   map[string]any    `json:"metadata"`
	Type       string            `json:"type,omitempty"`
	Data       map[string][]byte `json:"data,omitempty"`
}

// keys returns those of the Secret, which are made anew there if it is time.
func (k *Keeper) keys(ctx context.Context) (*keys, bool, error) {
	path := fmt.Sprintf("/api/v1/namespaces/%s/secrets/%s", k.Namespace, k.Secret)
	for {
		var s secret
		if err := k.API.get(ctx, path, &s); errors.Is(err, errAbsent) {
			return nil, false, fmt.Errorf("%w: create the Secret, it may be empty", err)
		} else if err != nil {
			return nil, false, err
		}
		have, err := decode(s.Data)
		if err != nil {
			k.Logger.WarnContext(ctx, "the Secret holds no keys that can be read; they are made anew", "secret", k.Secret, "err", err)
			have = new(keys)
		}
		want, err := have.renewed(k.Service+"."+k.Namespace+".svc", time.Now())
		if err != nil || want == have {
			return have, false, err
		}
		data, err := want.encode()
		if err != nil {
			return nil, false, err
		}
		if s.Data == nil {
			s.Data = map[string][]byte{}
		}
		maps.Copy(s.Data, data)
		switch err := k.API.put(ctx, path, s); {
		case err == nil:
			return want, true, nil
		case !errors.Is(err, errConflict):
			return nil, false, err
		}
		// Another replica was faster: its keys are as good.
	}
}

// publish has API servers trust the bundle.
func (k *Keeper) publish(ctx context.Context, bundle []byte) error {
	path := "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/" + k.Configuration
	var c struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Webhooks []struct {
			ClientConfig struct {
				CABundle []byte                            `json:"caBundle"`
				Service  *struct{ Name, Namespace string } `json:"service"`
			} `json:"clientConfig"`
		} `json:"webhooks"`
	}
	if err := k.API.get(ctx, path, &c); err != nil {
		return err
	}
	ops := []map[string]any{{"op": "test", "path": "/metadata/resourceVersion", "value": c.Metadata.ResourceVersion}}
	ours := 0
	for i, w := range c.Webhooks {
		if s := w.ClientConfig.Service; s == nil || s.Name != k.Service || s.Namespace != k.Namespace {
			continue
		}
		ours++
		if !bytes.Equal(w.ClientConfig.CABundle, bundle) {
			ops = append(ops, map[string]any{"op": "add", "path": fmt.Sprintf("/webhooks/%d/clientConfig/caBundle", i), "value": bundle})
		}
	}
	switch {
	case ours == 0:
		return fmt.Errorf("the MutatingWebhookConfiguration %s has no webhook that leads to the Service %s/%s", k.Configuration, k.Namespace, k.Service)
	case len(ops) == 1:
		return nil
	}
	return k.API.patch(ctx, path, ops)
}
