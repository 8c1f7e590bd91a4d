// Package compose_test holds the example for Docker Compose together: each file
// says something that another one has to agree with.
package compose_test

import (
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/wopproxy/wopproxy/config"
)

func load[T any](t *testing.T, name string) (v T) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := yaml.NewDecoder(f).Decode(&v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return v
}

type service struct {
	Image, Build string
	NetworkMode  string `yaml:"network_mode"`
	Command      []string
	Ports        []string
	Volumes      []string
	Environment  map[string]string
	Healthcheck  struct{ Test []string }
}

type compose struct {
	Services map[string]service
	Volumes  map[string]any
}

func port(t *testing.T, addr config.Address) string {
	t.Helper()
	_, port, err := net.SplitHostPort(string(addr))
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func TestExampleFitsTogether(t *testing.T) {
	c, err := config.Load("config/wopproxy.yaml")
	if err != nil {
		t.Fatalf("config/wopproxy.yaml does not load:\n%v", err)
	}
	all := load[compose](t, "compose.yaml")
	wop, host := all.Services["wopproxy"], all.Services["host"]
	equal := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s = %q, want %q", what, got, want)
		}
	}
	// What the network of the two must be like.
	equal("network of the host", host.NetworkMode, "service:wopproxy")
	equal("proxy of the host", host.Environment["HTTP_PROXY"], "http://"+string(c.Egress.Listen))
	equal("proxy of the host, for curl and others", host.Environment["http_proxy"], "http://"+string(c.Egress.Listen))
	equal("upstream", c.Ingress.Upstream.Hostname(), "127.0.0.1")
	if !c.Egress.Listen.Loopback() {
		t.Errorf("egress listens on %s: want loopback, it is an open proxy", c.Egress.Listen)
	}
	ingress := port(t, c.Ingress.Listen)
	if want := []string{"127.0.0.1:" + ingress + ":" + ingress}; !slices.Equal(wop.Ports, want) {
		t.Errorf("wopproxy publishes %q, want %q", wop.Ports, want)
	}
	// What the other containers are told of it.
	equal("exporter of spans", c.Tracing.OTLP.Endpoint.Hostname(), "otel-collector")
	equal("exporter of the host's spans", host.Environment["OTEL_EXPORTER_OTLP_ENDPOINT"], c.Tracing.OTLP.Endpoint.String())
	collector := load[struct {
		Receivers struct {
			OTLP struct {
				Protocols map[string]struct{ Endpoint string }
			}
		}
		Exporters map[string]any
		Service   struct {
			Pipelines map[string]struct{ Receivers, Exporters []string }
		}
	}](t, "otel-collector.yaml")
	equal("endpoint of the collector", collector.Receivers.OTLP.Protocols["http"].Endpoint, "0.0.0.0:"+c.Tracing.OTLP.Endpoint.Port())
	for _, e := range collector.Service.Pipelines["traces"].Exporters {
		if _, ok := collector.Exporters[e]; !ok {
			t.Errorf("the collector exports to %q, which it does not define", e)
		}
	}
	prometheus := load[struct {
		ScrapeConfigs []struct {
			StaticConfigs []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}](t, "prometheus.yaml")
	equal("target of Prometheus", prometheus.ScrapeConfigs[0].StaticConfigs[0].Targets[0], "wopproxy:"+port(t, c.Admin.Listen))
	// What the container must be given.
	if name := c.Ancestry.Auth.Bearer.Env; wop.Environment[name] == "" {
		t.Errorf("compose.yaml does not set %s, which holds ancestry.auth.bearer", name)
	}
	if want := "links:" + c.Ancestry.Store.Bolt.Dir; !slices.Contains(wop.Volumes, want) {
		t.Errorf("volumes of wopproxy = %q, want %q among them", wop.Volumes, want)
	}
	if !slices.Contains(wop.Volumes, "./config:/etc/wopproxy:ro") || !slices.Contains(wop.Command, "/etc/wopproxy/wopproxy.yaml") {
		t.Errorf("wopproxy is not given config/wopproxy.yaml: command %q, volumes %q", wop.Command, wop.Volumes)
	}
	// Without a URL it asks where admin listens by default.
	if want := []string{"CMD", "/usr/bin/wopproxy", "health"}; !slices.Equal(wop.Healthcheck.Test, want) || port(t, c.Admin.Listen) != port(t, config.Default().Admin.Listen) {
		t.Errorf("health check of wopproxy is %q with admin on %s, want %q and the default", wop.Healthcheck.Test, c.Admin.Listen, want)
	}
	for name, s := range all.Services {
		if s.Build == "" && !regexp.MustCompile(`^\$\{HOST_IMAGE:\?|^[a-z0-9/.-]+:v?[0-9]+\.[0-9]+\.[0-9]+$`).MatchString(s.Image) {
			t.Errorf("image of %s = %q, want a version: another day it would be another program", name, s.Image)
		}
		for _, v := range s.Volumes {
			if source, _, _ := strings.Cut(v, ":"); strings.HasPrefix(source, "./") {
				if _, err := os.Stat(source); err != nil {
					t.Errorf("%s mounts %s: %v", name, source, err)
				}
			} else if _, ok := all.Volumes[source]; !ok {
				t.Errorf("%s mounts the volume %s, which is not defined", name, source)
			}
		}
	}
}

// TestDockerfileAgrees compares the image with the configuration that it runs by
// default: ports, the folder of the store, and a user that is not root.
func TestDockerfileAgrees(t *testing.T) {
	b, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	for _, want := range []string{
		"\nFROM scratch\n",
		"\nUSER 65532:65532\n",
		"\nEXPOSE " + port(t, c.Ingress.Listen) + " " + port(t, c.Egress.Listen) + " " + port(t, c.Admin.Listen) + "\n",
		"--chown=65532:65532 /out/store " + c.Ancestry.Store.Bolt.Dir + "\n",
		"/etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/\n",
		"CGO_ENABLED=0 go build -trimpath -tags grpcnotrace ",
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("Dockerfile lacks %q", strings.TrimSpace(want))
		}
	}
}
