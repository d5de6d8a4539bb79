"""Tokens, codes, verifiers and the secret of a client stand in their file and nowhere else."""

from contextlib import suppress
from pathlib import Path

import anyio

from tests.e2e.client import Answer, Setting, proxy, until
from tests.e2e.clients.raw import entry
from tests.e2e.sign_in_harness import Place, protected, visit
from tests.peers import plain

SECRET = "hidden-brook-of-the-client"


def processes(setting: Setting) -> str:
    """What anybody sees of the proxy, its servers and its helpers: `ps`, and their environment."""
    seen = b""
    for pid in setting.left_over():
        for name in ("cmdline", "environ"):
            with suppress(OSError):  # it has ended meanwhile, as helpers do
                seen += (Path("/proc") / str(pid) / name).read_bytes()
    return seen.decode(errors="replace")


def home_with(tmp_path: Path, place: Place) -> Setting:
    """A server that wants a sign-in, with a configured client; and one that is a process."""
    oauth = {"client_id": "ours", "client_secret": SECRET, "issuer": place.issuer.url}
    beside = entry(plain(), tmp_path, "beside")
    return Setting(home=tmp_path / "home", servers={"s": place.entry(oauth=oauth), "b": beside})


async def test_no_secret_of_a_sign_in_stands_where_somebody_else_may_read_it(
    tmp_path: Path,
) -> None:
    texts: list[str] = []
    async with protected() as place, anyio.create_task_group() as tasks:
        issuer, setting = place.issuer, home_with(tmp_path, place)
        issuer.registers, issuer.wants_secret = False, SECRET
        async with proxy(setting) as client:

            async def said(answer: Answer) -> Answer:
                listed = await client.call("list_servers", name="s")
                texts.extend([str(answer.result), str(listed.result), processes(setting)])
                return answer

            issuer.gives.clear()
            first = await said(await client.execute("echo", args={"message": "one"}))
            tasks.start_soon(visit, first.text.partition("open ")[2].split(" ")[0])
            await until(lambda: issuer.grants)
            texts.append(processes(setting))  # a helper that exchanges the code
            texts.extend(path.read_text() for path in setting.home.rglob("*.visit.json"))
            issuer.gives.set()
            done = await client.call("get_task_result", task_id=first.task, timeout_ms=20_000)
            assert (await said(done)).text == "one"

            issuer.expire()
            issuer.gives.clear()
            call = await client.begin_execute("echo", args={"message": "two"})
            await until(lambda: issuer.refreshes)
            texts.append(processes(setting))  # a helper that refreshes
            quoted = " ".join([SECRET, *issuer.secrets])  # servers quote what they were sent
            refusal = {"error": "invalid_request", "error_description": quoted}
            issuer.answers_with = [(400, refusal)]
            issuer.gives.set()
            assert (await said(await call.answer())).is_error

            issuer.end()  # and now nothing but another visit helps
            await said(await client.execute("echo", args={"message": "three"}))
            await client.drain()
        texts.extend([str(client.events), client.stderr.decode()])
        written = [path for path in (setting.home / "logs").rglob("*") if path.is_file()]
        assert written
        texts.extend(path.read_text() for path in written)
        for secret in (SECRET, *issuer.secrets):
            assert not any(secret in text for text in texts), secret
        assert any("helper_main\0refresh" in text for text in texts)
        assert any("helper_main\0sign-in" in text for text in texts)
