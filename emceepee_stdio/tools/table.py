"""THE table: every tool, one row each, in the order in which a client sees them."""

from emceepee_stdio.tools import (
    activity,
    execute,
    log_tools,
    prompt_tools,
    question_tools,
    resource_tools,
    server_tools,
    task_tools,
    tool_search,
)
from emceepee_stdio.tools.registry import (
    Tool,
    always_loaded,
    asks_the_user,
    destructive,
    open_world,
    pages,
    read_only,
)

TOOLS = (
    Tool(
        name="add_server",
        params=server_tools.AddServer,
        run=server_tools.add_server,
        annotations=open_world,
        description=(
            "Connect to an MCP server now: start a command, or connect by url. Answers with what it"
            " offers. It stays for this session; `keep_with` is the command line that keeps it."
        ),
    ),
    Tool(
        name="remove_server",
        params=server_tools.RemoveServer,
        run=server_tools.remove_server,
        annotations=destructive,
        description="Disconnect a server and forget it. Its running tasks fail.",
    ),
    Tool(
        name="reconnect_server",
        params=server_tools.ReconnectServer,
        run=server_tools.reconnect_server,
        description=(
            "Restart a server that failed or hangs, or connect to it anew, whatever its state."
        ),
    ),
    Tool(
        name="list_servers",
        params=server_tools.ListServers,
        run=server_tools.list_servers,
        annotations=read_only,
        meta=always_loaded,
        description=(
            "Show the servers that are connected: status, how much each offers, last_error. All of"
            " one with name."
        ),
    ),
    Tool(
        name="list_tools",
        params=tool_search.ListTools,
        run=tool_search.list_tools,
        annotations=read_only,
        meta=always_loaded | pages,
        description=(
            "Find a tool for a job: what the servers can do for you. By plain words, by regex, or"
            " all. Up to 5 come with their schemas, so set limit, or detail full, before a call."
        ),
    ),
    Tool(
        name="execute_tool",
        params=execute.ExecuteTool,
        run=execute.execute_tool,
        forgiving=True,
        annotations=open_world,
        meta=always_loaded | pages,
        description=(
            "Run a tool of a server: call any MCP tool with its arguments. Answers with its result;"
            " with a task_id when it takes long or its server asks a question: answer the question,"
            " then get_task_result."
        ),
    ),
    Tool(
        name="execute_readonly_tool",
        params=execute.ExecuteReadonlyTool,
        run=execute.execute_readonly_tool,
        annotations={"readOnlyHint": True, "openWorldHint": True},
        meta=always_loaded | pages,
        description=(
            "Run a tool of a server that only reads; list_tools marks it with run_with. Else as"
            " execute_tool."
        ),
    ),
    Tool(
        name="list_resources",
        params=resource_tools.ListResources,
        run=resource_tools.list_resources,
        annotations=read_only,
        meta=pages,
        description=(
            "List resources of all servers: files, records and other data that can be read."
        ),
    ),
    Tool(
        name="list_resource_templates",
        params=resource_tools.ListResourceTemplates,
        run=resource_tools.list_resource_templates,
        annotations=read_only,
        meta=pages,
        description="List URI templates of resources; fill one in and read it.",
    ),
    Tool(
        name="read_resource",
        params=resource_tools.ReadResource,
        run=resource_tools.read_resource,
        annotations=read_only,
        meta=pages,
        description=(
            "Read a resource of a server by its uri: a file or record. With server"
            " emceepee: the next page of a long result that was stored, or a search in it;"
            " emceepee://status, trace (the last requests) or diagrams."
        ),
    ),
    Tool(
        name="subscribe_resource",
        params=resource_tools.SubscribeResource,
        run=resource_tools.subscribe_resource,
        description=(
            "Be notified when a resource changes: by a notification event, in any answer or from"
            " await_activity."
        ),
    ),
    Tool(
        name="unsubscribe_resource",
        params=resource_tools.UnsubscribeResource,
        run=resource_tools.unsubscribe_resource,
        description="Stop being notified of a resource's changes.",
    ),
    Tool(
        name="list_prompts",
        params=prompt_tools.ListPrompts,
        run=prompt_tools.list_prompts,
        annotations=read_only,
        meta=pages,
        description="List prompts of all servers, with their arguments.",
    ),
    Tool(
        name="get_prompt",
        params=prompt_tools.GetPrompt,
        run=prompt_tools.get_prompt,
        annotations=read_only,
        meta=pages,
        description=(
            "Use a prompt of a server, filled in: who says what, then the messages, for you to go"
            " by."
        ),
    ),
    Tool(
        name="complete_argument",
        params=prompt_tools.CompleteArgument,
        run=prompt_tools.complete_argument,
        annotations=read_only,
        description="Suggest values for an argument of a prompt or of a URI template.",
    ),
    Tool(
        name="get_notifications",
        params=log_tools.GetNotifications,
        run=log_tools.get_notifications,
        meta=pages,
        description="Read notifications of servers in full; each is given once.",
    ),
    Tool(
        name="get_logs",
        params=log_tools.GetLogs,
        run=log_tools.get_logs,
        meta=pages,
        description=(
            "Log output of servers: what they logged or printed (stderr), newest last; each line is"
            " given once. Says why a server fails."
        ),
    ),
    Tool(
        name="set_log_level",
        params=log_tools.SetLogLevel,
        run=log_tools.set_log_level,
        description="Set how much a server is to log.",
    ),
    Tool(
        name="await_activity",
        params=activity.AwaitActivity,
        run=activity.await_activity,
        annotations=read_only,
        meta=always_loaded,
        description=(
            "Wait for something to happen: a slow call or task ends, a question comes, a"
            " notification, a timer. Answers at once when something is new already."
        ),
    ),
    Tool(
        name="list_tasks",
        params=task_tools.ListTasks,
        run=task_tools.list_tasks,
        annotations=read_only,
        meta=pages,
        description="List background tasks: slow calls that are still running, or have ended.",
    ),
    Tool(
        name="get_task",
        params=task_tools.GetTask,
        run=task_tools.get_task,
        annotations=read_only,
        description="Status of a background task, and the questions that its server has open.",
    ),
    Tool(
        name="get_task_result",
        params=task_tools.GetTaskResult,
        run=task_tools.get_task_result,
        annotations=read_only,
        meta=always_loaded | pages,
        description=(
            "Get the result of a background task; waits for it. Returns early when"
            " its server asks a question."
        ),
    ),
    Tool(
        name="cancel_task",
        params=task_tools.CancelTask,
        run=task_tools.cancel_task,
        annotations=destructive,
        description=(
            "Stop a background task that is still running: cancel a slow call. Its server is told."
        ),
    ),
    Tool(
        name="get_elicitations",
        params=question_tools.GetElicitations,
        run=question_tools.get_elicitations,
        annotations=read_only,
        meta=pages,
        description="List the questions of servers that wait for an answer of the user.",
    ),
    Tool(
        name="respond_to_elicitation",
        params=question_tools.RespondToElicitation,
        run=question_tools.respond_to_elicitation,
        annotations=destructive,  # Codex then shows the person what the model is about to answer
        meta=always_loaded | asks_the_user,
        description=(
            "Answer a question or form of a server with what the user said. Ask the user; never"
            " invent it."
        ),
    ),
    Tool(
        name="get_sampling_requests",
        params=question_tools.GetSamplingRequests,
        run=question_tools.get_sampling_requests,
        annotations=read_only,
        meta=pages,
        description=(
            "List sampling requests: servers that ask for a text from you, the model; whole."
        ),
    ),
    Tool(
        name="respond_to_sampling",
        params=question_tools.RespondToSampling,
        run=question_tools.respond_to_sampling,
        description=(
            "Answer a sampling request: give a server the text that it asks you, the model, for; or"
            " decline."
        ),
    ),
    Tool(
        name="set_timer",
        params=task_tools.SetTimer,
        run=task_tools.set_timer,
        description=(
            "Set a timer or reminder: be told something later, once or at an interval, as a"
            " timer_expired event."
        ),
    ),
    Tool(
        name="list_timers",
        params=task_tools.ListTimers,
        run=task_tools.list_timers,
        annotations=read_only,
        description="List your timers.",
    ),
    Tool(
        name="get_timer",
        params=task_tools.GetTimer,
        run=task_tools.get_timer,
        annotations=read_only,
        description="Show one timer.",
    ),
    Tool(
        name="delete_timer",
        params=task_tools.DeleteTimer,
        run=task_tools.delete_timer,
        description="Stop a timer.",
    ),
)

TABLE = {tool.name: tool for tool in TOOLS}
