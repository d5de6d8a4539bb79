"""The servers behind a running HTTP front, as a session of it has them.

Doctor tries the front itself like any server. This asks the same session for its servers, waits
until none of them is still connecting, and makes a check of each that cannot be used.
"""

import re
import shlex
from collections.abc import Mapping

import msgspec

from emceepee_stdio.backends.backend import Backend
from emceepee_stdio.cli.one_shot import OneShotSession
from emceepee_stdio.cli.report import Check, Status, with_command
from emceepee_stdio.errors import CallFailed, ProxyError, error_types
from emceepee_stdio.json_values import elements, mapping

__all__ = ["check_front_servers"]

_STDERR = " The last lines of its stderr:\n"
# What follows the fact in an error is for the model of that session.
_NEXT_STEP = re.compile(
    rf" \[(?:{'|'.join(kind.code for kind in error_types())})\] .*\Z", re.DOTALL
)
_SIGN_IN = re.compile(r"`(emceepee login [^`]+)`")  # an address where no file has the server
_WELL = ("connected", "idle")
_THERE = "on the machine of the front"


async def check_front_servers(here: OneShotSession, front: Backend, within: float) -> list[Check]:
    """A check for each server that failed, is broken or needs a sign-in."""
    try:
        servers = await _settled(here, front, within)
        unwell = [one for one in servers if one.get("phase") not in _WELL and not _is_off(one)]
        return [_check(here, await _whole(front, one, within), within) for one in unwell]
    except ProxyError as error:
        return [
            Check(
                id=f"backend.{front.name}/servers",
                category="backend",
                status="warning",
                summary=f"Its servers are not known: {here.shown(error.fact)}",
                remediation="Check that the address is that of `emceepee serve --http`.",
            )
        ]


async def _settled(
    here: OneShotSession, front: Backend, within: float
) -> list[Mapping[str, object]]:
    """All servers, once they are connected or not, or the time is over."""
    clock = here.runtime.clock
    until = clock.now() + within
    while True:
        servers = await _listed(front, {}, within)
        left_ms = round((until - clock.now()) * 1000)
        if left_ms <= 0 or all(one.get("phase") != "connecting" for one in servers):
            return servers
        await front.call_tool("await_activity", {"timeout_ms": left_ms}, within=within + 1.0)


async def _whole(
    front: Backend, server: Mapping[str, object], within: float
) -> Mapping[str, object]:
    """With all of its error, which a line of the list has only in part."""
    found = await _listed(front, {"name": server.get("name")}, within)
    return found[0] if found else server


async def _listed(
    front: Backend, arguments: Mapping[str, object], within: float
) -> list[Mapping[str, object]]:
    answer = msgspec.json.decode(
        await front.call_tool("list_servers", arguments, within=within), type=dict[str, object]
    )
    for block in elements(answer.get("content")):
        try:
            said = msgspec.json.decode(str(mapping(block).get("text")))
        except msgspec.DecodeError:
            continue
        if "servers" in mapping(said):
            return [mapping(one) for one in elements(mapping(said).get("servers"))]
    raise CallFailed("it does not list servers.")


def _is_off(server: Mapping[str, object]) -> bool:
    return server.get("switched_off") is True


def _check(here: OneShotSession, server: Mapping[str, object], within: float) -> Check:
    name, phase = str(server.get("name")), server.get("phase")
    said = str(server.get("last_error") or "")
    fact, _, tail = _NEXT_STEP.sub("", said).partition(_STDERR)
    lines = [here.shown(line) for line in tail.split("\n") if line]
    status: Status = "failed"
    log = f"emceepee tail-logs --server {shlex.quote(name)}"
    remedy = with_command(f"See its log, {_THERE}", log)
    state: dict[str, object] = {}
    match phase:
        case "needs_sign_in":
            status, fact = "auth", fact or "A person has to sign in."
            sign_in = _SIGN_IN.search(said)
            line = sign_in[1] if sign_in else f"emceepee login {shlex.quote(name)}"
            remedy = with_command(f"Sign in, {_THERE}", line)
        case "disabled":
            state = {"state": "broken"}
            fact = f"Its entry is broken: {fact}"
            remedy = with_command(
                f"Fix its entry, {_THERE}; this tells when it is right", "emceepee config check"
            )
        case "connecting":
            fact = fact or f"It has not connected within {within:g} s."
        case _:
            fact = fact or f"It is {phase}."
    return Check(
        id=f"backend.front/{name}",
        category="backend",
        status=status,
        summary=here.shown(fact),
        details={"phase": phase, **state, **({"stderr": lines} if lines else {})},
        remediation=remedy,
    )
