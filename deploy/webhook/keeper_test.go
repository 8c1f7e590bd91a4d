package webhook_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/wopproxy/wopproxy/deploy/webhook"
)

// keeper is one in a cluster, which runs until the test ends.
type keeper struct {
	*webhook.Keeper
	reg  *prometheus.Registry
	logs *bytes.Buffer // to be read when the bubble waits
}

func startKeeper(t *testing.T, api *webhook.API, interval ...time.Duration) *keeper {
	t.Helper()
	k := &keeper{reg: prometheus.NewRegistry(), logs: new(bytes.Buffer)}
	o := webhook.KeeperOptions{
		API: api, Namespace: "wop", Service: "wop-injector", Secret: "keys", Configuration: "wop",
		Registerer: k.reg, Logger: slog.New(slog.NewJSONHandler(k.logs, nil)),
	}
	if len(interval) > 0 {
		o.Interval = interval[0]
	}
	k.Keeper = webhook.NewKeeper(o)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { k.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return k
}

// expiryShown reports whether there is a metric of when the certificate ends.
func (k *keeper) expiryShown(t *testing.T) bool {
	t.Helper()
	n, err := testutil.GatherAndCount(k.reg, "wopproxy_webhook_certificate_expiry_timestamp_seconds")
	if err != nil {
		t.Fatal(err)
	}
	return n > 0
}

// metric is the value of a counter or gauge; label is the value of its only label.
func metric(t *testing.T, reg *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if l := m.GetLabel(); f.GetName() == name && (label == "" || len(l) == 1 && l[0].GetValue() == label) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	t.Errorf("there is no metric %s of %q", name, label)
	return 0
}

// shown is the certificate that an API server meets now.
func (k *keeper) shown(t *testing.T) *tls.Certificate {
	t.Helper()
	c, err := k.Certificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// believes reports why an API server that trusts bundle would not believe a certificate.
func believes(bundle []byte, c *tls.Certificate, now time.Time) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	_, err := c.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "wop-injector.wop.svc", CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return err
}

// TestKeeper: with an empty Secret a certificate is made that API servers believe, and
// nobody's webhook but ours is touched.
func TestKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		k := startKeeper(t, c.api(t))
		synctest.Wait()
		if !k.Ready() {
			t.Fatalf("not ready:\n%s", k.logs)
		}
		data, bundle := c.state()
		if err := believes(bundle, k.shown(t), time.Now()); err != nil {
			t.Error(err)
		}
		if !bytes.Equal(c.bundles[1], bundle) || c.bundles[2] != nil {
			t.Error("the bundle is not in both webhooks that lead to the Service, and in no other")
		}
		if len(data) != 3 {
			t.Errorf("the Secret has %d keys, want 3", len(data))
		}
		if got := metric(t, k.reg, "wopproxy_webhook_certificate_expiry_timestamp_seconds", ""); int64(got) != k.shown(t).Leaf.NotAfter.Unix() {
			t.Errorf("expiry = %v", got)
		}
		// Somebody upgrades the chart, and the bundle is lost.
		c.mu.Lock()
		c.bundles[0] = nil
		c.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, again := c.state(); !bytes.Equal(again, bundle) {
			t.Error("a bundle that is lost does not come back")
		}
	})
}

// TestReplicas: whoever is first makes the keys, and the others follow.
func TestReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		elsewhere, c := newCluster(t), newCluster(t)
		startKeeper(t, elsewhere.api(t))
		synctest.Wait()
		theirs, _ := elsewhere.state()
		c.conflict = func() { // between its reading and its writing, somebody has written
			c.data = theirs
			c.version++
		}
		first := startKeeper(t, c.api(t))
		synctest.Wait()
		second := startKeeper(t, c.api(t))
		synctest.Wait()
		data, bundle := c.state()
		if !bytes.Equal(data["tls.key"], theirs["tls.key"]) {
			t.Error("the Secret has other keys than who was first has written")
		}
		for _, k := range []*keeper{first, second} {
			if err := believes(bundle, k.shown(t), time.Now()); err != nil {
				t.Error(err)
			}
		}
		if !first.shown(t).Leaf.Equal(second.shown(t).Leaf) {
			t.Error("the replicas show different certificates")
		}
	})
}

// TestRotation passes three years: what is shown is always believed by an API server
// that was last told of the authorities half a day ago, and changes in time.
func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		k := startKeeper(t, c.api(t), 12*time.Hour)
		synctest.Wait()
		certificates, authorities := map[string]bool{}, map[string]bool{}
		_, before := c.state()
		for range 2 * 3 * 365 {
			shown := k.shown(t)
			if err := believes(before, shown, time.Now()); err != nil {
				t.Fatalf("%v: %v", time.Now(), err)
			}
			certificates[string(shown.Leaf.SerialNumber.Bytes())], authorities[string(shown.Leaf.AuthorityKeyId)] = true, true
			_, before = c.state()
			time.Sleep(12 * time.Hour)
			synctest.Wait()
		}
		if len(authorities) < 2 || len(certificates) < 12 {
			t.Errorf("%d authorities and %d certificates in three years, want 2 and 12 at least", len(authorities), len(certificates))
		}
	})
}

// TestKeeperFails: while the API server can't be asked the last certificate stays, and
// it is asked again.
func TestKeeperFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.fail(true)
		k := startKeeper(t, c.api(t))
		synctest.Wait()
		if k.Ready() || !strings.Contains(k.logs.String(), "etcdserver: request timed out") {
			t.Errorf("ready = %v, want the reason in the log:\n%s", k.Ready(), k.logs)
		}
		if _, err := k.Certificate(nil); err == nil || k.expiryShown(t) {
			t.Errorf("a certificate is shown that there is not: %v, its expiry %v", err, k.expiryShown(t))
		}
		c.fail(false)
		time.Sleep(time.Second)
		synctest.Wait()
		if !k.Ready() {
			t.Fatalf("not ready a second later:\n%s", k.logs)
		}
		if !k.expiryShown(t) {
			t.Error("the expiry of the certificate is not shown")
		}
		before := k.shown(t)
		c.fail(true)
		time.Sleep(time.Hour)
		synctest.Wait()
		if k.shown(t) == nil || !k.shown(t).Leaf.Equal(before.Leaf) {
			t.Error("the certificate is gone with the API server")
		}
		if n := metric(t, k.reg, "wopproxy_webhook_certificate_checks_total", "failed"); n < 50 {
			t.Errorf("%v failures are counted in an hour, want one a minute", n)
		}
	})
}

// TestSecretOfOthers: what can't be read is made anew, and what is not there is asked
// for.
func TestSecretOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.data = map[string][]byte{"tls.crt": []byte("hello"), "theirs": []byte("stays")}
		k := startKeeper(t, c.api(t))
		synctest.Wait()
		if data, bundle := c.state(); !k.Ready() || string(data["theirs"]) != "stays" || believes(bundle, k.shown(t), time.Now()) != nil {
			t.Errorf("ready = %v, the Secret has %q of others", k.Ready(), data["theirs"])
		}
		absent := newCluster(t)
		absent.data = nil
		k = startKeeper(t, absent.api(t))
		synctest.Wait()
		if k.Ready() || !strings.Contains(k.logs.String(), "create the Secret, it may be empty") {
			t.Errorf("ready = %v without a Secret:\n%s", k.Ready(), k.logs)
		}
	})
}
