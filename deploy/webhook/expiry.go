package webhook

import (
	"crypto/tls"

	"github.com/prometheus/client_golang/prometheus"
)

// expiry tells when the certificate ends, and nothing while there is none.
type expiry struct{ certificate func() *tls.Certificate }

var expiryDesc = prometheus.NewDesc("wopproxy_webhook_certificate_expiry_timestamp_seconds", "When the certificate of the webhook ends.", nil, nil)

func (e expiry) Describe(to chan<- *prometheus.Desc) { to <- expiryDesc }

func (e expiry) Collect(to chan<- prometheus.Metric) {
	if c := e.certificate(); c != nil {
		to <- prometheus.MustNewConstMetric(expiryDesc, prometheus.GaugeValue, float64(c.Leaf.NotAfter.Unix()))
	}
}
