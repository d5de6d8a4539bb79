"""What `emceepee doctor` found: its checks, and the report that programs read."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

__all__ = ["Check", "Report", "Status", "report_schema"]

Status = Literal["ok", "warning", "off", "auth", "failed"]
Category = Literal["environment", "config", "registration", "backend"]


_SUBJECTS = {"config.file": "configuration", "registration.none": "registration"}


class Check(Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    id: Annotated[str, Meta(description="Stable: the category, a dot, and what was looked at.")]
    category: Category
    status: Annotated[
        Status,
        Meta(description="auth: the server wants other credentials; off: switched off by you."),
    ]
    summary: Annotated[str, Meta(description="One sentence for people.")]
    details: Annotated[dict[str, Any], Meta(description="What was measured or seen, by name.")] = (
        field(default_factory=dict[str, Any])
    )
    remediation: Annotated[
        str | None, Meta(description="What to do about it; null when there is nothing to do.")
    ] = None
    duration_ms: Annotated[
        int | None, Meta(description="How long the check took, where that says something.")
    ] = None

    @property
    def subject(self) -> str:
        """What a person calls it."""
        return _SUBJECTS.get(self.id) or self.id.partition(".")[2]


class Report(Struct, frozen=True, kw_only=True):
    """The report of `emceepee doctor --json`."""

    schema_version: Annotated[int, Meta(description="Changes when a reader has to.")] = 1
    overall_status: Annotated[
        Literal["ok", "warning", "failed"], Meta(description="The worst of the checks.")
    ] = "ok"
    checks: tuple[Check, ...] = ()

    @classmethod
    def of(cls, checks: tuple[Check, ...]) -> "Report":
        found = {check.status for check in checks}
        worst = (
            "failed" if found & {"failed", "auth"} else "warning" if "warning" in found else "ok"
        )
        return cls(overall_status=worst, checks=checks)


def report_schema() -> dict[str, object]:
    """JSON Schema of the report."""
    (root,), definitions = msgspec.json.schema_components([Report], ref_template="#/$defs/{name}")
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "emceepee doctor report",
        **root,
        "$defs": definitions,
    }
    return msgspec.json.decode(msgspec.json.encode(schema), type=dict[str, object])
