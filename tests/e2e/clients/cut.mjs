// One slow call over a connection that is cut again and again; prints the progress and the answer.

import { load, plan } from './talk.mjs';

const first = plan.sdk === 1;
const { Client } = await load(first ? 'sdk/dist/esm/client/index.js' : 'client/dist/index.mjs');
const { StreamableHTTPClientTransport } = await load(
    first ? 'sdk/dist/esm/client/streamableHttp.js' : 'client/dist/index.mjs'
);

const reconnectionOptions = {
    initialReconnectionDelay: 50,
    maxReconnectionDelay: 200,
    reconnectionDelayGrowFactor: 1,
    maxRetries: 100
};
const transport = new StreamableHTTPClientTransport(new URL(plan.url), {
    requestInit: { headers: plan.headers },
    reconnectionOptions
});
const client = new Client({ name: 'cut', version: '1' }, { capabilities: {} });
client.onerror = () => {}; // every cut is one
await client.connect(transport);

const steps = [];
const call = {
    name: 'execute_tool',
    arguments: { server: 'plain', tool: 'progress', args: { steps: 10, interval: 0.4 } }
};
const options = { onprogress: progress => steps.push(progress.progress) };
const result = await (first
    ? client.callTool(call, undefined, options)
    : client.callTool(call, options));
process.stdout.write(JSON.stringify({ steps, text: result.content[0].text }) + '\n');
process.exit(0);
