// Drive the proxy with the client of @modelcontextprotocol/sdk 1.x.

import { load, open, plan, run } from './talk.mjs';

const { Client } = await load('sdk/dist/esm/client/index.js');
const { StdioClientTransport } = await load('sdk/dist/esm/client/stdio.js');
const { StreamableHTTPClientTransport } = await load('sdk/dist/esm/client/streamableHttp.js');

const transport = open(StdioClientTransport, StreamableHTTPClientTransport);
const client = new Client({ name: 'ts1', version: '1' }, { capabilities: {} });

let version;
const keep = transport.setProtocolVersion?.bind(transport);
transport.setProtocolVersion = agreed => {
    version = agreed;
    keep?.(agreed);
};
plan.progress = onprogress => [undefined, { onprogress }];

await run(client, transport, () => ({
    version,
    server_info: client.getServerVersion(),
    instructions: client.getInstructions()
}));
