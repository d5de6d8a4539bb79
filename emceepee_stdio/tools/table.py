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
    timer_tools,
    tool_search,
)
from emceepee_stdio.tools.registry import Tool, open_world, read_only

__all__ = ["TABLE", "TOOLS"]

TOOLS = (
    Tool(
        name="add_server",
        params=server_tools.AddServer,
        run=server_tools.add_server,
        annotations=open_world,
        description=(
            "Connect an MCP server now: a command to start, or a url. Answers with what it offers."
            " It stays for this session; `keep_with` is the command line that keeps it."
        ),
    ),
    Tool(
        name="remove_server",
        params=server_tools.RemoveServer,
        run=server_tools.remove_server,
        annotations={"destructiveHint": True, "openWorldHint": False},
        description="Disconnect a server and forget it. Its running tasks fail.",
    ),
    Tool(
        name="reconnect_server",
        params=server_tools.ReconnectServer,
        run=server_tools.reconnect_server,
        description="Connect a server anew, whatever its state: after a failure, or to restart it.",
    ),
    Tool(
        name="list_servers",
        params=server_tools.ListServers,
        run=server_tools.list_servers,
        annotations=read_only,
        description=(
            "All servers: their state, how much they offer, and in last_error what went wrong."
        ),
    ),
    Tool(
        name="list_tools",
        params=tool_search.ListTools,
        run=tool_search.list_tools,
        annotations=read_only,
        description=(
            "Find tools on all servers: by plain words, by regex, or all. Up to 5 come with their"
            " schemas, so set limit, or detail full, before you call a tool that you do not know."
        ),
    ),
    Tool(
        name="execute_tool",
        params=execute.ExecuteTool,
        run=execute.execute_tool,
        forgiving=True,
        annotations=open_world,
        description=(
            "Run a tool of a server. Answers with its result; with a task_id when it takes long or"
            " its server asks a question: answer the question, then get_task_result."
        ),
    ),
    Tool(
        name="list_resources",
        params=resource_tools.ListResources,
        run=resource_tools.list_resources,
        annotations=read_only,
        description="Resources of all servers: files, records and other things to read.",
    ),
    Tool(
        name="list_resource_templates",
        params=resource_tools.ListResourceTemplates,
        run=resource_tools.list_resource_templates,
        annotations=read_only,
        description="URI templates of resources; fill one in and read it.",
    ),
    Tool(
        name="read_resource",
        params=resource_tools.ReadResource,
        run=resource_tools.read_resource,
        annotations=read_only,
        description=(
            "Read a resource of a server. With server emceepee: a long result that was stored, page"
            " by page or searched; emceepee://status or emceepee://diagrams."
        ),
    ),
    Tool(
        name="subscribe_resource",
        params=resource_tools.SubscribeResource,
        run=resource_tools.subscribe_resource,
        description=(
            "Be told when a resource changes: by a notification event, in any answer or from"
            " await_activity."
        ),
    ),
    Tool(
        name="unsubscribe_resource",
        params=resource_tools.UnsubscribeResource,
        run=resource_tools.unsubscribe_resource,
        description="Stop being told of a resource's changes.",
    ),
    Tool(
        name="list_prompts",
        params=prompt_tools.ListPrompts,
        run=prompt_tools.list_prompts,
        annotations=read_only,
        description="Prompts of all servers, with their arguments.",
    ),
    Tool(
        name="get_prompt",
        params=prompt_tools.GetPrompt,
        run=prompt_tools.get_prompt,
        annotations=read_only,
        description="A prompt, filled in: who says what, then the messages, for you to go by.",
    ),
    Tool(
        name="complete_argument",
        params=prompt_tools.CompleteArgument,
        run=prompt_tools.complete_argument,
        annotations=read_only,
        description="Suggestions for an argument of a prompt or of a URI template.",
    ),
    Tool(
        name="get_notifications",
        params=log_tools.GetNotifications,
        run=log_tools.get_notifications,
        description="Notifications of servers in full; each is given once.",
    ),
    Tool(
        name="get_logs",
        params=log_tools.GetLogs,
        run=log_tools.get_logs,
        description=(
            "What servers logged or printed, newest last; each line is given once. Says why a"
            " server fails."
        ),
    ),
    Tool(
        name="set_log_level",
        params=log_tools.SetLogLevel,
        run=log_tools.set_log_level,
        description="How much a server is to log.",
    ),
    Tool(
        name="await_activity",
        params=activity.AwaitActivity,
        run=activity.await_activity,
        annotations=read_only,
        description=(
            "Wait until something happens on any server: a task ends, a question comes, a"
            " notification, a timer. Answers at once when something is new already."
        ),
    ),
    Tool(
        name="list_tasks",
        params=task_tools.ListTasks,
        run=task_tools.list_tasks,
        annotations=read_only,
        description="Calls that became tasks.",
    ),
    Tool(
        name="get_task",
        params=task_tools.GetTask,
        run=task_tools.get_task,
        annotations=read_only,
        description="State of a task, and the questions that its server has open.",
    ),
    Tool(
        name="get_task_result",
        params=task_tools.GetTaskResult,
        run=task_tools.get_task_result,
        annotations=read_only,
        description=(
            "The result of a task; waits for it. Returns early when its server asks a question."
        ),
    ),
    Tool(
        name="cancel_task",
        params=task_tools.CancelTask,
        run=task_tools.cancel_task,
        annotations={"destructiveHint": True, "openWorldHint": False},
        description="Stop a task that is still working; its server is told.",
    ),
    Tool(
        name="get_elicitations",
        params=question_tools.GetElicitations,
        run=question_tools.get_elicitations,
        annotations=read_only,
        description="Questions of servers to the user that wait for an answer.",
    ),
    Tool(
        name="respond_to_elicitation",
        params=question_tools.RespondToElicitation,
        run=question_tools.respond_to_elicitation,
        description="Answer a question with what the user said. Ask the user; never invent it.",
    ),
    Tool(
        name="get_sampling_requests",
        params=question_tools.GetSamplingRequests,
        run=question_tools.get_sampling_requests,
        annotations=read_only,
        description="Requests of servers for a text from you, whole.",
    ),
    Tool(
        name="respond_to_sampling",
        params=question_tools.RespondToSampling,
        run=question_tools.respond_to_sampling,
        description="Give a server the text that it asked you for, or decline.",
    ),
    Tool(
        name="set_timer",
        params=timer_tools.SetTimer,
        run=timer_tools.set_timer,
        description="Be told something later, once or at an interval, as a timer_expired event.",
    ),
    Tool(
        name="list_timers",
        params=timer_tools.ListTimers,
        run=timer_tools.list_timers,
        annotations=read_only,
        description="Your timers.",
    ),
    Tool(
        name="get_timer",
        params=timer_tools.GetTimer,
        run=timer_tools.get_timer,
        annotations=read_only,
        description="One timer.",
    ),
    Tool(
        name="delete_timer",
        params=timer_tools.DeleteTimer,
        run=timer_tools.delete_timer,
        description="Stop a timer.",
    ),
)

TABLE = {tool.name: tool for tool in TOOLS}
