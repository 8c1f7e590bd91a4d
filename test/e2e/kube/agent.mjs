// An A2A agent of the official SDK that asks the agent at $NEXT what it is asked
// itself. It answers with the ids of the runs that it and those behind it were
// given, its own first: it knows of wopproxy no more than that header.
import express from 'express';
import { randomUUID } from 'node:crypto';
import { Role, TaskState } from '@a2a-js/sdk';
import { ClientFactory, DefaultAgentCardResolver, JsonRpcTransportFactory } from '@a2a-js/sdk/client';
import { AgentEvent, DefaultRequestHandler, InMemoryTaskStore } from '@a2a-js/sdk/server';
import { UserBuilder, agentCardHandler, jsonRpcHandler } from '@a2a-js/sdk/server/express';

const { PORT, NEXT } = process.env;
const part = (value) => ({ content: { $case: 'text', value }, metadata: undefined, filename: '', mediaType: 'text/plain' });
const card = {
  name: 'agent', description: 'asks another', version: '1', provider: undefined,
  supportedInterfaces: [{ protocolBinding: 'JSONRPC', url: `http://localhost:${PORT}/a2a`, protocolVersion: '1.0', tenant: '' }],
  capabilities: { streaming: false, pushNotifications: false, extensions: [] },
  securitySchemes: {}, securityRequirements: [], defaultInputModes: ['text'], defaultOutputModes: ['text'],
  skills: [], signatures: [],
};

// ask sends a question to the next agent and returns what it answers.
async function ask(question) {
  const legacyCompat = { enabled: true }; // it speaks 0.3
  const factory = new ClientFactory({
    transports: [new JsonRpcTransportFactory({ legacyCompat })], cardResolver: new DefaultAgentCardResolver({ legacyCompat }),
  });
  const client = await factory.createFromUrl(NEXT);
  const { artifacts } = await client.sendMessage({
    tenant: '', metadata: undefined, configuration: undefined,
    message: {
      messageId: randomUUID(), contextId: '', taskId: '', role: Role.ROLE_USER, parts: [part(question)],
      metadata: undefined, extensions: [], referenceTaskIds: [],
    },
  });
  return artifacts[0].parts[0].content.value;
}

const executor = {
  async execute({ taskId, contextId, userMessage, context }, bus) {
    const status = (state) => ({ state, message: undefined, timestamp: new Date().toISOString() });
    bus.publish(AgentEvent.task({
      id: taskId, contextId, status: status(TaskState.TASK_STATE_SUBMITTED), artifacts: [], history: [userMessage], metadata: undefined,
    }));
    const behind = JSON.parse(await ask(userMessage.parts[0].content.value));
    const answer = JSON.stringify([context.state.get('headers')['run-id'] ?? '', ...behind]);
    const artifact = { artifactId: 'runs', name: '', description: '', parts: [part(answer)], metadata: undefined, extensions: [] };
    bus.publish(AgentEvent.artifactUpdate({ taskId, contextId, artifact, append: false, lastChunk: true, metadata: undefined }));
    bus.publish(AgentEvent.statusUpdate({ taskId, contextId, status: status(TaskState.TASK_STATE_COMPLETED), metadata: undefined }));
    bus.finished();
  },
  async cancelTask() {},
};

const requestHandler = new DefaultRequestHandler(card, new InMemoryTaskStore(), executor);
const app = express();
app.use('/.well-known/agent-card.json', agentCardHandler({ agentCardProvider: requestHandler }));
app.use('/a2a', jsonRpcHandler({ requestHandler, userBuilder: UserBuilder.noAuthentication }));
const server = app.listen(PORT);
process.on('SIGTERM', () => {
  server.close(() => process.exit());
  server.closeIdleConnections();
});
