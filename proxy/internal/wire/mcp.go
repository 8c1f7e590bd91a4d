package wire

import "cmp"

// readMCP reads params of a request or notification of MCP.
func (m *Message) readMCP() {
	d := &m.doc
	m.ProtocolVersion = d.text(atMetaVersion, maxID)
	if m.ProtocolVersion == "" && m.Method == "initialize" {
		m.ProtocolVersion = d.text(atInitVersion, maxID)
	}
	m.RequestState = d.bytes(atRequestState)
	m.TaskID = cmp.Or(d.text(atTaskID, maxID), d.text(atRelatedTask, maxID))
	switch {
	case m.Kind == Request:
		m.ProgressToken = d.canonicalID(atMetaProgress)
	case m.Method == "notifications/progress":
		m.ProgressToken = d.canonicalID(atProgress)
	case m.Method == "notifications/cancelled":
		m.Cancelled = d.canonicalID(atCancelled)
	}
	m.Traceparent = d.text(atMetaTraceparent, maxCarrier)
	m.Tracestate = d.text(atMetaTracestate, maxCarrier)
	m.Baggage = d.text(atMetaBaggage, maxCarrier)
	m.Ancestry = d.text(atMetaAncestry, maxCarrier)
	m.Tylo, _ = ParseTyloIDs(d.text(atTyloTraceID, maxID), d.text(atTyloSpanID, maxID))

	switch {
	case !d.objectOrAbsent(atParams):
		m.Refusal = RefusedParamsNotObject
	case !d.objectOrAbsent(atMeta):
		m.Refusal = RefusedMetaNotObject
	}
	switch {
	case d.twice&guardTylo != 0:
		m.TyloRefusal = RefusedDuplicateKey
	case d.variant&guardTylo != 0:
		m.TyloRefusal = RefusedCaseVariant
	case !d.objectOrAbsent(atTylo) || !d.objectOrAbsent(atTyloTrace):
		m.TyloRefusal = RefusedMetaNotObject
	}
}

// objectOrAbsent reports whether the member may be edited or created.
func (d *doc) objectOrAbsent(s slot) bool {
	c := d.first(s)
	return c == 0 || c == '{'
}

// stampMCP plans the edits of params._meta, the only carrier that MCP servers
// hand to their handlers, and of params.tylo, which they drop. Nothing else is
// touched: TypeScript servers refuse unknown members beside params.
func (m *Message) stampMCP(p *splice, e Edit) {
	params := [2]member{{slot: atMeta, key: "_meta", members: []member{
		{slot: atMetaTraceparent, key: "traceparent", text: e.Traceparent},
		{slot: atMetaTracestate, key: "tracestate", text: e.Tracestate},
		{slot: atMetaBaggage, key: "baggage", text: e.Baggage},
		{slot: atMetaAncestry, key: ancestryKey, text: e.Ancestry},
	}}}
	n := 1
	// params is not created for the sake of tylo alone.
	if e.Tylo != nil && m.TyloRefusal == "" && (m.doc.has(atParams) || params[0].present()) {
		params[1] = member{slot: atTylo, key: "tylo", members: []member{
			{slot: atTyloTrace, key: "trace", members: []member{
				{slot: atTyloTraceID, key: "traceId", text: e.Tylo.TraceID},
				{slot: atTyloSpanID, key: "parentSpanId", text: e.Tylo.ParentSpanID},
				{slot: atTyloSource, key: "source"},
			}},
		}}
		n = 2
	}
	p.object(&m.doc, atRoot, []member{{slot: atParams, key: "params", members: params[:n]}})
}
