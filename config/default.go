package config

import (
	"log/slog"
	"time"
)

// Default returns the configuration of an empty file. It lacks what is
// required.
func Default() *Config {
	return &Config{
		Ingress: Ingress{
			Listen: "127.0.0.1:8088", Host: HostPreserve,
			AgentCards: AgentCards{Rewrite: true, Signed: SignedPass},
			Discovery:  Discovery{Causation: CausationExtension},
		},
		Egress: Egress{Listen: "127.0.0.1:8089", DenyLinkLocal: true, DialTimeout: Duration{10 * time.Second}},
		Admin:  Admin{Listen: "127.0.0.1:9090"},
		Ancestry: Ancestry{
			Store:         Store{Bolt: Bolt{Dir: "/var/lib/wopproxy", Journal: 512 << 10}},
			Retention:     Retention{Age: Duration{720 * time.Hour}, Links: 10_000_000},
			CommitTimeout: Duration{100 * time.Millisecond},
			Auth:          Auth{Mode: AuthHost},
		},
		Evidence: Evidence{Privacy: PrivacyBalanced, Keys: []EvidenceKey{}, Queue: 8192},
		Headers:  Headers{RunAncestry: "Run-Ancestry", RunID: "Run-Id"},
		Runs: Runs{
			MCPMethods: []string{"tools/call", "resources/read", "prompts/get"},
			TTL:        Duration{time.Hour},
		},
		Attribution: Attribution{
			SingleFlight: true, Quarantine: Duration{time.Second},
			WebhookContext: WebhookLink, WebhookTTL: Duration{24 * time.Hour},
		},
		Trust: Trust{
			Ingress: TrustIngress{Mode: TrustAll},
			Egress:  TrustEgress{Mode: TrustAll},
		},
		Tracing: Tracing{
			OTLP:        OTLP{Protocol: ProtocolHTTP, Headers: map[string]Secret{}, Timeout: Duration{10 * time.Second}},
			Sample:      1,
			TaskTTL:     Duration{24 * time.Hour},
			Propagators: []Propagator{PropagatorB3, PropagatorJaeger, PropagatorXRay, PropagatorOTTrace},
		},
		Limits: Limits{
			MaxDepth:        64,
			InspectedBody:   4 << 20,
			InspectedBodies: 64 << 20,
			BodyPatience:    Duration{10 * time.Second},
			Header:          64 << 10,
			InspectedEvent:  1 << 20,
			StdioLine:       16 << 20,
			LiveRuns:        100_000,
			Bindings:        100_000,
			WatchedRuns:     10_000,
			FollowedRuns:    1000,
			Webhooks:        100_000,
			ProcessScan:     Duration{500 * time.Millisecond},
			Tasks:           100_000,
			Handoffs:        15_000,
			HandoffTTL:      Duration{24 * time.Hour},
			Queue:           8192,
			Tunnels:         10_000,
			Connections:     10_000,
		},
		Drain: Drain{Delay: Duration{5 * time.Second}, Timeout: Duration{20 * time.Second}},
		Log:   Log{Level: slog.LevelInfo},
	}
}
