// An MCP server of the TypeScript SDK, with sessions and streams that can be
// resumed. It offers what the Go server of these tests offers, and logs what
// reaches it.
//
// GET /progressed and GET /release let its tools go on.
//
// usage: mcp-server.mjs [json], to answer with documents instead of streams
import { randomUUID } from 'node:crypto';
import { EventEmitter, once } from 'node:events';
import http from 'node:http';
import { text } from 'node:stream/consumers';
import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import {
  CallToolRequestSchema, ElicitResultSchema, ErrorCode, GetPromptRequestSchema, ListToolsRequestSchema, McpError, ReadResourceRequestSchema,
} from '@modelcontextprotocol/sdk/types.js';

const log = (msg, attrs) => process.stderr.write(JSON.stringify({ msg, ...attrs }) + '\n');
const said = (text) => ({ content: [{ type: 'text', text }] });
const gates = new EventEmitter();

const tools = {
  echo: (params) => said(JSON.stringify(params.arguments)),
  fail: () => ({ ...said('no'), isError: true }),
  // Each event only when the one before has reached the client.
  async stream({ _meta }, { sendNotification }) {
    for (let progress = 1; progress <= 3; progress++) {
      const arrived = once(gates, 'progressed');
      await sendNotification({ method: 'notifications/progress', params: { progressToken: _meta.progressToken, progress, total: 3 } });
      await arrived;
    }
    return said('streamed');
  },
  async ask(_, { sendRequest }) {
    const params = { message: 'really?', requestedSchema: { type: 'object', properties: {} } };
    const answer = await sendRequest({ method: 'elicitation/create', params }, ElicitResultSchema);
    return said(answer.action);
  },
  async hang() {
    const released = once(gates, 'release');
    log('entered');
    await released;
    return said('let go');
  },
  // Ends the stream of its own request: the client is to come back for the answer.
  poll(params, extra) {
    extra.closeSSEStream();
    return tools.hang();
  },
};

function newServer() {
  const server = new Server({ name: 'tools', version: '1' }, { capabilities: { tools: {}, resources: {}, prompts: {} } });
  server.setRequestHandler(ListToolsRequestSchema, () => (
    { tools: Object.keys(tools).map((name) => ({ name, inputSchema: { type: 'object' } })) }
  ));
  server.setRequestHandler(CallToolRequestSchema, ({ params }, extra) => {
    if (!tools[params.name]) throw new McpError(ErrorCode.InvalidParams, `no tool ${params.name}`);
    note(params.name, params, extra);
    return tools[params.name](params, extra);
  });
  server.setRequestHandler(ReadResourceRequestSchema, ({ params }, extra) => {
    note(params.uri, params, extra);
    return { contents: [{ uri: params.uri, text: 'a note' }] };
  });
  server.setRequestHandler(GetPromptRequestSchema, ({ params }, extra) => {
    note(params.name, params, extra);
    return { messages: [{ role: 'user', content: { type: 'text', text: 'hello' } }] };
  });
  return server;
}

// note logs what a handler was given.
function note(what, params, { requestInfo: { headers } }) {
  log('call', {
    what, args: params.arguments && JSON.stringify(params.arguments),
    run: headers['run-id'], headerParent: headers.traceparent, messageContext: params._meta?.traceparent,
  });
}

// EventStore keeps every event of a session.
class EventStore {
  events = [];

  async storeEvent(stream, message) {
    return String(this.events.push({ stream, message }) - 1);
  }

  async getStreamIdForEventId(id) {
    return this.events[id]?.stream;
  }

  async replayEventsAfter(id, { send }) {
    const { stream } = this.events[id];
    for (let i = Number(id) + 1; i < this.events.length; i++) {
      const event = this.events[i];
      if (event.stream === stream) await send(String(i), event.message);
    }
    return stream;
  }
}

const sessions = new Map();

async function newSession() {
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    enableJsonResponse: process.argv[2] === 'json',
    eventStore: new EventStore(),
    retryInterval: 10,
    onsessioninitialized: (id) => sessions.set(id, transport),
    onsessionclosed: (id) => sessions.delete(id),
  });
  await newServer().connect(transport);
  return transport;
}

const server = http.createServer(async (request, response) => {
  const gate = request.url.slice(1);
  if (gate !== 'mcp') {
    gates.emit(gate);
    response.end();
    return;
  }
  const body = await text(request);
  const message = body && JSON.parse(body);
  const { headers } = request;
  log('request', {
    httpMethod: request.method, rpcMethod: message.method, body,
    traceparent: headers.traceparent, state: headers.tracestate, inMessage: message.params?._meta?.traceparent,
    run: headers['run-id'], session: headers['mcp-session-id'], lastEvent: headers['last-event-id'],
  });
  const id = headers['mcp-session-id'];
  const transport = id ? sessions.get(id) : await newSession();
  if (!transport) {
    response.writeHead(404).end();
    return;
  }
  await transport.handleRequest(request, response, message || undefined);
});
server.listen(0, '127.0.0.1', () => log('listening', { port: server.address().port }));
