import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emceepee_stdio.errors import CannotConnect
from emceepee_stdio.wire import environment
from emceepee_stdio.wire.environment import (
    DEPTH,
    OWNER,
    child_directory,
    child_environment,
    resolve_command,
    windows_line,
)

ALLOWED = [
    *("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "TMPDIR"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("NODE_EXTRA_CA_CERTS", "LC_ALL", "LC_CTYPE", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
]
REFUSED = [
    *("AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "ANTHROPIC_API_KEY", "SSH_AUTH_SOCK", "PWD"),
    *("LD_PRELOAD", "PYTHONPATH", "NODE_OPTIONS", "VIRTUAL_ENV", "EMCEEPEE_CONFIG", "LANGUAGE"),
    *("PATH_X", "MY_HOME", "home", "LCX", "XDG", "SSL_CERT", "SSL_KEY_FILE", "BASH_FUNC_x%%", ""),
]


def make(environ: dict[str, str], **more: object) -> dict[str, str]:
    options: dict[str, object] = {"env": {}, "owner": "o.1", **more}
    return child_environment(environ, **options)  # type: ignore[arg-type]


@pytest.fixture
def posix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rules, wherever this runs."""
    monkeypatch.setattr(environment, "_IS_WINDOWS", False)


@pytest.mark.usefixtures("posix")
def test_what_is_allowed_passes_and_nothing_else():
    child = make({name: f"value of {name}" for name in ALLOWED + REFUSED})
    assert child == {
        **{name: f"value of {name}" for name in ALLOWED},
        DEPTH: "1",
        OWNER: "o.1",
    }


@given(name=st.text())
def test_a_name_that_nobody_listed_never_passes(name: str):
    listed = name in ALLOWED or name.startswith(("LC_", "XDG_", "SSL_CERT_"))
    assert (name in make({name: "secret"})) == (listed or name in (DEPTH, OWNER))


@pytest.mark.usefixtures("posix")
def test_names_in_pass_env_pass_too_when_they_are_set():
    child = make({"TOKEN": "t", "OTHER": "o"}, pass_env=["TOKEN", "UNSET"])
    assert child == {"TOKEN": "t", DEPTH: "1", OWNER: "o.1"}


def test_what_env_sets_wins_over_what_is_passed():
    child = make({"PATH": "/ours", "TOKEN": "ours"}, env={"PATH": "/its"}, pass_env=["TOKEN"])
    assert (child["PATH"], child["TOKEN"]) == ("/its", "ours")
    assert make({"TOKEN": "ours"}, env={"TOKEN": "its"}, pass_env=["TOKEN"])["TOKEN"] == "its"


@pytest.mark.parametrize(
    ("ours", "its"),
    [
        *(("0", "1"), ("1", "2"), ("41", "42"), ("", "1"), ("-1", "1"), ("1.5", "1"), ("x", "1")),
        *(("²", "1"), ("9" * 5000, "1")),
    ],
)
def test_the_depth_is_counted_up_and_garbage_counts_as_none(ours: str, its: str):
    assert make({DEPTH: ours})[DEPTH] == its


@pytest.mark.usefixtures("posix")
def test_nobody_can_forge_the_marks():
    child = make(
        {DEPTH: "3", OWNER: "somebody"}, env={DEPTH: "0", OWNER: "me"}, pass_env=[DEPTH, OWNER]
    )
    assert child == {DEPTH: "4", OWNER: "o.1"}


def test_the_environment_that_was_given_is_not_changed():
    environ, env = {"PATH": "/bin", DEPTH: "1"}, {"A": "b"}
    make(environ, env=env)
    assert (environ, env) == ({"PATH": "/bin", DEPTH: "1"}, {"A": "b"})


# The directory


def test_a_directory_that_is_given_is_taken(monkeypatch: pytest.MonkeyPatch):
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, "/home/ada")
    ours, home = Path("/srv/ours"), Path("/home/ada")
    assert child_directory("/srv/x", ours=ours, home=home) == Path("/srv/x")
    assert child_directory("~/x", ours=ours, home=home) == Path("/home/ada/x")
    assert child_directory("/", ours=ours, home=home) == Path("/")


def test_otherwise_it_is_ours():
    ours, home = Path("/srv/ours"), Path("/home/ada")
    assert child_directory(None, ours=ours, home=home) == ours
    assert child_directory(None, ours=Path("/home/ada/Library/x"), home=home) != home


@pytest.mark.parametrize(
    "ours", ["/", "/usr/bin", "/bin", "/System/Library", "/Applications/X.app"]
)
def test_where_no_server_wants_to_work_it_is_home(ours: str):
    assert child_directory(None, ours=Path(ours), home=Path("/home/ada")) == Path("/home/ada")


# The command


of_posix = pytest.mark.posix_only("programs without an ending, run by their mode")


def make_program(path: Path, *, executable: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755 if executable else 0o644)
    return path


def refused(command: str, *, path: str = "", directory: Path) -> CannotConnect:
    with pytest.raises(CannotConnect) as caught:
        resolve_command(command, path=path, directory=directory)
    return caught.value


@of_posix
def test_a_command_is_found_on_the_path_that_the_child_gets(tmp_path: Path):
    program = make_program(tmp_path / "b" / "serve")
    make_program(tmp_path / "c" / "serve")
    path = os.pathsep.join(str(tmp_path / name) for name in ("a", "b", "c"))
    assert resolve_command("serve", path=path, directory=tmp_path) == str(program)


@of_posix
def test_one_that_cannot_be_run_is_passed_over_for_one_that_can(tmp_path: Path):
    make_program(tmp_path / "a" / "serve", executable=False)
    program = make_program(tmp_path / "b" / "serve")
    path = os.pathsep.join(str(tmp_path / name) for name in ("a", "b"))
    assert resolve_command("serve", path=path, directory=tmp_path) == str(program)


@of_posix
@pytest.mark.parametrize("entry", ["", ".", "bin"])
def test_an_empty_or_relative_entry_of_the_path_starts_in_the_directory_of_the_child(
    tmp_path: Path, entry: str
):
    here = make_program(tmp_path / "here" / entry / "serve")
    make_program(tmp_path / "later" / "serve")
    path = os.pathsep.join([entry, str(tmp_path / "later")])
    assert resolve_command("serve", path=path, directory=tmp_path / "here") == str(here)


@of_posix
def test_a_command_that_is_not_found_names_the_path(tmp_path: Path):
    error = refused("nope", path=f"{tmp_path}:/nowhere", directory=tmp_path)
    assert error.fact == f"The command 'nope' was not found on the PATH {tmp_path}:/nowhere."
    assert "absolute path" in error.next_step
    assert error.code == "server_failed"


@of_posix
def test_a_path_that_is_not_found_names_where_it_was_looked_for(tmp_path: Path):
    assert f"not found at {tmp_path / 'x/nope'}" in refused("x/nope", directory=tmp_path).fact
    error = refused("/no/such", directory=tmp_path)
    assert "not found at /no/such" in error.fact
    assert error.next_step == "Install it, or correct its path."


@of_posix
def test_a_command_that_is_not_executable_names_chmod(tmp_path: Path):
    program = make_program(tmp_path / "serve", executable=False)
    for error in (
        refused("serve", path=str(tmp_path), directory=tmp_path),
        refused("./serve", directory=tmp_path),
        refused(str(program), directory=Path("/")),
    ):
        assert error.fact == f"{program} is not executable."
        assert f"chmod +x {program}" in error.next_step


@of_posix
def test_a_directory_is_no_command(tmp_path: Path):
    (tmp_path / "serve").mkdir()
    error = refused("./serve", directory=tmp_path)
    assert error.fact == f"{tmp_path / 'serve'} is a directory, not a command."
    assert "not found" in refused("serve", path=str(tmp_path), directory=tmp_path).fact


@of_posix
def test_a_path_is_relative_to_the_directory_of_the_child(tmp_path: Path):
    program = make_program(tmp_path / "bin" / "serve")
    for command in ("bin/serve", "./bin/serve", str(program)):
        assert Path(resolve_command(command, path="", directory=tmp_path)) == program


@of_posix
def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = make_program(tmp_path / "bin" / "serve")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_command("~/bin/serve", path="", directory=Path("/srv")) == str(program)


@of_posix
def test_the_home_of_nobody_is_an_error_and_no_crash(tmp_path: Path):
    assert "~no-such-user" in refused("~no-such-user/bin/serve", directory=tmp_path).fact
    with pytest.raises(CannotConnect, match="~no-such-user"):
        child_directory("~no-such-user/x", ours=tmp_path, home=tmp_path)


@of_posix
@pytest.mark.parametrize("command", ["x" * 5000, "./" + "x" * 5000, "a\0b", "./a\0b", ""])
def test_a_name_that_no_file_can_have_is_not_found(command: str, tmp_path: Path):
    assert "was not found" in refused(command, path=str(tmp_path), directory=tmp_path).fact


@of_posix
def test_a_directory_that_we_may_not_look_into_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program = make_program(tmp_path / "ours" / "serve")

    def forbidden(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    for name in ("is_file", "is_dir", "exists"):
        monkeypatch.setattr(environment.Path, name, forbidden)
    path = os.pathsep.join(["/closed/bin", str(tmp_path / "ours")])
    assert resolve_command("serve", path=path, directory=tmp_path) == str(program)
    assert "was not found" in refused("nope", path=path, directory=tmp_path).fact
    assert "was not found" in refused("/closed/bin/nope", directory=tmp_path).fact


@of_posix
def test_empty_entries_of_the_path_are_no_place(tmp_path: Path):
    assert "was not found" in refused("nope", path="::", directory=tmp_path).fact
    assert "was not found" in refused("nope", path="", directory=tmp_path).fact


@of_posix
@pytest.mark.parametrize("command", ["tool -y foo", "tool -y @scope/foo", "tool\t-y"])
def test_a_command_with_its_arguments_is_told_to_be_taken_apart(tmp_path: Path, command: str):
    make_program(tmp_path / "tool")
    error = refused(command, path=str(tmp_path), directory=tmp_path)
    assert error.next_step == (
        "The words after tool belong in `args`, not in quotes together with it."
    )


@of_posix
def test_a_program_with_a_space_in_its_name_is_found(tmp_path: Path):
    make_program(tmp_path / "tool")
    made = make_program(tmp_path / "tool two")
    assert resolve_command("tool two", path=str(tmp_path), directory=tmp_path) == str(made)


# On Windows


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rules, wherever this runs; links and letters of files are those of this system."""
    monkeypatch.setattr(environment, "_IS_WINDOWS", True)
    monkeypatch.setenv("PATHEXT", ".COM;.EXE;.BAT;.CMD;.VBS;.PY")


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    return path


@pytest.mark.usefixtures("windows")
def test_a_program_is_found_by_its_endings(tmp_path: Path):
    path = os.pathsep.join([str(tmp_path / "a"), str(tmp_path / "b")])
    put(tmp_path / "a" / "npx")  # the script for a shell of POSIX, which npm puts beside it
    made = put(tmp_path / "a" / "npx.cmd")
    put(tmp_path / "a" / "npx.vbs")
    assert resolve_command("npx", path=path, directory=tmp_path) == str(made)
    assert resolve_command("npx.cmd", path=path, directory=tmp_path) == str(made)
    first = put(tmp_path / "a" / "npx.exe")
    put(tmp_path / "b" / "npx.com")
    assert resolve_command("npx", path=path, directory=tmp_path) == str(first)
    assert resolve_command("a/npx", path="", directory=tmp_path) == str(first)
    assert "was not found" in refused("npx.vbs", path=str(tmp_path / "c"), directory=tmp_path).fact


@pytest.mark.usefixtures("windows")
@pytest.mark.parametrize("empty", ["first", "last"])
def test_a_project_cannot_put_a_program_before_that_of_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty: str
):
    project, place = tmp_path / "project", tmp_path / "node"
    put(project / "npx.cmd")
    put(project / "nope.cmd")
    monkeypatch.chdir(project)
    made = put(place / "npx.cmd")
    path = os.pathsep.join(["", str(place)] if empty == "first" else [str(place), ""])
    assert resolve_command("npx", path=path, directory=project) == str(made)
    assert "was not found" in refused("nope", path=path, directory=project).fact


@pytest.mark.usefixtures("windows")
def test_what_a_cmd_file_starts_is_not_looked_for_in_the_project_either():
    assert make({})["NODEFAULTCURRENTDIRECTORYINEXEPATH"] == "1"


@pytest.mark.usefixtures("windows")
def test_names_of_variables_are_the_same_in_either_case():
    child = make(
        {"MYTOKEN": "t", "PATH": "C:\\ours", "SystemRoot": "C:\\Windows"},
        env={"Path": "C:\\its"},
        pass_env=["MyToken"],
    )
    assert (child["MYTOKEN"], child["PATH"], child["SYSTEMROOT"]) == ("t", "C:\\its", "C:\\Windows")
    assert "Path" not in child


@pytest.mark.parametrize("ending", ["", ".exe", ".com", ".py"])
def test_a_program_gets_its_arguments_as_they_are(ending: str):
    argv = [f"C:\\a b\\serve{ending}", "c&d", 'x" & "y', "%PATH%", ""]
    assert windows_line(argv) == subprocess.list2cmdline(argv)


@pytest.mark.parametrize("name", ["npx.cmd", "NPX.CMD", "serve.bat", "npx.cmd.", "npx.cmd "])
@pytest.mark.parametrize(
    ("word", "what"),
    [
        ('a"&echo PWNED>f&"b', "a quote"),
        ("100%PATH:~0,3%", "a percent sign"),
        ("!PATH!", "an exclamation mark"),
        ("a\nb", "a line end"),
        ("a\rb", "a line end"),
    ],
)
def test_an_argument_that_cmd_exe_would_change_is_refused(name: str, word: str, what: str):
    with pytest.raises(CannotConnect, match=f"cmd.exe.* {what} has a meaning"):
        windows_line([f"C:\\node\\{name}", "-y", word])


def test_other_arguments_reach_a_cmd_file_in_quotes():
    argv = ["C:\\a b\\npx.cmd", "-y", "@scope/name@1.2", "http://x/?a=b&c=d", "^", "c d\\", ""]
    assert windows_line(argv) == (
        '"C:\\a b\\npx.cmd" -y @scope/name@1.2 "http://x/?a=b&c=d" "^" "c d\\\\" ""'
    )
