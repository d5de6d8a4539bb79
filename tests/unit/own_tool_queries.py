"""What a model types into its host's tool search, and which tool of ours it should be shown.

`HELD_OUT` was written down before any description was worked on. It is never looked at to change a
description, only to see how well the descriptions do. `QUERIES` may be tuned on.
"""

HELD_OUT = {
    "start a new MCP server from a command line": "add_server",
    "which servers are connected right now": "list_servers",
    "is there something that can create a ticket": "list_tools",
    "use another server's function with these arguments": "execute_tool",
    "open a document that a server offers": "read_resource",
    "remind me in ten minutes": "set_timer",
    "the background job is finished, show me its output": "get_task_result",
    "abort a long running operation": "cancel_task",
    "fill in the form that the server sent": "respond_to_elicitation",
    "why does the server crash, see its output": "get_logs",
}

QUERIES = {
    "run a tool of a server": "execute_tool",
    "find a tool for a job": "list_tools",
    "what can you do": "list_tools",
    "answer the question of a server": "respond_to_elicitation",
    "wait for a slow call": "await_activity",
    "connect to an MCP server by url": "add_server",
    "disconnect a server": "remove_server",
    "restart a server that hangs": "reconnect_server",
    "show the servers and their status": "list_servers",
    "call an MCP tool with arguments": "execute_tool",
    "read a file or resource by uri": "read_resource",
    "next page of a long result": "read_resource",
    "list files and records that can be read": "list_resources",
    "be notified when a resource changes": "subscribe_resource",
    "use a prompt of a server": "get_prompt",
    "get the result of a background task": "get_task_result",
    "stop a running task": "cancel_task",
    "log output of a server, stderr": "get_logs",
    "set a reminder": "set_timer",
    "a server asks for a text from the model (sampling)": "respond_to_sampling",
}
