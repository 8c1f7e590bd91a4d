package webhook

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Files is a certificate that somebody else keeps, such as cert-manager, in files that
// are read again when they change.
type Files struct {
	certFile, keyFile string
	log               *slog.Logger

	mu   sync.Mutex
	cert *tls.Certificate
	seen [2]time.Time // when the files that cert is of were written
}

// OpenFiles reads a certificate and its key, both PEM.
func OpenFiles(certFile, keyFile string, reg prometheus.Registerer, log *slog.Logger) (*Files, error) {
	f := &Files{certFile: certFile, keyFile: keyFile, log: log}
	if err := f.readLocked(); err != nil {
		return nil, err
	}
	reg.MustRegister(expiry{func() *tls.Certificate { return f.newest(context.Background()) }})
	return f, nil
}

// Certificate is for a tls.Config. A pair that can't be read changes nothing.
func (f *Files) Certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return f.newest(hello.Context()), nil
}

func (f *Files) newest(ctx context.Context) *tls.Certificate {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.readLocked(); err != nil {
		f.log.ErrorContext(ctx, "the webhook's certificate can't be read; the last one stays", "err", err)
	}
	return f.cert
}

func (f *Files) readLocked() error {
	var written [2]time.Time
	for i, name := range []string{f.certFile, f.keyFile} {
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		written[i] = info.ModTime()
	}
	if f.cert != nil && written == f.seen {
		return nil
	}
	cert, err := tls.LoadX509KeyPair(f.certFile, f.keyFile)
	if err != nil {
		return fmt.Errorf("%s with %s: %w", f.certFile, f.keyFile, err)
	}
	f.cert, f.seen = &cert, written
	return nil
}
