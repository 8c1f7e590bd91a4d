package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// serviceAccount is where a pod finds what it needs to talk to the API server.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// API is the cluster's, as far as the webhook needs it.
type API struct {
	// URL of the API server.
	URL string
	// TokenFile has the bearer token, which is read for each request: it changes.
	TokenFile string
	// Transport trusts the API server.
	Transport http.RoundTripper
}

// InCluster is the API of the cluster that the program runs in, found as a pod finds
// it, in the environment and a folder of its own.
func InCluster(env func(string) (string, bool)) (*API, error) {
	host, _ := env("KUBERNETES_SERVICE_HOST")
	port, _ := env("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("find the API server: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: run this in a pod, or give -tls-cert and -tls-key")
	}
	roots, err := os.ReadFile(filepath.Join(serviceAccount, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w: does the pod mount its ServiceAccount's token?", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(roots) {
		return nil, fmt.Errorf("find the API server: %s/ca.crt holds no PEM certificate", serviceAccount)
	}
	return &API{
		URL: "https://" + net.JoinHostPort(host, port), TokenFile: filepath.Join(serviceAccount, "token"),
		// No proxy, whatever the environment says: the API server is a neighbour.
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true},
	}, nil
}

// Errors of the API server that are acted upon.
var (
	errConflict = errors.New("somebody else was faster")
	errAbsent   = errors.New("not found")
)

// maxObject bounds what is read of an answer.
const maxObject = 4 << 20

// get reads an object into v.
func (a *API) get(ctx context.Context, path string, v any) error {
	return a.call(ctx, http.MethodGet, path, "", nil, v)
}

// put replaces an object, if it is still the one that was read.
func (a *API) put(ctx context.Context, path string, v any) error {
	return a.call(ctx, http.MethodPut, path, "application/json", v, nil)
}

// patch edits an object with a JSON Patch.
func (a *API) patch(ctx context.Context, path string, ops []map[string]any) error {
	return a.call(ctx, http.MethodPatch, path, "application/json-patch+json", ops, nil)
}

func (a *API) call(ctx context.Context, method, path, media string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, method, a.URL+path, body)
	if err != nil {
		return err
	}
	token, err := os.ReadFile(a.TokenFile)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	r.Header.Set("Accept", "application/json")
	if media != "" {
		r.Header.Set("Content-Type", media)
	}
	resp, err := a.Transport.RoundTrip(r)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxObject))
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	switch {
	case resp.StatusCode == http.StatusConflict:
		return fmt.Errorf("%s %s: %w", method, path, errConflict)
	case resp.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%s %s: %w", method, path, errAbsent)
	case resp.StatusCode >= 300:
		var status struct{ Message string }
		_ = json.Unmarshal(text, &status) // else there is none
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, status.Message)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}
