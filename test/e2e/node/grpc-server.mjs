// A server of the service in echo.mjs, on grpc-js. "fail" fails before there is
// anything to answer; everything else comes back, with what was sent in x-key and
// data-bin in the trailers.
import grpc from '@grpc/grpc-js';
import { service } from './echo.mjs';

const failure = { code: grpc.status.FAILED_PRECONDITION, details: 'not so' };

function trailers({ metadata }) {
  const back = new grpc.Metadata();
  for (const key of ['x-key', 'data-bin']) metadata.get(key).forEach((value) => back.add(key, value));
  return back;
}

const server = new grpc.Server();
server.addService(service, {
  Unary(call, callback) {
    if (call.request.toString() === 'fail') callback(failure);
    else callback(null, call.request, trailers(call));
  },
  Down(call) {
    for (let i = 0; i < 3; i++) call.write(call.request);
    call.end(trailers(call));
  },
  Both(call) {
    call.on('data', (message) => call.write(message));
    call.on('end', () => call.end(trailers(call)));
  },
});
server.bindAsync('127.0.0.1:0', grpc.ServerCredentials.createInsecure(), (err, port) => {
  if (err) throw err;
  process.stderr.write(JSON.stringify({ msg: 'listening', port }) + '\n');
});
