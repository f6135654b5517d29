"""How commands end otherwise than well, and files, which are whole or not there at all.

Exit codes are in ``minisched/cli/exit.py``; that of a bad option is in the transcripts.
"""

import errno
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any
from unittest.mock import Mock

import pytest
from pytest import MonkeyPatch

import minisched
import minisched.loops.run
from minisched.cli.exit import INTERRUPTED
from minisched.loops.run import Run, run_loop
from minisched.trace.files import whole_file, write_whole

ROOT = Path(__file__).resolve().parents[2]
CSV = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n"


def test_a_difference_is_exit_code_1(cli: Any, monkeypatch: MonkeyPatch) -> None:
    def spoiled(loop: str, *args: Any, **options: Any) -> Run:
        run = run_loop(loop, *args, **options)
        for request in run.requests[1:]:
            request.output_ids[3] += loop == "overlap"
        return run

    monkeypatch.setattr(minisched.loops.run, "run_loop", spoiled)
    code, out, _ = cli("compare --requests 2 --max-new-tokens 6")
    said = " ".join(out.split())
    assert code == 1 and "top-2 logit margin" in said
    assert "overlap: request r1 differs first at output 3: expected" in said


def test_ctrl_c_ends_with_one_sentence(tmp_path: Path) -> None:
    """A real interrupt, on threads, once the loop turns; the run would take far longer."""
    line = "run --log --host-work 200 --device thread --requests 2 --max-new-tokens 3000"
    command = [sys.executable, "-m", "minisched", *line.split()]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=DEVNULL, stderr=PIPE, text=True, encoding="utf-8"
    ) as started:
        assert started.stderr and "max_running_requests=" in next(started.stderr)
        started.send_signal(signal.SIGINT)
        said = started.stderr.read()
    assert started.returncode == INTERRUPTED
    assert "interrupted" in said and "Traceback" not in said


@pytest.mark.parametrize(("device", "package"), [("thread", "torch"), ("mlx", "mlx")])
def test_a_missing_extra_is_one_sentence(tmp_path: Path, device: str, package: str) -> None:
    program = f"""import sys; sys.modules[{package!r}] = sys.modules['mlx.core'] = None
sys.argv = ['minisched', 'compare', '--device', {device!r}]
from minisched.cli.app import main; main()"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"needs the package '{package}" in done.stderr
    assert f"pip install 'minisched[{package}]'" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows limits no file's size")
@pytest.mark.parametrize("line", [
    "compare --requests 2 --max-new-tokens 9 --out .",
    "view decode --out found.svg",
    f"stepper {ROOT}/traces/overlap.json --out found.html",
    "museum run stale_placeholder --out found.svg",
])  # fmt: skip
def test_a_full_disk_leaves_no_half_of_a_file(cli: Any, tmp_path: Path, line: str) -> None:
    """A limit on the size of files stands for the disk, which it takes root to make a small one."""
    names = ("found.svg", "found.html", "found.json", "compare.html")
    (tmp_path / "requests.csv").write_text(CSV, "utf-8")
    for name in names:
        (tmp_path / name).write_text("what was there", "utf-8")
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, hard))
    try:
        code, _, err = cli(line)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code == 2 and err.count("\n") == 1 and "can't be written: File too large." in err
    left = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()}
    assert left == {"requests.csv": CSV, **dict.fromkeys(names, "what was there")}


def test_only_one_function_writes_files() -> None:
    """Whoever opens a file himself can leave half of it. (Scratch folders may, and a sweep, which
    appends a line for each cell, and reads no line that was cut off.)"""
    scratch = {
        "models/fetch.py", "bench/tiny_llama.py",
        "bench/cuda.py", "checks/foreign.py", "trace/files.py", "sweep/sweep.py",
    }  # fmt: skip
    package, writes = ROOT / "minisched", re.compile(r"\.write_(text|bytes)\(|\.open\([\"'][wax]")
    found = {path.relative_to(package).as_posix() for path in package.rglob("*.py")
             if writes.search(path.read_text(encoding="utf-8"))}  # fmt: skip
    assert found <= scratch


def test_a_file_appears_whole_with_its_rights(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    path, link = tmp_path / "a.json", tmp_path / "link.json"
    umask = os.umask(0o022)
    with whole_file(path) as file:
        file.write("all")
        file.flush()
        assert not path.exists()
    os.umask(umask)
    assert path.read_text("utf-8") == "all" and stat.S_IMODE(path.stat().st_mode) == 0o644
    path.chmod(0o640)
    link.symlink_to(path)
    with pytest.raises(KeyboardInterrupt), whole_file(link) as file:
        file.write("new")
        raise KeyboardInterrupt
    monkeypatch.setattr(os, "replace", Mock(side_effect=OSError(errno.ENOSPC, "No space")))
    with pytest.raises(ValueError, match=r"a\.json can't be written: No space"):
        write_whole(path, "new")
    monkeypatch.undo()
    assert path.read_text("utf-8") == "all" and {*tmp_path.iterdir()} == {path, link}
    write_whole(link, "new")
    assert link.is_symlink() and path.read_text("utf-8") == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_what_can_not_be_replaced_is_written_to(tmp_path: Path) -> None:
    write_whole(Path("/dev/null"), "gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(ValueError, match=r"^/dev/full can't be written: No space"):
        write_whole(Path("/dev/full"), "gone")
    with pytest.raises(ValueError, match=r"can't be written: Is a directory"):
        write_whole(tmp_path, "gone")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("compare --requests 100000000", "--requests is 100000000, but it must be at most 10000; "
         "minisched replay takes more of them"),
        ("view decode --out v.gif",
         "--out is 'v.gif', but with --form svg it must end in .svg."),
        ("compare --requests 99999999999999999999", "is 99999999999999999999, but it must be at"),
        ("run --requests 10000 --max-new-tokens 51", "are 510000 tokens, but"),
        ("check --loop vllm_async:pool:depth=1000000", "is 1000000, but it must be at most 64;"),
        (f"check --loop vllm_async:depth={'9' * 5000}", "but it must be at most 64;"),
        ("check --loop multi_step:num_steps=65", "'num_steps' of loop 'multi_step' is 65, but it"),
        ("check --workloads 1000001", "workloads is 1000001, but it must be at most 1000000; go"),
        ("check --workloads 9 --jobs 513", "jobs is 513, but it must be at most 512."),
        ("fidelity sglang --cases 1000000000", "--cases is 1000000000, but it must be between 1 a"),
        ("bench overlap --repeat 1001", "--repeat is 1001, but it must be between 1 and 1000."),
        ("bench overlap --requests 0", "--requests is 0, but it must be between 1 and 10000."),
        ("run --requests abc", "minisched: --requests is 'abc', but it must be a whole number."),
        ("run --requests=1.5", "minisched: --requests is '1.5', but it must be a whole number."),
        ("run --temperature warm", "minisched: --temperature is 'warm', but it must be a number."),
    ],
)  # fmt: skip
def test_a_number_that_is_none_or_too_large_is_refused_at_once(
    line: str, said: str, cli: Any
) -> None:
    code, out, err = cli(line)
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1


def test_the_function_refuses_what_the_option_refuses() -> None:
    with pytest.raises(ValueError, match="prompts is 100000000, but it must be at most 10000"):
        minisched.requests(10**8)
    with pytest.raises(ValueError, match="depth"):
        minisched.run(loop="vllm_async:depth=65")
