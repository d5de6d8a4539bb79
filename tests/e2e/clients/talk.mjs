// One conversation with the proxy, for every TypeScript SDK; `talk.py` is the same for Python.

import path from 'node:path';
import { pathToFileURL } from 'node:url';

/** What the test wants: as in `talk.py`, and where the npm packages are. */
export const plan = JSON.parse(process.argv[2]);

export function load(file) {
    return import(pathToFileURL(path.join(plan.modules, '@modelcontextprotocol', file)).href);
}

/** Over HTTP where the plan has a URL, else stdio. */
export function open(Stdio, Http) {
    if (plan.url) {
        return new Http(new URL(plan.url), { requestInit: { headers: plan.headers } });
    }
    const [command, ...args] = plan.command;
    return new Stdio({ command, args, env: plan.env, cwd: plan.cwd });
}

/** Talk through a client and a transport that are not connected yet, close, and print the report. */
export async function run(client, transport, describe) {
    const complaints = [];
    client.onerror = error => {
        // These clients put notifications off but not answers: progress that arrives together
        // with the answer comes too late for its own call, whatever the server.
        if (!String(error).includes('progress notification for an unknown token')) {
            complaints.push(String(error));
        }
    };
    await client.connect(transport);
    const facts = { ...(await talk(client, progressOf(transport))), ...describe() };
    try {
        await client.readResource({ uri: 'emceepee://nothing' });
    } catch (error) {
        facts.not_found = [error.code, error.message];
    }
    await client.close();
    facts.complaints = complaints;
    process.stdout.write(JSON.stringify(facts) + '\n');
}

/** What progress arrives from now on, in the order of the wire. */
function progressOf(transport) {
    const steps = [];
    const deliver = transport.onmessage;
    transport.onmessage = (message, ...rest) => {
        if (message.method === 'notifications/progress') {
            steps.push([message.params.progress, message.params.total]);
        }
        deliver(message, ...rest);
    };
    return steps;
}

async function talk(client, steps) {
    const onprogress = () => {};
    const call = (name, args, options) => client.callTool({ name, arguments: args }, ...options);
    const ask = (name, args) => call(name, args, []);
    const execute = (tool, args, more = {}) =>
        ask('execute_tool', { server: 'plain', tool, args, ...more });

    const facts = {};
    facts.tools = (await client.listTools()).tools;
    facts.resources = (await client.listResources()).resources;
    facts.added = await ask('add_server', { name: 'plain', ...plan.server });
    facts.echo = await execute('echo', { message: 'hello' });
    facts.image = await execute('image', {});
    facts.failed = await execute('fail', {});
    facts.unknown = await ask('execute_tool', { server: 'nobody', tool: 'x' });
    const stepwise = { server: 'plain', tool: 'progress', args: { steps: 3 } };
    facts.progress = await call('execute_tool', stepwise, plan.progress(onprogress));
    facts.steps = steps;
    facts.slow = await execute('slow', { seconds: 0.2 }, { timeout_ms: 0 });
    facts.slow_result = await ask('get_task_result', {
        task_id: found(facts.slow, 'proxy_task').task_id
    });
    facts.asked = await execute('ask', {});
    const question = found(facts.asked, 'pending_client_action').elicitations[0].request_id;
    facts.answered = await ask('respond_to_elicitation', {
        request_id: question,
        action: 'accept',
        content: { name: 'Ada', age: 36 }
    });
    facts.ask_result = await ask('get_task_result', {
        task_id: found(facts.asked, 'proxy_task').task_id
    });
    facts.status = (await client.readResource({ uri: 'emceepee://status' })).contents;
    facts.diagrams = (await client.readResource({ uri: 'emceepee://diagrams' })).contents;
    return facts;
}

/** What one of the JSON blocks of an answer says under this key. */
function found(result, key) {
    for (const block of result.content) {
        if (block.type === 'text' && block.text.startsWith('{')) {
            const value = JSON.parse(block.text);
            if (key in value) return value[key];
        }
    }
    throw new Error(`no ${key} in ${JSON.stringify(result)}`);
}
