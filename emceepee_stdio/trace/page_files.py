"""The files of the page, as they are in the package, and the page as one file for an export.

Nothing on the page runs but these files: by their address where they are served, by their hash in
an export. What they show is never markup, which the browser is told to enforce (Trusted Types).
"""

import re
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from emceepee_stdio.trace.request_records import RequestRecord
    from emceepee_stdio.trace.server_marks import Mark

__all__ = ["CONTENT_TYPES", "PAGE", "SERVED_POLICY", "exported_page", "page_file"]

PAGE = "trace.html"
CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_NEVER = "default-src 'none'; base-uri 'none'; form-action 'none'"
_TEXT_ONLY = "require-trusted-types-for 'script'; trusted-types 'none'"
SERVED_POLICY = (
    f"{_NEVER}; frame-ancestors 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    f"connect-src 'self'; {_TEXT_ONLY}"
)

_NAME = re.compile(r"[a-z]+\.(html|css|js|svg)", re.ASCII)
_STYLE = re.compile(r'<link rel="stylesheet" href="([a-z.]+)">')
_SCRIPT = re.compile(r'<script src="([a-z.]+)"></script>')
_ICON = re.compile(r'<link rel="icon"[^>]*>\n')
_HEAD = '<meta charset="utf-8">\n'

_encode = msgspec.json.Encoder().encode


def page_file(name: str) -> bytes | None:
    """A file of the page; None for whatever else is asked for."""
    if not _NAME.fullmatch(name):
        return None
    try:
        return (files("emceepee_stdio.trace") / "page" / name).read_bytes()
    except FileNotFoundError:
        return None


def exported_page(
    records: "Sequence[RequestRecord]",
    marks: "Sequence[Mark]",
    *,
    exported_at: str,
    dropped: int = 0,
) -> str:
    """One file with the page and its data, which needs nothing else and reaches nothing."""
    hashes: dict[str, list[str]] = {"style": [], "script": []}

    def inlined(tag: str, name: str) -> str:
        text = _text(name)
        hashes[tag].append(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'")
        return f"<{tag}>{text}</{tag}>"

    page = _ICON.sub("", _text(PAGE))
    page = _STYLE.sub(lambda found: inlined("style", found[1]), page)
    page = _SCRIPT.sub(lambda found: inlined("script", found[1]), page)
    policy = (
        f"{_NEVER}; script-src {' '.join(hashes['script'])}; "
        f"style-src {' '.join(hashes['style'])}; {_TEXT_ONLY}"
    )
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    lost = [{"kind": "dropped", "count": dropped}] if dropped else []
    data = {"records": [*records, *lost], "marks": marks, "exported_at": exported_at}
    block = f'<script type="application/json" id="exported">{_json_in_html(data)}</script>\n'
    before, after = page.replace(_HEAD, _HEAD + meta, 1).split("<script>", 1)
    return f"{before}{block}<script>{after}"


def _json_in_html(data: object) -> str:
    """JSON that ends no element and opens no comment, whatever its strings hold."""
    return _encode(data).decode().replace("<", "\\u003c")


def _text(name: str) -> str:
    return (page_file(name) or b"").decode()
