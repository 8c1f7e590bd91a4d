package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/wopproxy/wopproxy/deploy/inject"
	"github.com/wopproxy/wopproxy/deploy/webhook"
)

const webhookManual = `webhook -namespace NS -service NAME -secret NAME -configuration NAME
       wopproxy webhook -tls-cert FILE -tls-key FILE

Does in a cluster what wopproxy inject does to a manifest: the API server asks it
about pods as they are created, at /inject. Every pod is admitted; one that can't be
injected bears the annotation wopproxy.dev/refused, which says why.

The certificate for SERVICE.NS.svc is made here, kept in the Secret, which has to
exist and is shared by all replicas, renewed in time, and written as caBundle into
the webhooks of the MutatingWebhookConfiguration that lead to the Service. That takes
the right to get and update the one and to get and patch the other. With -tls-cert
and -tls-key somebody else does all that, and the files are read again when they
change.

On the admin listener: /livez /readyz /startupz /metrics. On SIGTERM it is unready,
goes on serving for -drain-delay, and lets the reviews in flight finish.

`

// webhookOptions are the flags of webhook.
type webhookOptions struct {
	listen, admin     string
	cert, key, config string
	keeper            webhook.KeeperOptions
	inject            inject.Options
	level             slog.Level
	delay             time.Duration
}

func webhookCommand(ctx context.Context, args []string, _, stderr io.Writer) error {
	o := webhookOptions{inject: inject.Options{Settings: map[string]string{}}}
	f := newFlags("webhook", webhookManual, stderr)
	f.StringVar(&o.listen, "listen", ":8443", "`address` for the API server")
	f.StringVar(&o.admin, "admin", ":9090", "`address` for metrics and probes")
	f.StringVar(&o.cert, "tls-cert", "", "`file` with the certificate (default: one is made)")
	f.StringVar(&o.key, "tls-key", "", "`file` with its private key")
	f.StringVar(&o.keeper.Namespace, "namespace", "", "`namespace` of the Service and the Secret")
	f.StringVar(&o.keeper.Service, "service", "", "`name` of the Service")
	f.StringVar(&o.keeper.Secret, "secret", "", "`name` of the Secret")
	f.StringVar(&o.keeper.Configuration, "configuration", "", "`name` of the MutatingWebhookConfiguration")
	f.TextVar(&o.level, "log-level", slog.LevelInfo, "`level` of the log: debug, info, warn or error")
	f.DurationVar(&o.delay, "drain-delay", 5*time.Second, "`time` to go on serving when told to stop, while API servers hear of it")
	injectFlags(f, &o.inject, &o.config)
	if _, err := parse(f, args, 0); err != nil {
		return err
	}
	if err := o.check(); err != nil {
		fmt.Fprintf(stderr, "wopproxy webhook: %v\n", err)
		return errUsage
	}
	w, err := newWebhook(o, stderr)
	if err != nil {
		return err
	}
	return w.run(ctx)
}

// check refuses flags that leave open whose certificate is meant.
func (o *webhookOptions) check() error {
	k := o.keeper
	all := k.Namespace != "" && k.Service != "" && k.Secret != "" && k.Configuration != ""
	none := k.Namespace == "" && k.Service == "" && k.Secret == "" && k.Configuration == ""
	if files := o.cert != "" && o.key != ""; files == all || !files && (o.cert != "" || o.key != "") || !all && !none {
		return errors.New("give -namespace, -service, -secret and -configuration, or -tls-cert and -tls-key")
	}
	return nil
}

// webhookServer is the webhook with everything open and bound.
type webhookServer struct {
	log          *slog.Logger
	metrics      *prometheus.Registry
	https, admin net.Listener
	handler      http.Handler
	certificate  func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	keeper       *webhook.Keeper // nil: somebody else keeps the certificate
	delay        time.Duration
	draining     atomic.Bool
}

func newWebhook(o webhookOptions, stderr io.Writer) (*webhookServer, error) {
	if err := readDefaults(&o.inject, o.config); err != nil {
		return nil, err
	}
	w := &webhookServer{delay: o.delay, metrics: prometheus.NewRegistry(), log: slog.New(slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: o.level}))}
	w.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo())
	w.handler = webhook.Handler(webhook.Options{Inject: o.inject, Registerer: w.metrics, Logger: w.log})
	if o.cert != "" {
		files, err := webhook.OpenFiles(o.cert, o.key, w.metrics, w.log)
		if err != nil {
			return nil, fmt.Errorf("-tls-cert: %w", err)
		}
		w.certificate = files.Certificate
	} else {
		if o.keeper.API == nil {
			var err error
			if o.keeper.API, err = webhook.InCluster(os.LookupEnv); err != nil {
				return nil, err
			}
		}
		o.keeper.Registerer, o.keeper.Logger = w.metrics, w.log
		w.keeper = webhook.NewKeeper(o.keeper)
		w.certificate = w.keeper.Certificate
	}
	var err error
	if w.https, err = net.Listen("tcp", o.listen); err != nil {
		return nil, fmt.Errorf("-listen: %w", err)
	}
	if w.admin, err = net.Listen("tcp", o.admin); err != nil {
		return nil, errors.Join(fmt.Errorf("-admin: %w", err), w.https.Close())
	}
	return w, nil
}

// run serves until ctx ends and for a while after it, because API servers go on asking
// until they have heard. The admin listener goes last.
func (w *webhookServer) run(ctx context.Context) error {
	late := context.WithoutCancel(ctx)
	admin := begin(late, func(ctx context.Context) error {
		return serve(ctx, w.admin, healthHandler(w.metrics, w.ready), webhookServing(time.Second))
	})
	reviews := begin(late, func(ctx context.Context) error {
		// HTTP/2 tells an API server that we stop, and what it has to ask elsewhere.
		ln := tls.NewListener(w.https, &tls.Config{GetCertificate: w.certificate, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}})
		return serve(ctx, ln, w.handler, webhookServing(20*time.Second))
	})
	keeper := begin(late, func(ctx context.Context) error {
		if w.keeper != nil {
			w.keeper.Run(ctx)
		}
		return nil
	})
	w.log.InfoContext(ctx, "serving", "webhook", w.https.Addr().String(), "admin", w.admin.Addr().String())
	select {
	case <-ctx.Done():
		w.draining.Store(true)
		select {
		case <-time.After(w.delay):
		case <-reviews.done:
		}
	case <-reviews.done: // the listener has failed
		w.draining.Store(true)
	}
	err := errors.Join(reviews.stop(), keeper.stop(), admin.stop())
	w.log.InfoContext(late, "stopped")
	return err
}

// webhookServing are the bounds of a listener. API servers are few.
func webhookServing(drain time.Duration) serverOptions {
	return serverOptions{drain: func() time.Duration { return drain }, maxHeader: 64 << 10}
}

// ready is the readiness probe.
func (w *webhookServer) ready(out http.ResponseWriter, _ *http.Request) {
	switch {
	case w.draining.Load():
		http.Error(out, "draining", http.StatusServiceUnavailable)
	case w.keeper != nil && !w.keeper.Ready():
		http.Error(out, "there is no certificate yet: see the log", http.StatusServiceUnavailable)
	default:
		io.WriteString(out, "ok\n")
	}
}
