"""What people want of a tool, in their own words, and which tool does it.

`QUERIES` and `QUERIES_REAL` are what the ranking may be judged by while it is worked on. `HELD_OUT`
and `HELD_OUT_REAL` were written down before that and are never looked at to change the ranking,
only to see how well it does. The first of each pair is over the catalogue of 1,200 tools, the other
over the real servers of `scripts/measure_tool_search.py`.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

from emceepee_stdio.tools.tool_ranking import ToolIndex, ToolQuery

Item = tuple[str, Mapping[str, object]]


def query_over(query: str, items: Sequence[Item]) -> ToolQuery:
    """A query that was asked of these tools, without a session around it."""
    indexes: list[ToolIndex] = []
    for server, of_one in groupby(items, key=lambda item: item[0]):
        indexes.append(ToolIndex(server, [tool for _, tool in of_one]))
        for _ in indexes[-1].build():
            pass
    asked = ToolQuery(query, indexes)
    for _ in asked.run():
        pass
    return asked


def rank(query: str, items: Sequence[Item]) -> list[Item]:
    return query_over(query, items).best


QUERIES = {
    "will it rain in Lisbon tomorrow? weather forecast": ("weather", "get_forecast"),
    "send an email to my boss": ("gmail", "send_email"),
    "merge the pull request": ("github", "merge_pull_request"),
    "post a message in the team's Slack channel": ("slack", "post_message"),
    "give a customer their money back: refund a payment": ("stripe", "refund_payment"),
    "read a file from disk": ("filesystem", "read_file"),
    "make a new folder in the file system": ("filesystem", "create_directory"),
    "run an SQL query": ("postgres", "run_query"),
    "when are we all free for a meeting": ("calendar", "find_free_time"),
    "translate this text into German": ("translate", "translate_text"),
    "how do I drive from Berlin to Hamburg, directions": ("maps", "get_directions"),
    "see the logs of a pod": ("kubernetes", "get_pod_logs"),
    "build a docker image": ("docker", "build_image"),
    "what is the stock price of Apple": ("finance", "get_stock_quote"),
    "convert dollars to euros currency": ("finance", "convert_currency"),
    "take a screenshot of a web page": ("browser", "take_screenshot"),
    "turn off the light in the kitchen": ("home", "turn_off_light"),
    "search the web": ("search", "web_search"),
    "move a Jira issue to done": ("jira", "transition_issue"),
    "upload something to an S3 bucket": ("aws", "upload_object"),
}

HELD_OUT = {
    "play some music, a song by Queen": ("spotify", "play_track"),
    "which slow queries does the database have": ("postgres", "list_slow_queries"),
    "pictures: cut out the background of a photo": ("images", "remove_background"),
    "who attended the meeting": ("zoom", "get_participants"),
    "remember that I like tea": ("memory", "remember_fact"),
    "show me the stack trace of that error": ("sentry", "get_stack_trace"),
    "scale the deployment up to five replicas": ("kubernetes", "scale_deployment"),
    "restaurants near me": ("maps", "search_nearby"),
    "mark the order as shipped": ("shopify", "fulfill_order"),
    "add these songs to my playlist": ("spotify", "add_to_playlist"),
}

# Tools of the same servers, none of which `HELD_OUT_REAL` names: these may be tuned on.
QUERIES_REAL = {
    "print the contents of a text document": ("filesystem", "read_text_file"),
    "first ten lines of a log file": ("filesystem", "read_text_file"),
    "are there uncommitted modifications in the working tree": ("git", "git_status"),
    "state of the repository": ("git", "git_status"),
    "what will be in the next commit": ("git", "git_diff_staged"),
    "diff of the staged edits": ("git", "git_diff_staged"),
    "display one commit": ("git", "git_show"),
    "contents of a file at an earlier revision": ("git", "git_show"),
    "make a new entity in the knowledge graph": ("memory", "create_entities"),
    "adding entities": ("memory", "create_entities"),
    "link two entities by a relation": ("memory", "create_relations"),
    "remove an observation": ("memory", "delete_observations"),
    "erase what was observed about someone": ("memory", "delete_observations"),
    "fetch nodes by their names": ("memory", "open_nodes"),
    "a small picture of the logo": ("everything", "get-tiny-image"),
    "total of two numbers": ("everything", "get-sum"),
    "run something that takes long and reports progress": (
        "everything",
        "trigger-long-running-operation",
    ),
    "ask the user through a form": ("plain", "ask"),
    "updates for subscribers of a resource": ("everything", "toggle-subscriber-updates"),
    "links to resources": ("everything", "get-resource-links"),
    "weather as structured data": ("everything", "get-structured-content"),
    "send many notifications quickly": ("plain", "notify"),
    "launch a child process": ("plain", "spawn"),
    "never answering": ("plain", "hang"),
    "make a very long text": ("plain", "big"),
    "send the user to a web page": ("everything", "trigger-url-elicitation"),
    "message with annotations": ("everything", "get-annotated-message"),
}

# The tools of servers that others wrote, and of the fixture server. Written before the ranking was
# simplified, and never tuned on: it says what simpler code costs where real descriptions are short,
# long or odd.
HELD_OUT_REAL = {
    "what's the time in Tokyo": ("time", "get_current_time"),
    "what time is it now in New York": ("time", "get_current_time"),
    "converting 3 pm London time to Sydney": ("time", "convert_time"),
    "time zone conversion": ("time", "convert_time"),
    "rename a file": ("filesystem", "move_file"),
    "moving files to another folder": ("filesystem", "move_file"),
    "make a folder": ("filesystem", "create_directory"),
    "creating new directories": ("filesystem", "create_directory"),
    "show what is inside a folder": ("filesystem", "list_directory"),
    "how big are the files in this directory": ("filesystem", "list_directory_with_sizes"),
    "tree of all folders below a path": ("filesystem", "directory_tree"),
    "find files by name": ("filesystem", "search_files"),
    "searching for all python files, *.py": ("filesystem", "search_files"),
    "when was this file last changed, and who may read it": ("filesystem", "get_file_info"),
    "save text to a file": ("filesystem", "write_file"),
    "overwriting a file": ("filesystem", "write_file"),
    "replace a line in a file": ("filesystem", "edit_file"),
    "open several files at once": ("filesystem", "read_multiple_files"),
    "load a picture from disk": ("filesystem", "read_media_file"),
    "which directories may I use": ("filesystem", "list_allowed_directories"),
    "recent commits": ("git", "git_log"),
    "commit history of the repo": ("git", "git_log"),
    "committing my changes": ("git", "git_commit"),
    "switch to another branch": ("git", "git_checkout"),
    "start a new branch": ("git", "git_create_branch"),
    "which branches exist": ("git", "git_branch"),
    "compare two branches": ("git", "git_diff"),
    "what have I changed but not staged yet": ("git", "git_diff_unstaged"),
    "stage a file for the next commit": ("git", "git_add"),
    "undo staging": ("git", "git_reset"),
    "remember something about a person": ("memory", "add_observations"),
    "deleting an entity from memory": ("memory", "delete_entities"),
    "forget a relation between two people": ("memory", "delete_relations"),
    "look something up in the knowledge graph": ("memory", "search_nodes"),
    "dump the whole graph": ("memory", "read_graph"),
    "zip a file": ("everything", "gzip-file-as-resource"),
    "environment variables of the server": ("everything", "get-env"),
    "turn on fake log messages": ("everything", "toggle-simulated-logging"),
    "research a topic in depth": ("everything", "simulate-research-query"),
    "crash the process with an exit code": ("plain", "crash"),
    "get killed by a signal": ("plain", "crash_signal"),
    "writing lines to standard error": ("plain", "stderr"),
}
