// Has a TypeScript SDK of either major version ask its person; `asking.py` is the same for Python.

import { load, plan } from './talk.mjs';

const first = plan.sdk === 1;
const { Client } = await load(first ? 'sdk/dist/esm/client/index.js' : 'client/dist/index.mjs');
const { StdioClientTransport } = await load(
    first ? 'sdk/dist/esm/client/stdio.js' : 'client/dist/stdio.mjs'
);

const [command, ...args] = plan.command;
const transport = new StdioClientTransport({ command, args, env: plan.env, cwd: plan.cwd });
const mode = ['legacy', 'auto'].includes(plan.mode) ? plan.mode : { pin: plan.mode };
const client = new Client(
    { name: 'asking', version: '1' },
    { capabilities: { elicitation: { form: {} } }, versionNegotiation: { mode } }
);
const complaints = [];
client.onerror = error => complaints.push(String(error));

const shown = [];
const answers = plan.cases.map(one => one.answer);
async function elicit(request) {
    shown.push(request.params);
    return answers.shift();
}
if (first) {
    const { ElicitRequestSchema } = await load('sdk/dist/esm/types.js');
    client.setRequestHandler(ElicitRequestSchema, elicit);
} else {
    client.setRequestHandler('elicitation/create', elicit);
}

await client.connect(transport);
const results = [];
for (const one of plan.cases) {
    const question = { question: JSON.stringify(one.question) };
    const call = { server: 'configured', tool: 'ask_this', args: question };
    results.push(await client.callTool({ name: 'execute_tool', arguments: call }));
}
await client.close();
process.stdout.write(JSON.stringify({ shown, results, complaints }) + '\n');
