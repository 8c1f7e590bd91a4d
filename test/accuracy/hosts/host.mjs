// An A2A agent as one finds them: node:http, no dependency, and one pool of
// connections for the calls of all runs. COOPERATION says what it hands on.

import {spawn} from 'node:child_process';
import {randomBytes, randomUUID} from 'node:crypto';
import http from 'node:http';
import {setTimeout as think} from 'node:timers/promises';
import {fileURLToPath} from 'node:url';

const {PORT, HTTP_PROXY, TOOLS, COOPERATION, SECRET} = process.env;
const proxy = new URL(HTTP_PROXY);
const agent = new http.Agent({keepAlive: true, maxSockets: 4});

// handOn returns what a call says of the run that makes it: headers, members of
// its arguments, and the path to ask the proxy for.
function handOn(incoming, message) {
  const run = incoming['run-id'];
  switch (COOPERATION) {
    case 'ids':
      return {mentions: {message: message.messageId, context: message.contextId}};
    case 'opentelemetry': {
      const [version, trace, , flags] = incoming.traceparent.split('-');
      const traceparent = [version, trace, randomBytes(8).toString('hex'), flags].join('-');
      return {headers: {traceparent, tracestate: incoming.tracestate}};
    }
    case 'traceparent':
      return {headers: {traceparent: incoming.traceparent}};
    case 'run-id':
      return {headers: {'Run-Id': run}};
    case 'credential':
      return {headers: {'Proxy-Authorization': 'Basic ' + Buffer.from(`${run}:${SECRET}`).toString('base64')}};
    case 'base-path':
      return {path: `/_run/${encodeURIComponent(run)}/${TOOLS}`};
  }
  return {};
}

// call makes one call of a run.
function call(plan, {headers = {}, mentions = {}, path = TOOLS}) {
  const body = JSON.stringify({
    jsonrpc: '2.0', id: randomUUID(), method: 'tools/call',
    params: {name: 'note', arguments: {marker: plan.marker, ...mentions}},
  });
  return new Promise((resolve, reject) => {
    const request = http.request({
      agent, host: proxy.hostname, port: proxy.port, method: 'POST', path,
      headers: {
        Host: new URL(TOOLS).host, 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(body),
        Accept: 'application/json, text/event-stream', ...headers,
      },
    }, (response) => {
      response.resume();
      response.on('error', reject);
      response.on('end', () => response.statusCode === 200 ? resolve() : reject(new Error(`status ${response.statusCode}`)));
    });
    request.on('error', reject);
    request.end(body);
  });
}

// work makes the calls of a run, each after it has thought.
async function work(plan, on) {
  const step = async (ms) => {
    await think(ms);
    await call(plan, on);
  };
  if (plan.together) {
    await Promise.all(plan.think.map(step));
    return;
  }
  for (const ms of plan.think) await step(ms);
}

// elsewhere lets a process of the run's own do the work.
function elsewhere(plan, run) {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [fileURLToPath(import.meta.url), JSON.stringify(plan)], {
      env: {...process.env, RUN_ID: run}, stdio: ['ignore', 'ignore', 'inherit'],
    });
    child.on('error', reject);
    child.on('exit', (code) => code === 0 ? resolve() : reject(new Error(`the run's process has exited with ${code}`)));
  });
}

async function serve(request, response) {
  let text = '';
  for await (const chunk of request) text += chunk;
  const {id, params: {message}} = JSON.parse(text);
  const plan = JSON.parse(message.parts[0].text);
  if (COOPERATION === 'process') await elsewhere(plan, request.headers['run-id']);
  else await work(plan, handOn(request.headers, message));
  response.setHeader('Content-Type', 'application/json');
  response.end(JSON.stringify({
    jsonrpc: '2.0', id,
    result: {kind: 'task', id: randomUUID(), contextId: message.contextId, status: {state: 'completed'}},
  }));
}

if (process.argv.length > 2) {
  await work(JSON.parse(process.argv[2]), {});
  agent.destroy();
} else {
  const server = http.createServer((request, response) => serve(request, response).catch((err) => {
    console.error(err);
    response.writeHead(500).end(String(err));
  }));
  server.keepAliveTimeout = 60_000;
  server.listen(Number(PORT), '127.0.0.1', () => console.log('ready'));
  process.on('SIGTERM', () => process.exit(0));
}
