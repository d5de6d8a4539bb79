"""The findings of doctor: checks with their results, for people and as JSON."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta, Struct, field

Status = Literal["ok", "warning", "off", "auth", "failed"]
Category = Literal["environment", "config", "registration", "backend"]
COMMAND_INDENT = "  "  # of a line of a remedy that is a command, to be copied whole


_SUBJECTS = {"config.file": "configuration", "registration.none": "registration"}


class Check(Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    id: Annotated[str, Meta(description="Stable: the category, a dot, and what was looked at.")]
    category: Category
    status: Annotated[
        Status,
        Meta(description="auth: the server wants other credentials; off: disabled by you."),
    ]
    summary: Annotated[str, Meta(description="One sentence for people.")]
    details: Annotated[dict[str, Any], Meta(description="What was measured or seen, by name.")] = (
        field(default_factory=dict[str, Any])
    )
    remediation: Annotated[
        str | None,
        Meta(
            description="What to do about it; null when there is nothing to do. "
            "A command stands on a line of its own, behind two spaces."
        ),
    ] = None
    duration_ms: Annotated[
        int | None, Meta(description="How long the check took, where that says something.")
    ] = None

    @classmethod
    def of(
        cls,
        check_id: str,
        status: Status,
        summary: str,
        remedy: str | None = None,
        *,
        details: Mapping[str, object] | None = None,
        duration_ms: int | None = None,
    ) -> "Check":
        return cls(
            id=check_id,
            category=cast("Category", check_id.partition(".")[0]),
            status=status,
            summary=summary,
            details=dict(details or {}),
            remediation=remedy,
            duration_ms=duration_ms,
        )

    @property
    def state(self) -> str:
        """How a person reads the status: a server that was not tried is disabled or broken."""
        return str(self.details.get("state", self.status))

    @property
    def subject(self) -> str:
        """What a person calls it."""
        return _SUBJECTS.get(self.id) or self.id.partition(".")[2]

    @property
    def found(self) -> str:
        """The summary for a row that has begun with the subject: without its name once more."""
        rest = self.summary.removeprefix(f"{self.subject} ")
        return self.summary if rest == self.summary else f"{rest[:1].upper()}{rest[1:]}"


class Report(Struct, frozen=True, kw_only=True):
    """The report of `emceepee doctor --json`."""

    schema_version: Annotated[int, Meta(description="Changes when a reader has to.")] = 1
    overall_status: Annotated[
        Literal["ok", "warning", "failed"], Meta(description="The worst of the checks.")
    ] = "ok"
    environment: Annotated[
        str,
        Meta(description="With whose variables servers were tried: a client's, desktop or shell."),
    ] = "shell"
    interrupted: Annotated[
        bool, Meta(description="Whether it was stopped; then checks of servers are missing.")
    ] = False
    checks: tuple[Check, ...] = ()

    @classmethod
    def of(
        cls, checks: tuple[Check, ...], *, environment: str = "shell", interrupted: bool = False
    ) -> "Report":
        found = {check.status for check in checks}
        worst = (
            "failed" if found & {"failed", "auth"} else "warning" if "warning" in found else "ok"
        )
        return cls(
            overall_status=worst, environment=environment, interrupted=interrupted, checks=checks
        )


def with_command(sentence: str, command: str) -> str:
    """A remedy with its command on a line of its own, where a person can copy it whole."""
    return "\n".join([f"{sentence}:", *(f"{COMMAND_INDENT}{line}" for line in command.split("\n"))])


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
