"""The trace: a record of every request, and the page that shows it.

`request` gathers it while the request is under way, `request_log` writes it, `trace_reader`
reads it back. Nothing is imported here: the serving process loads only what it writes with.
"""
