// An MCP client of the TypeScript SDK that starts a stdio server and uses what
// server-everything has to offer. It writes each message that it sends (>) and
// gets (<) to stdout, and the server's exit status at the end.
//
// usage: stdio-client.mjs COMMAND [ARGUMENT...]
import assert from 'node:assert/strict';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { CreateMessageRequestSchema, ElicitRequestSchema, ListRootsRequestSchema } from '@modelcontextprotocol/sdk/types.js';

const [command, ...args] = process.argv.slice(2);
const transport = new StdioClientTransport({ command, args, env: process.env, stderr: 'inherit' });
const say = (way, message) => process.stdout.write(`${way} ${JSON.stringify(message)}\n`);
const send = transport.send.bind(transport);
transport.send = (message, options) => {
  say('>', message);
  return send(message, options);
};
transport.onmessage = (message) => say('<', message); // the SDK adds to it

const client = new Client({ name: 'client', version: '1' }, { capabilities: { roots: {}, sampling: {}, elicitation: {} } });
const asked = new Promise((resolve) => {
  client.setRequestHandler(ListRootsRequestSchema, () => {
    setImmediate(resolve);
    return { roots: [{ uri: 'file:///here', name: 'here' }] };
  });
});
client.setRequestHandler(CreateMessageRequestSchema, () => ({ role: 'assistant', model: 'm', content: { type: 'text', text: 'sampled' } }));
client.setRequestHandler(ElicitRequestSchema, () => ({ action: 'decline' }));
await client.connect(transport);
await asked; // some time after the start: from here on, who speaks next is known

const { tools } = await client.listTools();
assert(tools.length > 10);
const call = (name, args = {}, options) => client.callTool({ name, arguments: args }, undefined, options);
await client.ping();
await call('echo', { message: 'hello \u2028 \u{1F600} </script> 9007199254740993' });
await call('get-sum', { a: 0.1, b: 1e21 });
await call('get-tiny-image');
await call('get-annotated-message', { messageType: 'error', includeImage: true });
await call('get-structured-content', { location: 'Chicago' });
await call('get-roots-list');
await call('trigger-sampling-request', { prompt: 'why?', maxTokens: 10 });
await call('trigger-elicitation-request');
await call('trigger-long-running-operation', { duration: 0.3, steps: 3 }, { onprogress: () => {} });
assert.equal((await call('no-such-tool')).isError, true);
await assert.rejects(client.request({ method: 'no/such/method' }, { parse: (x) => x }));
await client.listPrompts();
await client.getPrompt({ name: 'simple-prompt' });
await client.listResources();
await client.listResourceTemplates();
await client.setLoggingLevel('debug');
const abort = new AbortController();
const hung = call('trigger-long-running-operation', { duration: 600, steps: 6 }, { signal: abort.signal });
setImmediate(() => abort.abort());
await assert.rejects(hung);

const ended = new Promise((resolve) => { transport.onclose = resolve; });
const status = new Promise((resolve) => transport._process.on('close', (code, signal) => resolve(code ?? signal)));
process.kill(transport.pid, 'SIGINT'); // on which this server ends; it does not with its input
await ended;
process.stdout.write(`status ${await status}\n`);
