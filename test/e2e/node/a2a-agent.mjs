// An A2A agent of the official SDK, in both generations of the protocol. It takes
// three steps for each message, each when GET /go has told it to go on, and logs
// what reaches it.
import { EventEmitter, once } from 'node:events';
import grpc from '@grpc/grpc-js';
import express from 'express';
import { TaskState } from '@a2a-js/sdk';
import { AgentEvent, DefaultRequestHandler, InMemoryTaskStore } from '@a2a-js/sdk/server';
import { UserBuilder, agentCardHandler, jsonRpcHandler, restHandler } from '@a2a-js/sdk/server/express';
import { A2AService, grpcService } from '@a2a-js/sdk/server/grpc';
import { LegacyA2AService, legacyGrpcService } from '@a2a-js/sdk/compat/v0_3/server/grpc';

const log = (msg, attrs) => process.stderr.write(JSON.stringify({ msg, ...attrs }) + '\n');
const gates = new EventEmitter();

const card = {
  name: 'agent', description: 'an agent', version: '1',
  supportedInterfaces: [], provider: undefined,
  capabilities: { streaming: true, pushNotifications: false, extensions: [] },
  securitySchemes: {}, securityRequirements: [], defaultInputModes: ['text'], defaultOutputModes: ['text'],
  skills: [], signatures: [],
};

const executor = {
  async execute({ taskId, contextId, userMessage, context }, bus) {
    const headers = context.state.get('headers');
    log('turn', {
      text: userMessage.parts[0].content.value, task: taskId, run: headers['run-id'],
      traceparent: headers.traceparent, state: headers.tracestate,
      openwop: userMessage.metadata?.openwop, metadata: userMessage.metadata,
    });
    const status = (state) => ({ state, message: undefined, timestamp: new Date().toISOString() });
    const artifact = { artifactId: 'a', name: '', description: '', parts: [part('a part')], metadata: undefined, extensions: [] };
    const steps = [
      AgentEvent.task({
        id: taskId, contextId, status: status(TaskState.TASK_STATE_SUBMITTED),
        artifacts: [], history: [userMessage], metadata: undefined,
      }),
      AgentEvent.statusUpdate({ taskId, contextId, status: status(TaskState.TASK_STATE_WORKING), metadata: undefined }),
      AgentEvent.artifactUpdate({ taskId, contextId, artifact, append: false, lastChunk: true, metadata: undefined }),
    ];
    for (const step of steps) {
      const told = once(gates, 'go');
      bus.publish(step);
      log('step');
      await told;
    }
    bus.publish(AgentEvent.statusUpdate({ taskId, contextId, status: status(TaskState.TASK_STATE_COMPLETED), metadata: undefined }));
    bus.finished();
  },
  async cancelTask() {},
};

const part = (value) => ({ content: { $case: 'text', value }, metadata: undefined, filename: '', mediaType: 'text/plain' });

const requestHandler = new DefaultRequestHandler(card, new InMemoryTaskStore(), executor);
const options = { requestHandler, userBuilder: UserBuilder.noAuthentication, legacyCompat: { enabled: true } };
const app = express();
app.get('/go', (_, response) => {
  gates.emit('go');
  response.end();
});
app.use((request, _, next) => {
  log('request', { method: request.method, uri: request.originalUrl, header: request.headers });
  next();
});
app.use('/.well-known/agent-card.json', agentCardHandler({ agentCardProvider: requestHandler, legacyCompat: { enabled: true } }));
app.use('/a2a', jsonRpcHandler(options));
app.use('/rest', restHandler(options));

const overGRPC = new grpc.Server();
overGRPC.addService(A2AService, noting(grpcService(options)));
overGRPC.addService(LegacyA2AService, noting(legacyGrpcService(options)));

// noting logs each call of a service.
function noting(service) {
  return Object.fromEntries(Object.entries(service).map(([name, handle]) => [name, (call, ...more) => {
    log('request', { method: 'POST', uri: call.getPath(), header: call.metadata.getMap() });
    return handle(call, ...more);
  }]));
}

overGRPC.bindAsync('127.0.0.1:0', grpc.ServerCredentials.createInsecure(), (err, grpcPort) => {
  if (err) throw err;
  const server = app.listen(0, '127.0.0.1', () => {
    const { port } = server.address();
    const base = `http://127.0.0.1:${port}`;
    const at = (protocolBinding, url) => ['1.0', '0.3'].map((protocolVersion) => ({ protocolBinding, url, protocolVersion, tenant: '' }));
    card.supportedInterfaces = [...at('JSONRPC', `${base}/a2a`), ...at('HTTP+JSON', `${base}/rest`), ...at('GRPC', `127.0.0.1:${grpcPort}`)];
    log('listening', { port, grpcPort });
  });
});
