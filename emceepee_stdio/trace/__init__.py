"""The record of every request: how long it took, where, and how it ended.

`open_request` gathers it while the request is under way, `request_log` writes it, `trace_reader`
reads it back. Nothing is imported here: the serving process loads only what it writes with.
"""
