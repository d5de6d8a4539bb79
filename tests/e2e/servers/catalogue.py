"""Thirty servers of forty tools each, in the words in which such servers really speak.

Every server has ten tools of its own, and the usual five for each of six kinds of thing.
"""

from typing import Any

CATALOGUE = """
= github: GitHub
* issue, pull request, branch, release, label, webhook
merge_pull_request: Merge a pull request into its base branch. | owner, repo, number:int, method?
request_review: Ask people to review a pull request. | owner, repo, number:int, reviewers:list
fork_repository: Fork a repository into your account or an organization. | owner, repo
search_code: Search for code across all repositories. | q, per_page:int?
get_file_contents: Get the contents of a file or directory at a ref. | owner, repo, path, ref?
push_files: Push several files in a single commit. | owner, repo, branch, files:list, message
rerun_workflow: Re-run a failed Actions workflow. | owner, repo, run_id:int
star_repository: Star a repository for the authenticated user. | owner, repo
list_commits: List the commits of a branch, newest first. | owner, repo, sha?
add_issue_comment: Comment on an issue. | owner, repo, number:int, body

= gitlab: GitLab
* merge request, pipeline, milestone, snippet, runner, deploy key
approve_merge_request: Approve a merge request. | project_id, iid:int
retry_pipeline: Retry the failed jobs of a pipeline. | project_id, pipeline_id:int
get_job_log: Fetch the log output of a CI job. | project_id, job_id:int
compare_refs: Compare two branches, tags or commits. | project_id, from, to
protect_branch: Protect a branch against pushes. | project_id, name
transfer_project: Move a project to another namespace. | project_id, namespace
search_blobs: Search file contents in a project. | project_id, search
rebase_merge_request: Rebase a merge request onto its target. | project_id, iid:int
list_group_members: List the members of a group. | group_id
cherry_pick_commit: Cherry-pick a commit onto a branch. | project_id, sha, branch

= slack: Slack
* channel, reminder, user group, canvas, bookmark, workflow
post_message: Post a message to a Slack channel. | channel, text, thread_ts?
reply_to_thread: Reply in a message thread. | channel, thread_ts, text
add_reaction: React to a message with an emoji. | channel, timestamp, name
get_channel_history: Get recent messages from a channel. | channel, limit:int?
search_messages: Search messages across the workspace. | query, count:int?
upload_file: Upload a file and share it in channels. | channels, filename, content
set_status: Set your own status text and emoji. | status_text, status_emoji?
invite_to_channel: Invite people to a channel. | channel, users:list
open_direct_message: Open a direct message with one or more people. | users:list
pin_message: Pin a message in a channel. | channel, timestamp

= gmail: Gmail
* draft, label, filter, vacation responder, signature, alias
send_email: Send an email, optionally with attachments. | to, subject, body, cc?, attachments:list?
search_emails: Search the mailbox with Gmail query syntax. | query, max_results:int?
read_email: Read one email with headers and body. | message_id
reply_to_email: Reply to an email, keeping the thread. | message_id, body
forward_email: Forward an email to someone else. | message_id, to
archive_email: Remove an email from the inbox without deleting it. | message_id
mark_as_spam: Report an email as spam. | message_id
download_attachment: Download an attachment of an email. | message_id, attachment_id, path
batch_modify_emails: Change labels of many emails at once. | message_ids:list, add:list?
unsubscribe_from_list: Unsubscribe from a mailing list. | message_id

= calendar: Google Calendar
* event, calendar, attendee, reminder, recurring series, room booking
find_free_time: Find a free slot when all attendees are available. | attendees:list, duration:int
respond_to_invitation: Accept, decline or tentatively accept an invitation. | event_id, response
reschedule_event: Move an event to another time. | event_id, start, end
get_agenda: Get the agenda of a day or a week. | date, days:int?
quick_add: Create an event from a sentence like "Lunch with Ana on Friday". | text
set_working_hours: Set the working hours of the week. | hours:object
share_calendar: Share a calendar with a person or the public. | calendar_id, email, role
check_conflicts: Check whether a time conflicts with existing events. | start, end
import_ics: Import events from an ICS file. | path
set_out_of_office: Block time as out of office. | start, end, message?

= drive: Google Drive
* file, folder, shared drive, comment, shortcut, permission
search_files: Search files by name or full text. | query, mime_type?
download_file: Download a file to disk. | file_id, path
export_document: Export a document as PDF, Word or plain text. | file_id, format
share_file: Share a file or folder with someone. | file_id, email, role
copy_file: Make a copy of a file. | file_id, name?
move_file: Move a file to another folder. | file_id, folder_id
restore_revision: Restore an earlier revision of a file. | file_id, revision_id
empty_trash: Permanently delete everything in the trash. |
get_storage_quota: Show how much storage is used and left. |
convert_to_document: Convert an uploaded file to a Google document. | file_id

= filesystem: The local file system
* watch, bookmark, archive, symbolic link, temporary file, ignore rule
read_file: Read the complete contents of a file. | path, encoding?
write_file: Create a file or overwrite it with new content. | path, content
edit_file: Make line-based edits to a text file. | path, edits:list, dry_run:bool?
list_directory: List files and directories in a path. | path
create_directory: Create a directory, with parents if needed. | path
move_file: Move or rename a file or directory. | source, destination
search_files: Recursively search for files matching a glob. | path, pattern
get_file_info: Get size, times and permissions of a file. | path
delete_path: Delete a file or a directory tree. | path, recursive:bool?
directory_tree: Get a recursive tree view of a directory as JSON. | path, depth:int?

= postgres: PostgreSQL
* table, index, view, role, schema, extension
run_query: Run a read-only SQL query and return the rows. | sql, params:list?
execute_statement: Execute an INSERT, UPDATE or DDL statement. | sql
describe_table: Show columns, types and constraints of a table. | table
explain_query: Show the execution plan of a query. | sql, analyze:bool?
list_slow_queries: List the slowest queries by total time. | limit:int?
vacuum_table: Vacuum and analyze a table. | table, full:bool?
dump_database: Dump the database to a backup file. | path
kill_connection: Terminate a backend connection. | pid:int
get_locks: Show which sessions hold or wait for locks. |
estimate_row_count: Estimate the number of rows without counting. | table

= redis: Redis
* hash, stream, sorted set, list, consumer group, user
get_key: Get the value of a key. | key
set_key: Set the value of a key with an optional expiry. | key, value, ttl:int?
increment_counter: Increment a counter atomically. | key, by:int?
publish_message: Publish a message to a channel. | channel, message
scan_keys: Iterate over keys matching a glob. | match, count:int?
expire_key: Set the time to live of a key. | key, seconds:int
flush_database: Remove all keys from the database. | db:int?
get_server_info: Get memory, client and replication statistics. | section?
acquire_lock: Acquire a distributed lock. | name, ttl:int
rename_key: Rename a key. | key, new_key

= stripe: Stripe payments
* customer, invoice, subscription, price, coupon, payment link
refund_payment: Refund a payment in full or in part. | payment_id, amount:int?
charge_customer: Charge a saved card of a customer. | customer_id, amount:int, currency
get_balance: Get the available and pending balance. |
list_payouts: List payouts to the bank account. | status?
cancel_subscription: Cancel a subscription now or at period end. | subscription_id
send_invoice: Finalize an invoice and email it to the customer. | invoice_id
list_disputes: List chargebacks and disputes. | status?
submit_dispute_evidence: Submit evidence for a dispute. | dispute_id, evidence:object
calculate_tax: Calculate sales tax for an order. | lines:list, address:object
get_revenue_report: Report revenue per day, month or product. | from, to, group_by?

= jira: Jira
* issue, sprint, epic, board, component, worklog
search_jql: Search issues with a JQL query. | jql, max_results:int?
transition_issue: Move an issue to another status, such as Done. | key, status
assign_issue: Assign an issue to a person. | key, assignee
link_issues: Backend two issues as blocking, duplicate or related. | from_key, to_key, type
add_watcher: Watch an issue on behalf of someone. | key, user
log_work: Log time spent on an issue. | key, time_spent, comment?
get_burndown: Get the burndown chart of a sprint. | sprint_id:int
rank_backlog: Change the order of issues in the backlog. | keys:list, before?
complete_sprint: Complete a sprint and move open issues. | sprint_id:int
attach_file: Attach a file to an issue. | key, path

= notion: Notion
* page, database, block, comment, template, property
append_blocks: Append paragraphs, lists or headings to a page. | page_id, blocks:list
query_database: Query a database with filters and sorts. | database_id, filter:object?, sorts:list?
search_workspace: Search pages and databases by title. | query
export_page: Export a page as Markdown. | page_id
duplicate_page: Duplicate a page with its children. | page_id
move_page: Move a page under another parent. | page_id, parent_id
list_users: List the people in the workspace. |
get_page_history: List who edited a page and when. | page_id
set_page_icon: Set the icon and cover of a page. | page_id, icon?, cover?
restore_page: Restore a page from the trash. | page_id

= weather: Weather service
* saved location, weather alert, station, subscription, unit preference, report
get_forecast: Get the weather forecast for the coming days at a place. | location, days:int?
get_current_conditions: Get temperature, wind and humidity right now. | location
get_hourly_forecast: Get the forecast hour by hour. | location, hours:int?
get_air_quality: Get the air quality index and pollutants. | location
get_uv_index: Get the ultraviolet index of the day. | location
get_tide_times: Get high and low tide for a coast. | location, date?
get_sunrise_sunset: Get the times of sunrise and sunset. | location, date?
get_rain_radar: Get a radar image of precipitation. | location, zoom:int?
get_historical_weather: Get what the weather was on a past date. | location, date
get_pollen_count: Get pollen levels for allergies. | location

= maps: Maps and routing
* saved place, route, geofence, collection, review, tracked vehicle
geocode_address: Turn an address into coordinates. | address
reverse_geocode: Turn coordinates into an address. | latitude:number, longitude:number
get_directions: Get driving, walking or transit directions between two places. | origin, destination
search_nearby: Find restaurants, shops and other places nearby. | location, type, radius:int?
get_distance_matrix: Travel times between many origins and destinations. | origins:list, ends:list
get_elevation: Get the height above sea level. | latitude:number, longitude:number
get_traffic: Get current traffic on a road. | road
get_opening_hours: Get the opening hours of a place. | place_id
render_map: Render a static map image. | center, zoom:int, markers:list?
optimize_stops: Find the shortest round trip through many stops. | stops:list

= kubernetes: Kubernetes
* deployment, config map, secret, ingress, cron job, namespace
get_pod_logs: Get the logs of a pod's container. | namespace, pod, container?, tail:int?
scale_deployment: Set the number of replicas of a deployment. | namespace, name, replicas:int
restart_deployment: Restart all pods of a deployment, rolling. | namespace, name
exec_in_pod: Execute a command inside a running pod. | namespace, pod, command:list
describe_pod: Show events, conditions and containers of a pod. | namespace, pod
rollback_deployment: Roll a deployment back to an earlier revision. | namespace, name, revision:int?
drain_node: Evict all pods from a node for maintenance. | node
port_forward: Forward a local port to a pod. | namespace, pod, port:int
apply_manifest: Apply a YAML manifest. | manifest
top_pods: Show processor and memory use of pods. | namespace?

= docker: Docker
* container, image, volume, network, compose project, registry login
run_container: Run a new container from an image. | image, command:list?, ports:object?, env:object?
stop_container: Stop a running container. | container, timeout:int?
get_container_logs: Fetch the logs of a container. | container, tail:int?
build_image: Build an image from a Dockerfile. | context, tag, dockerfile?
pull_image: Pull an image from a registry. | image
push_image: Push an image to a registry. | image
prune_unused: Remove unused containers, images and volumes to free disk space. | volumes:bool?
inspect_container: Show configuration and state of a container. | container
copy_from_container: Copy files out of a container. | container, source, destination
get_container_stats: Show live resource usage of a container. | container

= aws: Amazon Web Services
* bucket, instance, lambda function, queue, security group, hosted zone
upload_object: Upload an object to an S3 bucket. | bucket, key, path
download_object: Download an object from an S3 bucket. | bucket, key, path
presign_url: Make a temporary link to an object in a bucket. | bucket, key, expires:int?
invoke_function: Invoke a Lambda function with a payload. | name, payload:object?
start_instance: Start a stopped EC2 instance. | instance_id
stop_instance: Stop a running EC2 instance. | instance_id
send_queue_message: Send a message to an SQS queue. | queue, body
get_cost_report: Get the costs of the account by service and day. | from, to
get_metric: Get a CloudWatch metric. | namespace, name, dimensions:object?
rotate_access_key: Rotate the access key of an IAM user. | user

= sentry: Sentry error tracking
* project, alert rule, release, team, saved search, ownership rule
list_unresolved_errors: List unresolved errors, most frequent first. | project, since?
get_stack_trace: Get the stack trace of an error event. | event_id
resolve_error: Mark an error as resolved. | error_id, in_release?
ignore_error: Ignore an error until it happens more often. | error_id, count:int?
get_affected_users: Count the users affected by an error. | error_id
get_breadcrumbs: Show what led up to an error. | event_id
get_release_health: Get the crash-free rate of a release. | project, release
upload_source_maps: Upload source maps of a build. | project, release, path
get_performance_trace: Get a transaction with its spans. | trace_id
suggest_culprit: Suggest the commit that introduced an error. | error_id

= figma: Figma
* design file, frame, component, color style, comment, prototype link
export_frame: Export a frame as PNG or SVG. | file_key, node_id, format, scale:number?
get_design_tokens: Extract colors, fonts and spacing as tokens. | file_key
get_css: Get the CSS of a layer. | file_key, node_id
list_versions: List the version history of a file. | file_key
find_layers: Find layers by name or type. | file_key, name?, type?
get_image_fills: Get links to the images used in a file. | file_key
detach_instance: Detach an instance from its component. | file_key, node_id
publish_library: Publish components and styles to the team library. | file_key, description?
compare_versions: Show what changed between two versions of a design. | file_key, from, to
get_dev_status: Get which frames are ready for development. | file_key

= spotify: Spotify
* playlist, saved album, followed artist, listening queue, podcast episode, device
play_track: Start playing a song, album or playlist. | uri, device_id?
pause_playback: Pause the music. | device_id?
skip_track: Skip to the next song. | device_id?
search_catalog: Search songs, artists and albums. | query, type?
add_to_playlist: Add songs to a playlist. | playlist_id, uris:list
get_recommendations: Recommend songs from seed artists, genres or tracks. | seeds:list
get_lyrics: Get the lyrics of a song. | track_id
set_volume: Set the playback volume. | percent:int
get_currently_playing: Show which song is playing. |
transfer_playback: Move playback to another speaker. | device_id

= home: Smart home
* light, thermostat, scene, automation, room, sensor
turn_on_light: Turn on a light, with brightness and color. | light_id, brightness:int?, color?
turn_off_light: Turn off a light. | light_id
set_temperature: Set the target temperature of a thermostat. | thermostat_id, degrees:number
lock_door: Lock a door. | door_id
unlock_door: Unlock a door. | door_id, code?
activate_scene: Activate a scene. | scene_id
get_camera_snapshot: Take a picture with a security camera. | camera_id
arm_alarm: Arm the burglar alarm. | mode, code
get_energy_usage: Report electricity consumption per device. | from, to
start_vacuum: Start the robot vacuum cleaner. | room?

= shopify: Shopify
* product, order, collection, discount code, gift card, customer
fulfill_order: Mark an order as shipped, with a tracking number. | order_id, number?, carrier?
refund_order: Refund an order and restock its items. | order_id, amount:number?
adjust_inventory: Change the stock level of a product variant. | variant_id, quantity:int
get_abandoned_carts: List carts that were not checked out. | since?
get_sales_report: Report sales by day, product or channel. | from, to, group_by?
cancel_order: Cancel an order. | order_id, reason?
create_shipping_label: Buy a shipping label for an order. | order_id, service
publish_product: Publish a product to the online store. | product_id
get_best_sellers: List the products that sell best. | limit:int?
import_products: Import products from a CSV file. | path

= hubspot: HubSpot CRM
* contact, company, deal, ticket, email template, task
log_call: Log a phone call with a contact. | contact_id, notes, duration:int?
merge_contacts: Merge two duplicate contacts. | primary_id, duplicate_id
move_deal_stage: Move a deal to another stage of the pipeline. | deal_id, stage
enroll_in_sequence: Enroll a contact in an email sequence. | contact_id, sequence_id
get_sales_forecast: Forecast revenue from open deals. | period
score_lead: Compute the score of a lead. | contact_id
search_crm: Search contacts, companies and deals. | query, type?
associate_records: Associate two records. | from_id, to_id, type
get_activity_timeline: Get everything that happened with a contact. | contact_id
export_contacts: Export contacts as a CSV file. | list_id?, path

= translate: Translation
* glossary, translation memory, project, custom model, style guide, term
translate_text: Translate text into another language. | text, target, source?
detect_language: Detect the language of a text. | text
translate_document: Translate a Word, PDF or PowerPoint document. | path, target
transliterate: Write a text in another script. | text, script
list_languages: List the supported languages. |
check_translation: Review a translation for mistakes. | source, translation
batch_translate: Translate many texts at once. | texts:list, target
romanize_text: Romanize Japanese, Chinese or Korean text. | text
get_alternatives: Suggest alternative wordings of a translation. | text, target
translate_subtitles: Translate a subtitle file and keep its timing. | path, target

= images: Image tools
* album, preset, watermark, gallery, effect, palette
resize_image: Resize an image to given dimensions. | path, width:int, height:int?
crop_image: Crop an image. | path, x:int, y:int, width:int, height:int
convert_image: Convert an image between PNG, JPEG, WebP and others. | path, format
remove_background: Remove the background of a photo. | path
generate_image: Generate an image from a text prompt. | prompt, size?
extract_text: Extract text from an image by optical character recognition. | path, language?
describe_image: Describe what can be seen in an image. | path
compress_image: Make an image file smaller. | path, quality:int?
upscale_image: Enlarge an image without losing sharpness. | path, factor:int
detect_faces: Find faces in a photo. | path

= browser: Web browser
* tab, cookie, bookmark, download, profile, proxy rule
navigate: Open a web address in the browser. | url
click_element: Click an element of the page. | selector
fill_field: Type text into a form field. | selector, value
take_screenshot: Take a screenshot of the page. | full_page:bool?, path?
get_page_text: Get the visible text of the page. |
run_javascript: Evaluate JavaScript in the page. | code
wait_for_element: Wait until an element appears. | selector, timeout:int?
save_as_pdf: Print the page to a PDF file. | path
get_console_messages: Get what the page wrote to the console. |
go_back: Go back to the previous page. |

= search: Web search
* saved query, news alert, custom engine, blocked site, search history, topic
web_search: Search the web for pages. | query, count:int?, freshness?
news_search: Search recent news articles. | query, since?
image_search: Search the web for pictures. | query, size?
video_search: Search for videos. | query
fetch_page: Fetch a web page and convert it to Markdown. | url, max_length:int?
summarize_page: Summarize a web page. | url
find_similar_pages: Find pages similar to a given one. | url
search_papers: Search scientific papers. | query, year?
answer_question: Answer a question with sources from the web. | question
check_link: Check whether a web address still works. | url

= finance: Market data
* watchlist, portfolio, price alert, position, dividend record, screener
get_stock_quote: Get the current price of a stock. | symbol
get_price_history: Get past prices of a stock or fund. | symbol, from, to?, interval?
convert_currency: Convert an amount between currencies at today's rate. | amount:number, from, to
get_earnings: Get quarterly earnings of a company. | symbol
get_crypto_price: Get the price of a cryptocurrency. | coin, currency?
get_company_profile: Get what a company does, its sector and size. | symbol
get_market_movers: List the biggest winners and losers of the day. | market?
calculate_loan: Calculate the monthly payment of a loan or mortgage. | principal:number, rate:number
get_economic_calendar: List coming economic announcements. | country?
get_analyst_ratings: Get buy and sell ratings of analysts. | symbol

= zoom: Zoom meetings
* meeting, webinar, recording, poll, breakout room, registrant
start_meeting: Start a meeting now and get the link to join. | topic?
end_meeting: End a running meeting for everyone. | meeting_id
get_transcript: Get the transcript of a recorded meeting. | meeting_id
summarize_meeting: Summarize what was said and decided in a meeting. | meeting_id
get_participants: List who attended a meeting and for how long. | meeting_id
mute_participant: Mute a participant. | meeting_id, participant_id
download_recording: Download the recording of a meeting. | meeting_id, path
admit_from_waiting_room: Let people in from the waiting room. | meeting_id
share_recording: Share a recording by link. | recording_id, password?
get_usage_report: Report meeting minutes per user. | from, to

= memory: Knowledge graph memory
* entity, relation, observation, topic, tag, note
search_nodes: Search the graph for nodes by text. | query
open_nodes: Open nodes by name with their relations. | names:list
read_graph: Read the whole graph. |
remember_fact: Remember a fact about the user for later conversations. | fact, about?
forget_fact: Forget a fact that was remembered. | fact_id
recall: Recall what is known about a person or a subject. | about
link_entities: Backend two entities by a relation. | from, to, type
merge_entities: Merge two entities that are the same. | keep, drop
get_timeline: Show what was learned when. | since?
export_graph: Export the graph as JSON. | path
"""

