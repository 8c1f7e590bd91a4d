package evidence

import (
	"strings"
	"testing"
)

// TestToolOf: a name that no receipt could bear costs no receipt.
func TestToolOf(t *testing.T) {
	for target, want := range map[string]string{
		"search":                 "search",
		"":                       "tool_call",
		strings.Repeat("x", 256): strings.Repeat("x", 256),
		strings.Repeat("x", 257): "tool_call",
		"a\xff":                  "tool_call", // no UTF-8
		"a\ufdd0":                "tool_call", // I-JSON has no noncharacters
		"a\U0001fffe":            "tool_call",
		"\U0001f600 \u2028":      "\U0001f600 \u2028",
	} {
		if got := toolOf(&Observed{Protocol: MCP, Method: "tools/call", Target: target}); got != want {
			t.Errorf("toolOf(%.20q) = %.20q, want %.20q", target, got, want)
		}
	}
}
