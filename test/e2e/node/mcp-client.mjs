// An MCP client of the TypeScript SDK that uses all a server of these tests has
// to offer, or calls one tool. It logs the progress it hears of, and ends with an
// error if an answer is not as it should be.
//
// usage: mcp-client.mjs URL [TOOL WANT]
import assert from 'node:assert/strict';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema, ErrorCode } from '@modelcontextprotocol/sdk/types.js';

const [url, tool, want] = process.argv.slice(2);
const client = new Client({ name: 'agent', version: '1' }, { capabilities: { elicitation: {} } });
client.setRequestHandler(ElicitRequestSchema, () => ({ action: 'accept', content: {} }));
const transport = new StreamableHTTPClientTransport(new URL(url));
await client.connect(transport);
assert.equal(transport.protocolVersion, '2025-11-25');

async function call(name, args, text, options) {
  const { content, isError } = await client.callTool({ name, arguments: args }, undefined, options);
  assert.deepEqual({ content, isError: isError ?? false }, { content: [{ type: 'text', text }], isError: name === 'fail' });
}

if (tool) {
  await call(tool, {}, want);
} else {
  assert.equal((await client.listTools()).tools.length, 6);
  await call('echo', { n: 42 }, '{"n":42}');
  const heard = [];
  const onprogress = ({ progress }) => {
    heard.push(progress);
    process.stderr.write('{"msg":"progress"}\n');
  };
  await call('stream', {}, 'streamed', { onprogress });
  assert.deepEqual(heard, [1, 2, 3]);
  await call('ask', {}, 'accept');
  await call('fail', {}, 'no');
  await assert.rejects(client.callTool({ name: 'absent' }), { code: ErrorCode.InvalidParams });
  assert.equal((await client.readResource({ uri: 'file:///notes' })).contents[0].text, 'a note');
  assert.equal((await client.getPrompt({ name: 'greet' })).messages.length, 1);
}
await transport.terminateSession();
await client.close();
