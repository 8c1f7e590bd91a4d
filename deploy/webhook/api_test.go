package webhook_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/wopproxy/wopproxy/deploy/webhook"
)

// cluster is as much of an API server as a webhook talks to: a Secret that takes no
// write of what is out of date, and a webhook configuration that takes JSON Patches.
type cluster struct {
	t     *testing.T
	token string

	mu       sync.Mutex
	version  int
	data     map[string][]byte // of the Secret; nil: there is none
	bundles  [3][]byte         // of the webhooks; the last one leads to another Service
	failing  bool
	conflict func() // called before a write of the Secret, which then is too late
}

func newCluster(t *testing.T) *cluster {
	return &cluster{t: t, token: "secret-token", version: 1, data: map[string][]byte{}}
}

// api is the cluster's without a network.
func (c *cluster) api(t *testing.T) *webhook.API {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(c.token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return &webhook.API{URL: "https://api.test", TokenFile: file, Transport: c}
}

// RoundTrip answers a request.
func (c *cluster) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	code, body := c.answer(r)
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: code, Status: strconv.Itoa(code) + " " + http.StatusText(code), Header: http.Header{}, Body: io.NopCloser(strings.NewReader(string(text))), Request: r}, nil
}

func (c *cluster) answer(r *http.Request) (int, any) {
	message := func(code int, text string) (int, any) { return code, map[string]any{"kind": "Status", "message": text} }
	switch {
	case r.Header.Get("Authorization") != "Bearer "+c.token:
		return message(http.StatusUnauthorized, "who are you?")
	case c.failing:
		return message(http.StatusInternalServerError, "etcdserver: request timed out")
	}
	version := func() map[string]any {
		return map[string]any{"name": "any", "resourceVersion": strconv.Itoa(c.version), "labels": map[string]any{"kept": "yes"}}
	}
	switch r.Method + " " + r.URL.Path {
	case "GET /api/v1/namespaces/wop/secrets/keys":
		if c.data == nil {
			return message(http.StatusNotFound, "no such Secret")
		}
		return http.StatusOK, map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": version(), "type": "Opaque", "data": maps.Clone(c.data)}
	case "PUT /api/v1/namespaces/wop/secrets/keys":
		if race := c.conflict; race != nil {
			c.conflict = nil
			race()
		}
		var s struct {
			Metadata struct {
				ResourceVersion string
				Labels          map[string]string
			}
			Data map[string][]byte
		}
		if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
			return message(http.StatusBadRequest, err.Error())
		}
		if s.Metadata.ResourceVersion != strconv.Itoa(c.version) {
			return message(http.StatusConflict, "the object has been modified")
		}
		if s.Metadata.Labels["kept"] != "yes" {
			c.t.Error("the Secret loses its labels")
		}
		c.version++
		c.data = s.Data
		return http.StatusOK, map[string]any{}
	case "GET /apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/wop":
		var hooks []any
		for i, b := range c.bundles {
			name := "wop-injector"
			if i == 2 {
				name = "other"
			}
			hooks = append(hooks, map[string]any{"name": strconv.Itoa(i), "clientConfig": map[string]any{"caBundle": b, "service": map[string]any{"name": name, "namespace": "wop", "path": "/inject"}}})
		}
		return http.StatusOK, map[string]any{"metadata": version(), "webhooks": hooks}
	case "PATCH /apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/wop":
		return c.patch(r)
	}
	return message(http.StatusForbidden, "not allowed")
}

func (c *cluster) patch(r *http.Request) (int, any) {
	var ops []struct {
		Op, Path string
		Value    json.RawMessage
	}
	if err := json.NewDecoder(r.Body).Decode(&ops); err != nil || r.Header.Get("Content-Type") != "application/json-patch+json" {
		return http.StatusUnsupportedMediaType, nil
	}
	for i, op := range ops {
		var at int
		switch {
		case i == 0 && op.Op == "test" && op.Path == "/metadata/resourceVersion":
			if string(op.Value) != strconv.Quote(strconv.Itoa(c.version)) {
				return http.StatusUnprocessableEntity, nil
			}
			continue
		case op.Op != "add":
			return http.StatusBadRequest, nil
		}
		if _, err := fmt.Sscanf(op.Path, "/webhooks/%d/clientConfig/caBundle", &at); err != nil || at > 2 {
			return http.StatusBadRequest, nil
		}
		if err := json.Unmarshal(op.Value, &c.bundles[at]); err != nil {
			return http.StatusBadRequest, nil
		}
	}
	c.version++
	return http.StatusOK, map[string]any{}
}

// state is what the cluster holds now.
func (c *cluster) state() (data map[string][]byte, bundle []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.data), slices.Clone(c.bundles[0])
}

func (c *cluster) fail(failing bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failing = failing
}
