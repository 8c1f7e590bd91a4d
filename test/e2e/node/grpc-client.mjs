// A client of the service in echo.mjs, on grpc-js, whose proxy is that of its
// environment. It ends with an error if anything is not as it was sent.
//
// usage: grpc-client.mjs HOST:PORT FAILURES
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { promisify } from 'node:util';
import grpc from '@grpc/grpc-js';
import { service } from './echo.mjs';

const [target, failures] = process.argv.slice(2);
const Echo = grpc.makeGenericClientConstructor(service, 'Echo');
const client = new Echo(target, grpc.credentials.createInsecure());
const message = Buffer.from([0, 1, 2, 0xff, 0x0a, 0]);
const secret = Buffer.from([0, 0xff, 7]);
const metadata = new grpc.Metadata();
metadata.set('x-key', 'a value');
metadata.set('data-bin', secret);

async function ends(call) {
  const [{ code, metadata: trailers }] = await once(call, 'status');
  assert.equal(code, grpc.status.OK);
  assert.deepEqual(trailers.get('x-key'), ['a value']);
  assert.deepEqual(trailers.get('data-bin'), [secret]);
}

const answered = [];
const call = client.Unary(message, metadata, (err, answer) => answered.push(err ?? answer));
await ends(call);
assert.deepEqual(answered, [message]);

const down = client.Down(message, metadata);
const downEnds = ends(down);
const received = [];
for await (const m of down) received.push(m);
assert.deepEqual(received, [message, message, message]);
await downEnds;

// Each message only when the one before has come back.
const both = client.Both(metadata);
const bothEnds = ends(both);
for (const text of ['one', 'two', 'three']) {
  const back = once(both, 'data');
  both.write(Buffer.from(text));
  assert.equal((await back)[0].toString(), text);
}
both.end();
both.resume();
await bothEnds;

const unary = promisify(client.Unary.bind(client));
for (let i = 0; i < Number(failures); i++) {
  await assert.rejects(unary(Buffer.from('fail')), { code: grpc.status.FAILED_PRECONDITION, details: 'not so' });
}
client.close();
