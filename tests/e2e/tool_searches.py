"""What people want of the tools in the catalogue, in their own words, and which tool does it.

`WISHES` is what the ranking may be judged by while it is worked on. `HELD_OUT` was written down
before that and is never looked at to change the ranking, only to see how well it does.
"""

WISHES = {
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