_TYPES = {
    "int": "integer",
    "number": "number",
    "bool": "boolean",
    "list": "array",
    "object": "object",
}
_USUAL = {
    "create": ("Create a new {thing} in {product}.", "name, description?, properties:object?"),
    "list": ("List every {thing} in {product}, page by page.", "filter?, limit:int?, cursor?"),
    "get": ("Get the details of one {thing} of {product}.", "id, fields:list?"),
    "update": ("Change the fields of an existing {thing} in {product}.", "id, changes:object"),
    "delete": ("Delete a {thing} from {product} for good.", "id, confirm:bool?"),
}


def servers() -> dict[str, list[dict[str, Any]]]:
    """Every server's tools, as it lists them."""
    return dict(map(_server, CATALOGUE.strip().removeprefix("= ").split("\n\n= ")))


def _server(section: str) -> tuple[str, list[dict[str, Any]]]:
    head, things, *own = section.splitlines()
    name, _, product = head.partition(": ")
    tools = [_own(line) for line in own]
    taken = {tool["name"] for tool in tools}
    for thing in things.removeprefix("* ").split(", "):
        tools += [tool for tool in _usual(thing, product) if tool["name"] not in taken]
    return name, tools


def _own(line: str) -> dict[str, Any]:
    name, _, rest = line.partition(": ")
    description, _, arguments = rest.partition(" |")
    return _tool(name, description, arguments.strip())


def _usual(thing: str, product: str) -> list[dict[str, Any]]:
    noun = thing.replace(" ", "_")
    return [
        _tool(
            f"list_{_plural(noun)}" if verb == "list" else f"{verb}_{noun}",
            words.format(thing=thing, product=product),
            arguments,
        )
        for verb, (words, arguments) in _USUAL.items()
    ]


def _plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2] not in "aeo":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "sh", "ch")) else "s")


def _tool(name: str, description: str, arguments: str) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    for argument in filter(None, arguments.split(", ")):
        word, _, kind = argument.removesuffix("?").partition(":")
        properties[word] = {"type": _TYPES.get(kind, "string"), "description": _about(word)}
        if not argument.endswith("?"):
            required.append(word)
    schema = {"type": "object", "properties": properties, "required": required}
    return {"name": name, "description": description, "inputSchema": schema}


def _about(word: str) -> str:
    return f"The {word.replace('_', ' ')}."
