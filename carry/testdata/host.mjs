// A host that forwards nothing. It answers each request with what the server that
// it calls on its behalf has received.
//
// POST /CLIENT?url=URL on the addresses that it prints: HTTP/1.1, then HTTP/2.
import { EventEmitter, once } from 'node:events';
import http, { get, request } from 'node:http';
import https from 'node:https';
import http2 from 'node:http2';
import net from 'node:net';
import { createRequire } from 'node:module';
import { pipeline } from 'node:stream/promises';
import { PassThrough, Readable } from 'node:stream';
import { text } from 'node:stream/consumers';

const answer = (response) => text(response);
const awaited = (make) => new Promise((resolve, reject) => make(resolve).on('error', reject));
const few = new http.Agent({ keepAlive: true, maxSockets: 2 });
const packages = process.env.PACKAGES && createRequire(process.env.PACKAGES + '/');
const undici = packages && packages('undici');
const grpc = packages && packages('@grpc/grpc-js');
const one = undici && new undici.Agent({ connections: 1, pipelining: 1 });
let retrying;
let attempts = 0;
const viaUndici = async (url, dispatcher) => (await undici.request(url, { dispatcher })).body.text();
let byEnvironment; // it warns
let proxy;
let session; // one for all, as HTTP/2 has it
let channel;
const stored = net.createServer((socket) => socket.pipe(socket)).listen(0);
let database; // one connection for all, as clients of databases have it
const asked = [];

const clients = {
  get: (url) => awaited((done) => get(url, done)).then(answer),
  request: (url) => awaited((done) => request(url, { method: 'POST' }, done).end('x')).then(answer),
  https: (url) => awaited((done) => https.get(url, done)).then(answer),
  few: (url) => awaited((done) => http.get(url, { agent: few }, done)).then(answer),
  own: (url) => awaited((done) => http.get(url, { headers: { TraceParent: '00-own' } }, done)).then(answer),
  absolute: (url) => { // as a client that was given the proxy sends it
    const { hostname, port } = new URL(process.env.WOPPROXY_EGRESS);
    return awaited((done) => http.get({ host: hostname, port, path: url, headers: { host: new URL(url).host }, agent: few }, done)).then(answer);
  },
  database: (url) => new Promise((resolve, reject) => { // the call is made where its answer is heard
    asked.push(() => get(url, resolve).on('error', reject));
    database ??= net.connect(stored.address().port).on('data', (answers) => { for (const _ of answers) asked.shift()(); });
    database.write('?');
  }).then(answer),
  fetch: async (url) => (await fetch(url, { headers: { 'X-Own': '1' } })).text(),
  fetchOwn: async (url) => (await fetch(new Request(url, { method: 'POST', body: 'x', headers: { traceparent: '00-own' } }))).text(),
  undici: (url) => viaUndici(url, one),
  undiciGlobal: (url) => viaUndici(url),
  EnvHttpProxyAgent: (url) => viaUndici(url, byEnvironment ??= new undici.EnvHttpProxyAgent()),
  ProxyAgent: (url) => viaUndici(url, proxy ??= new undici.ProxyAgent(process.env.HTTP_PROXY)),
  retry: async (url) => { // the second attempt is made from a timer of the connection
    retrying ??= one.compose(undici.interceptors.retry({ minTimeout: 1, maxRetries: 3 }));
    return (await undici.request(url, { dispatcher: retrying, headers: { 'X-Fail-Once': String(++attempts) } })).body.text();
  },
  http2: async (url) => {
    session ??= http2.connect(new URL(url).origin);
    return text(session.request({ ':path': '/' }));
  },
  grpc: (url) => new Promise((resolve, reject) => { // its first calls wait for the connection
    channel ??= new grpc.Client(new URL(url).host, grpc.credentials.createInsecure());
    channel.makeUnaryRequest('/a.B/C', (b) => b, (b) => b.toString(), Buffer.from('x'), (err, body) => (err ? reject(err) : resolve(body)));
  }),
};

const hops = [
  () => new Promise((done) => setTimeout(done, Math.random() * 5)),
  () => new Promise((done) => setImmediate(done)),
  () => new Promise((done) => process.nextTick(done)),
  () => new Promise((done) => queueMicrotask(done)),
  () => {
    const emitter = new EventEmitter();
    setTimeout(() => emitter.emit('ready'), Math.random() * 3);
    return once(emitter, 'ready');
  },
  () => pipeline(Readable.from(['some', 'text']), new PassThrough(), async (all) => text(all)),
];

function handle(req, res) {
  let body = '';
  req.on('data', (chunk) => { body += chunk; });
  req.on('end', async () => { // outside of what called handle
    const url = new URL(req.url, 'http://host');
    try {
      for (let i = 0; i < 4; i++) await hops[Math.floor(Math.random() * hops.length)]();
      const { length } = body;
      const received = await clients[url.pathname.slice(1)](url.searchParams.get('url'));
      res.end(JSON.stringify({ length, received: JSON.parse(received) }));
    } catch (err) {
      res.statusCode = 500;
      res.end(err.stack);
    }
  });
}

const listen = async (server) => `127.0.0.1:${(await once(server.listen(0, '127.0.0.1'), 'listening'), server.address().port)}`;
console.log(`${await listen(http.createServer(handle))} ${await listen(http2.createServer(handle))}`);
process.stdin.on('end', () => process.exit()).resume(); // with whoever has started it
