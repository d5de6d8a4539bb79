// Drive the proxy with @modelcontextprotocol/client 2.x; `mode` is legacy, auto or a modern version.

import { load, open, plan, run } from './talk.mjs';

const { Client } = await load('client/dist/index.mjs');
const { StdioClientTransport } = await load('client/dist/stdio.mjs');
const { StreamableHTTPClientTransport } = await load('client/dist/index.mjs');

const transport = open(StdioClientTransport, StreamableHTTPClientTransport);
const mode = ['legacy', 'auto'].includes(plan.mode) ? plan.mode : { pin: plan.mode };
const client = new Client(
    { name: 'ts2', version: '1' },
    { capabilities: {}, versionNegotiation: { mode } }
);
plan.progress = onprogress => [{ onprogress }];

await run(client, transport, () => ({
    version: client.getNegotiatedProtocolVersion(),
    server_info: client.getServerVersion(),
    instructions: client.getInstructions()
}));
