"""The token that `emceepee doctor --http` sends, and to whom."""

from pathlib import Path

import pytest

from emceepee_stdio.cli.doctor.doctor import running_front


def _token_for(url: str, tmp_path: Path, **environ: str) -> str | None:
    (tmp_path / "http-tokens").write_text("# made by hand\n\nlaptop of-this-machine-0123456789\n")
    front = running_front(url, {"EMCEEPEE_STATE_DIR": str(tmp_path), **environ})
    return front.headers.get("Authorization")


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "[::1]:8080", "LOCALHOST:1"])
def test_a_front_on_this_machine_gets_the_first_token_of_the_file(
    host: str, tmp_path: Path
) -> None:
    sent = _token_for(f"http://{host}/mcp", tmp_path)
    assert sent == "Bearer of-this-machine-0123456789"


@pytest.mark.parametrize(
    "url",
    [
        "https://mcp.example.org/mcp",
        "http://127.0.0.1.example.org/mcp",
        "http://127.0.0.1@example.org/mcp",
        "http://10.0.0.1:8080/mcp",
    ],
)
def test_no_other_machine_gets_the_token_of_this_one(url: str, tmp_path: Path) -> None:
    assert _token_for(url, tmp_path) is None


def test_a_token_that_was_given_goes_wherever_it_was_given_for(tmp_path: Path) -> None:
    sent = _token_for("https://mcp.example.org/mcp", tmp_path, EMCEEPEE_HTTP_TOKEN="given")
    assert sent == "Bearer given"


def test_a_byte_order_mark_hides_no_comment(tmp_path: Path) -> None:
    text = "\ufeff# made by hand\nlaptop 0123456789-0123456789\n"
    (tmp_path / "http-tokens").write_text(text, encoding="utf-8")
    front = running_front("http://localhost/mcp", {"EMCEEPEE_STATE_DIR": str(tmp_path)})
    assert front.headers == {"Authorization": "Bearer 0123456789-0123456789"}
