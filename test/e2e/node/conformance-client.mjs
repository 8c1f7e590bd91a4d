// The client that MCP's conformance suite judges: the TypeScript SDK, asked to do
// what the scenarios of the suite want of a client.
//
// usage: MCP_CONFORMANCE_SCENARIO=NAME conformance-client.mjs URL
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';

const client = new Client(
  { name: 'agent', version: '1' },
  { capabilities: { elicitation: { form: { applyDefaults: true } } } },
);
client.setRequestHandler(ElicitRequestSchema, () => ({ action: 'accept', content: {} }));
await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[2])));

const { tools } = await client.listTools();
const calls = {
  tools_call: { name: 'add_numbers', arguments: { a: 5, b: 3 } },
  'elicitation-sep1034-client-defaults': { name: 'test_client_elicitation_defaults', arguments: {} },
  'sse-retry': { name: 'test_reconnection', arguments: {} },
};
const call = calls[process.env.MCP_CONFORMANCE_SCENARIO];
if (call) {
  if (!tools.some((tool) => tool.name === call.name)) throw new Error(`no tool ${call.name}`);
  await client.callTool(call);
}
await client.close();
