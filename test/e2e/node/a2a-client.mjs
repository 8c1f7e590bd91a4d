// An A2A client of the official SDK that sends one message, and logs the events
// that come back.
//
// usage: a2a-client.mjs AGENT BINDING VERSION send|stream TEXT
import { randomUUID } from 'node:crypto';
import { Role, taskStateToJSON } from '@a2a-js/sdk';
import { ClientFactory, DefaultAgentCardResolver, JsonRpcTransportFactory, RestTransportFactory } from '@a2a-js/sdk/client';
import { GrpcTransportFactory } from '@a2a-js/sdk/client/grpc';

const [agent, binding, version, how, text] = process.argv.slice(2);
const log = (msg, attrs) => process.stderr.write(JSON.stringify({ msg, ...attrs }) + '\n');

const legacyCompat = { enabled: true };
const card = await new DefaultAgentCardResolver({ legacyCompat }).resolve(agent);
card.supportedInterfaces = card.supportedInterfaces.filter((i) => i.protocolBinding === binding && i.protocolVersion.startsWith(version));
const client = await new ClientFactory({
  transports: [JsonRpcTransportFactory, RestTransportFactory, GrpcTransportFactory].map((Factory) => new Factory({ legacyCompat })),
}).createFromAgentCard(card);

const request = {
  tenant: '', metadata: undefined, configuration: undefined,
  message: {
    messageId: randomUUID(), contextId: '', taskId: '', role: Role.ROLE_USER, metadata: undefined, extensions: [], referenceTaskIds: [],
    parts: [{ content: { $case: 'text', value: text }, metadata: undefined, filename: '', mediaType: 'text/plain' }],
  },
};

function describe({ $case: kind, value }) {
  switch (kind) {
    case 'task': return { kind, task: value.id };
    case 'statusUpdate': return { kind: taskStateToJSON(value.status.state), task: value.taskId };
    default: return { kind: kind.replace('Update', ''), task: value.taskId };
  }
}

if (how === 'stream') {
  for await (const { payload } of client.sendMessageStream(request)) log('event', describe(payload));
} else {
  const task = await client.sendMessage(request);
  log('event', { kind: taskStateToJSON(task.status.state), task: task.id });
}
