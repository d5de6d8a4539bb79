// A page that is reloaded during a call: `plan.kept` is what it kept. Prints what it would keep now.

import { load, plan } from './talk.mjs';

const first = plan.sdk === 1;
const { Client } = await load(first ? 'sdk/dist/esm/client/index.js' : 'client/dist/index.mjs');
const { StreamableHTTPClientTransport } = await load(
    first ? 'sdk/dist/esm/client/streamableHttp.js' : 'client/dist/index.mjs'
);

const kept = plan.kept ?? {};
const transport = new StreamableHTTPClientTransport(new URL(plan.url), {
    requestInit: { headers: plan.headers },
    sessionId: kept.session
});
const client = new Client({ name: 'reload', version: '1' }, { capabilities: {} });
await client.connect(transport);

const steps = [];
let last;
let left = false;
const args = { steps: 5, interval: 0.2 };
const call = { name: 'execute_tool', arguments: { server: 'plain', tool: 'progress', args } };
const options = {
    resumptionToken: kept.event,
    onresumptiontoken: id => (last = id),
    onprogress: progress => {
        steps.push(progress.progress);
        if (!plan.kept && last !== undefined) {
            leave({}); // as a page does that is reloaded: nothing is said to the front
        }
    }
};
const result = await (first
    ? client.callTool(call, undefined, options)
    : client.callTool(call, options));
leave({ text: result.content[0].text });

function leave(more) {
    if (left) return; // what comes while it is being said is for nobody any more
    left = true;
    const keep = { session: transport.sessionId, event: last };
    const report = JSON.stringify({ keep, steps, ...more });
    process.stdout.write(report + '\n', () => process.exit(0));
}
