package kube

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// serveTools is a server of MCP whose one tool answers with the id of the run
// that its call is, as the header Run-Id has it. It ends well on SIGTERM.
func serveTools(address string) error {
	srv := mcp.NewServer(&mcp.Implementation{Name: "tools", Version: "1"}, nil)
	srv.AddTool(&mcp.Tool{Name: "run", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: r.Extra.Header.Get("Run-Id")}}}, nil
		})
	// DNS rebinding, which the SDK guards loopback against, is no matter in a pod.
	o := &mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true, DisableLocalhostProtection: true}
	mux := http.NewServeMux()
	mux.Handle("/mcp", mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return srv }, o))
	mux.HandleFunc("/healthy", func(http.ResponseWriter, *http.Request) {})
	server := &http.Server{Addr: address, Handler: mux}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	context.AfterFunc(ctx, func() { _ = server.Shutdown(context.Background()); os.Exit(0) })
	return server.ListenAndServe()
}
