// A gRPC service whose messages are bytes that mean nothing to anybody.
const method = (name, requestStream, responseStream) => ({
  path: `/peers.Echo/${name}`, requestStream, responseStream,
  requestSerialize: (b) => b, requestDeserialize: (b) => b, responseSerialize: (b) => b, responseDeserialize: (b) => b,
});

export const service = {
  Unary: method('Unary', false, false),
  Down: method('Down', false, true),
  Both: method('Both', true, true),
};
