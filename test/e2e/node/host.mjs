// A host that knows nothing of wopproxy: an MCP server whose tool calls another.
// It answers with the id of the run that it was given, if any.
//
// usage: host.mjs fetch|http URL of the other server; it listens on $PORT
import { createServer, request } from 'node:http';
import { text } from 'node:stream/consumers';

const [client, url] = process.argv.slice(2);
const headers = { 'Content-Type': 'application/json', Accept: 'application/json, text/event-stream' };
const method = 'POST';

const call = {
  fetch: async (body) => (await fetch(url, { method, headers, body })).text(),
  http: (body) => new Promise((resolve, reject) => { // by hand, for a Node that does not heed its environment
    const { hostname, port } = new URL(process.env.HTTP_PROXY);
    request({ hostname, port, path: url, method, headers: { ...headers, Host: new URL(url).host } }, (response) => resolve(text(response))).on('error', reject).end(body);
  }),
}[client];

createServer(async (req, res) => {
  try {
    const { id, params } = JSON.parse(await text(req));
    await new Promise((done) => setTimeout(done, Math.random() * 5)); // runs overlap in every order
    await call(JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name: 'echo', arguments: params.arguments } }));
    const result = { content: [{ type: 'text', text: req.headers['run-id'] ?? '' }] };
    res.setHeader('Content-Type', 'application/json').end(JSON.stringify({ jsonrpc: '2.0', id, result }));
  } catch (err) {
    res.statusCode = 500;
    res.end(err.stack);
  }
}).listen(process.env.PORT, 'localhost');
