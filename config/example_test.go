package config_test

import (
	"fmt"
	"strings"

	"github.com/wopproxy/wopproxy/config"
)

func ExampleParse() {
	c, err := config.Parse(strings.NewReader(`
host:
  id: planner.example.com/agent
  wellKnownUrl: https://planner.example.com/.well-known/openwop
ingress:
  upstream: http://127.0.0.1:8080
carriers:
  tylo: ["*.legacy.example.com"]
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(c.Ingress.Listen, c.Ingress.Upstream, c.Runs.TTL, c.Limits.InspectedBody)
	fmt.Println(c.Carriers.Tylo.Match("tools.legacy.example.com:443"))
	// Output:
	// 127.0.0.1:8088 http://127.0.0.1:8080 1h 4MiB
	// true
}

// Every mistake is told at once, with its key and its line.
func ExampleParse_mistakes() {
	_, err := config.Parse(strings.NewReader(`
host:
  id: planner.example.com/agent
  wellKnownUrl: https://planner.example.com/.well-known/openwop
ingress:
  listen: 8088
  upstrem: http://127.0.0.1:8080
runs: { ttl: 60 }
`))
	fmt.Println(err)
	// Output:
	// ingress.upstream: required, write the address of the host behind this proxy, for example http://127.0.0.1:8080
	// ingress.listen: a number where text belongs, put it in quotes if it is meant so (line 6)
	// ingress.upstrem: unknown key, the keys here are listen, transparent, upstream, grpcUpstream, host, allowedHosts, allowedOrigins, publicUrl, agentCards, discovery (line 7)
	// runs.ttl: "60" is not a duration, write for example 100ms, 30s, 1h or 7d (line 8)
}
