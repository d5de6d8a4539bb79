// Drive the proxy with the client of @modelcontextprotocol/sdk 1.x.

import { load, plan, run } from './talk.mjs';

const { Client } = await load('sdk/dist/esm/client/index.js');
const { StdioClientTransport } = await load('sdk/dist/esm/client/stdio.js');

const [command, ...args] = plan.command;
const transport = new StdioClientTransport({ command, args, env: plan.env, cwd: plan.cwd });
const client = new Client({ name: 'ts1', version: '1' }, { capabilities: {} });

let version;
transport.setProtocolVersion = agreed => (version = agreed);
plan.progress = onprogress => [undefined, { onprogress }];

await run(client, transport, () => ({
    version,
    server_info: client.getServerVersion(),
    instructions: client.getInstructions()
}));
