package kube

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// telemetry is where Jaeger is, which takes the spans of every wopproxy.
const telemetry = "http://jaeger.telemetry.svc"

// span is one that Jaeger has.
type span struct {
	ID         string `json:"spanID"`
	Name       string `json:"operationName"`
	Process    string `json:"processID"`
	References []struct {
		Type string `json:"refType"`
		ID   string `json:"spanID"`
	} `json:"references"`
	Tags []tag `json:"tags"`
}

type tag struct {
	Key   string `json:"key"`
	Value any    `json:"value"`
}

// trace is one that Jaeger has.
type trace struct {
	Spans     []span `json:"spans"`
	Processes map[string]struct {
		Tags []tag `json:"tags"`
	} `json:"processes"`
}

func value(tags []tag, key string) string {
	for _, t := range tags {
		if t.Key == key {
			return fmt.Sprint(t.Value)
		}
	}
	return ""
}

// traceOf asks Jaeger for a trace.
func traceOf(id string) (found trace, err error) {
	resp, err := direct.Get(telemetry + ":16686/api/traces/" + id)
	if err != nil {
		return found, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return found, err
	}
	var answer struct {
		Data []trace `json:"data"`
	}
	if resp.StatusCode != http.StatusOK || json.Unmarshal(body, &answer) != nil || len(answer.Data) != 1 {
		return found, fmt.Errorf("jaeger: status %d: %s", resp.StatusCode, body)
	}
	return answer.Data[0], nil
}

// checkTraces compares what Jaeger has of each chain: all of it, from the caller's
// own span to the last host, without a gap. Questions for a card may come between.
func (n namespace) checkTraces(t *testing.T, chains []chain) {
	t.Helper()
	const card = "GET /.well-known/agent-card.json"
	want := []string{
		n.hostID(0) + " SERVER SendMessage < the caller",
		n.hostID(0) + " CLIENT message/send < " + n.hostID(0) + " SERVER SendMessage",
		n.hostID(1) + " SERVER message/send < " + n.hostID(0) + " CLIENT message/send",
		n.hostID(1) + " CLIENT tools/call run < " + n.hostID(1) + " SERVER message/send",
		n.hostID(2) + " SERVER tools/call run < " + n.hostID(1) + " CLIENT tools/call run",
	}
	slices.Sort(want)
	for _, c := range chains {
		eventually(t, "trace "+c.trace+" is whole", func() error {
			found, err := traceOf(c.trace)
			if err != nil {
				return err
			}
			if diff := cmp.Diff(want, found.lines(c, card)); diff != "" {
				return fmt.Errorf("spans (-want +got):\n%s", diff)
			}
			return nil
		})
	}
}

// lines says of each span whose child it is, but of those with one name.
func (found trace) lines(c chain, without string) (lines []string) {
	names := map[string]string{c.span: "the caller"}
	for _, s := range found.Spans {
		host := value(found.Processes[s.Process].Tags, "service.instance.id")
		kind := map[string]string{"server": "SERVER", "client": "CLIENT"}[value(s.Tags, "span.kind")]
		names[s.ID] = host + " " + kind + " " + s.Name
	}
	for _, s := range found.Spans {
		if s.Name == without {
			continue
		}
		parent := "nothing"
		for _, r := range s.References {
			if r.Type == "CHILD_OF" {
				parent = names[r.ID]
			}
		}
		lines = append(lines, names[s.ID]+" < "+parent)
	}
	slices.Sort(lines)
	return lines
}

//go:embed testdata/jaeger.yaml
var jaeger string

// startTelemetry starts Jaeger, once for all tests.
func startTelemetry(ctx context.Context) error {
	if _, err := command(ctx, jaeger, "kubectl", "apply", "--validate=strict", "-f", "-"); err != nil {
		return err
	}
	_, err := command(ctx, "", "kubectl", "--namespace", "telemetry", "rollout", "status", "deployment/jaeger", "--timeout="+patience.String())
	return err
}
