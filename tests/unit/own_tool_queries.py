"""What a model types into its host's tool search, and which tool of ours it should be shown.

`HELD_OUT` was written down before any description was worked on. It is never looked at to change a
description, only to see how well the descriptions do.
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
