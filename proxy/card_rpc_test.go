package proxy

import (
	"context"
	"strings"
	"testing"

	a2apb0 "github.com/a2aproject/a2a-go/a2apb"
	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
)

// rpcCards serves the card of a test over gRPC, in both generations.
type rpcCards struct {
	a2apb.UnimplementedA2AServiceServer
	card *a2apb.AgentCard
	old  rpcCards03
}

type rpcCards03 struct {
	a2apb0.UnimplementedA2AServiceServer
	card *a2apb0.AgentCard
}

func (c *rpcCards) GetExtendedAgentCard(context.Context, *a2apb.GetExtendedAgentCardRequest) (*a2apb.AgentCard, error) {
	if c.card == nil {
		return nil, status.Error(codes.FailedPrecondition, "no extended card")
	}
	return c.card, nil
}

func (c *rpcCards03) GetAgentCard(context.Context, *a2apb0.GetAgentCardRequest) (*a2apb0.AgentCard, error) {
	return c.card, nil
}

// The extended card of gRPC is rewritten like the others: what a client decodes
// differs in the host's own addresses and in nothing else, and errors keep their
// status.
func TestRPCCards(t *testing.T) {
	c := &rpcCards{}
	srv := grpc.NewServer(grpc.MaxSendMsgSize(16 << 20))
	a2apb.RegisterA2AServiceServer(srv, c)
	a2apb0.RegisterA2AServiceServer(srv, &c.old)
	host := serveGRPC(t, srv)
	for _, row := range []struct {
		name    string
		signed  bool
		pad     int
		strip   bool
		absent  bool
		outcome string
	}{
		{name: "plain", outcome: "rewritten"},
		{name: "signed", signed: true, outcome: "signed"},
		{name: "stripped", signed: true, strip: true, outcome: "stripped"},
		{name: "5 MB", pad: 5 << 20, outcome: "refused"},
		{name: "none", absent: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newSidecar(t, "agent.example.com", "http://"+host, func(_ *Options, p *Policy) {
				p.PublicURL, p.StripSignatures = mustParse(t, "https://pub.example.com/a"), row.strip
			})
			made := func(http, rpc string, signed bool) (*a2apb.AgentCard, *a2apb0.AgentCard) {
				n := &a2apb.AgentCard{Name: "a", Description: strings.Repeat("x", row.pad), SupportedInterfaces: []*a2apb.AgentInterface{
					{Url: rpc, ProtocolBinding: "GRPC", ProtocolVersion: "1.0", Tenant: "t"},
					{Url: "http://" + host + "/ws", ProtocolBinding: "urn:ws"},
					{Url: http, ProtocolBinding: "JSONRPC", ProtocolVersion: "1.0"},
					{Url: "https://elsewhere.example.com/", ProtocolBinding: "HTTP+JSON"},
				}, Capabilities: &a2apb.AgentCapabilities{Streaming: new(true)}}
				o := &a2apb0.AgentCard{Name: "a", Url: http, PreferredTransport: "JSONRPC", ProtocolVersion: "0.3.0", Description: strings.Repeat("x", row.pad),
					AdditionalInterfaces: []*a2apb0.AgentInterface{{Url: rpc, Transport: "GRPC"}, {Url: "https://elsewhere.example.com/", Transport: "HTTP+JSON"}}}
				if signed {
					n.Signatures = []*a2apb.AgentCardSignature{{Protected: "e30", Signature: "c2ln"}}
					o.Signatures = []*a2apb0.AgentCardSignature{{Protected: "e30", Signature: "c2ln"}}
				}
				return n, o
			}
			c.card, c.old.card = made("http://"+host+"/a2a", host, row.signed)
			want, old := c.card, c.old.card
			if row.outcome == "rewritten" || row.outcome == "stripped" {
				want, old = made("https://pub.example.com/a/a2a", "pub.example.com:443", false)
			}
			if row.absent {
				c.card = nil
			}
			conn := dialGRPC(t, s.ingress.URL, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
			got, err := a2apb.NewA2AServiceClient(conn).GetExtendedAgentCard(t.Context(), &a2apb.GetExtendedAgentCardRequest{})
			if row.absent {
				if status.Code(err) != codes.FailedPrecondition || status.Convert(err).Message() != "no extended card" {
					t.Errorf("error = %v, want the agent's", err)
				}
				s.wantSeries(t, cards("refused"), 0)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("card of 1.0 (-want +got):\n%.2000s", diff)
			}
			got03, err := a2apb0.NewA2AServiceClient(conn).GetAgentCard(t.Context(), &a2apb0.GetAgentCardRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(old, got03, protocmp.Transform()); diff != "" {
				t.Errorf("card of 0.3 (-want +got):\n%.2000s", diff)
			}
			s.wantSeries(t, cards(row.outcome), 2)
			s.wantSeries(t, "wopproxy_codec_panics_total", 0)
		})
	}
}
