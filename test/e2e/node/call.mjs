// Posts stdin to an MCP server, with one of Node's HTTP clients as it is.
//
// usage: call.mjs fetch|http|EnvHttpProxyAgent|ProxyAgent URL
import http from 'node:http';
import https from 'node:https';
import { text } from 'node:stream/consumers';
import { EnvHttpProxyAgent, ProxyAgent, fetch as undiciFetch } from 'undici';

const [client, url] = process.argv.slice(2);
const headers = { 'Content-Type': 'application/json', Accept: 'application/json, text/event-stream' };
const method = 'POST';
const body = await text(process.stdin);

const calls = {
  fetch: () => read(fetch(url, { method, headers, body })),
  http: () => new Promise((resolve, reject) => {
    const { request } = url.startsWith('https:') ? https : http;
    request(url, { method, headers }, async (response) => {
      const answer = await text(response);
      if (response.statusCode !== 200) reject(new Error(`status ${response.statusCode}: ${answer}`));
      resolve(answer);
    }).on('error', reject).end(body);
  }),
  EnvHttpProxyAgent: () => read(undiciFetch(url, { method, headers, body, dispatcher: new EnvHttpProxyAgent() })),
  ProxyAgent: () => read(undiciFetch(url, { method, headers, body, dispatcher: new ProxyAgent(process.env.HTTP_PROXY) })),
};

async function read(pending) {
  const response = await pending;
  const answer = await response.text();
  if (!response.ok) throw new Error(`status ${response.status}: ${answer}`);
  return answer;
}

console.log(await calls[client]());
process.exit();
