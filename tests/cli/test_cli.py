"""`sodap run`, and what all commands share: mistakes, help, signals."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from tests.cli.conftest import Call, read_until, start
from tests.conftest import TINY, make_stream
from tests.reporting.records import a_record

import sodap as package
from sodap.cli.progress import RunProgress
from sodap.cli.result import MAX_CLASSES, show_result
from sodap.methods import options_of
from sodap.runs import RunConfig, load_config, run
from sodap.runs.reading import read_record
from sodap.storage import write_json
from sodap.streams import Stage

RUN = [*TINY, "stream=digits-mini", "epochs=2", "patience=2", "batch_size=8"]


def test_version_and_help(tmp_path: Path, sodap: Call) -> None:
    assert sodap("--version").out == f"sodap {package.__version__}\n"
    shown = sodap("--help")
    assert shown.code == 0
    for command in ("run", "demo", "bench", "table", "report", "recipes", "methods", "data"):
        assert f" {command} " in shown.out
    as_module = [sys.executable, "-m", "sodap", "--version"]
    assert subprocess.check_output(as_module, cwd=tmp_path, text=True) == sodap("--version").out


@pytest.mark.parametrize("command", ["run", "bench", "ablate"])
def test_help_lists_every_key_with_its_default_and_meaning(sodap: Call, command: str) -> None:
    shown = sodap(command, "--help")
    assert shown.code == 0
    words = " ".join(shown.out.split())
    keys = [option for option in options_of(RunConfig) if option.name != "options"]
    assert len(keys) > 20
    for option in keys:
        name = option.name.removeprefix("training.")
        assert re.search(rf"(?m)^{re.escape(name)} +{re.escape(option.default)} ", shown.out), name
        assert option.meaning.split()[0] in words


def test_help_lists_only_keys_that_can_be_set() -> None:
    """The names are those that a user may type."""
    for option in options_of(RunConfig):
        name = option.name.removeprefix("training.")
        if name != "options" and option.default != "none":
            assert load_config("default", ["backbone=micro", f"{name}={option.default}"])


def test_a_terminal_shows_something_before_torch_is_imported(tmp_path: Path) -> None:
    """A process on a terminal that ends at the moment at which it asks for torch."""
    program = """
import sys
class Stop:
    def find_spec(self, name, *_):
        if name == "torch":
            sys.stdout.flush()
            raise SystemExit(7)
sys.meta_path.insert(0, Stop())
from sodap.cli import main
sys.argv = ["sodap", "run", "default"]
main()
"""
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    assert done.returncode == 7, done.stderr
    assert b"loading" in os.read(ours, 10_000)
    os.close(ours)


def test_recipes_are_listed(sodap: Call) -> None:
    shown = sodap("recipes").out
    assert "default" in shown
    assert "paper" in shown


MISTAKES = [
    (["run", "nothing"], "no recipe is called 'nothing'"),
    (["run", "l2p", "stream=digits-mini"], "`sodap run default method=l2p`"),
    (["run", "default", "method=magic"], "no method is called 'magic'"),
    (["run", "default", "stream=nowhere"], "no stream is called 'nowhere'"),
    (["run", "default", "stream"], "'stream' is not of the form key=value"),
    (["run", "default", "backbone=deit_tiny", "weights=x.pth"], "no weights file at x.pth"),
    (["run", "default", "stream=open-dr"], "choose a backbone for 'open-dr'"),
    (["ablate", "default", "stream=open-dr"], "choose a backbone for 'open-dr'"),
    (["bench", "table7"], "no grid is called 'table7'"),
    (["bench", "table1", "--methods", "magic"], "no method is called 'magic'"),
    (["bench", "table1", "--streams", "nowhere"], "no stream is called 'nowhere'"),
    (["bench", "table1", "seed=3"], "give --seeds instead"),
    (["ablate", "default", "stream=nowhere"], "no stream is called 'nowhere'"),
    (["methods", "magic"], "no method is called 'magic'"),
    (["table", "nowhere"], "nowhere does not exist"),
    (["report", "nowhere"], "nowhere does not exist"),
    (["watch", "nowhere"], "there is no run at nowhere"),
    (["watch", "file"], "file is a file, not the folder of a run"),
]


MORE_MISTAKES = [
    (["bench", "table1", "--streams", "open-dr"], "choose a backbone for 'open-dr'"),
    (["run", "default", "colour=blue"], "'colour' is no key"),
    (["run", "default", "backbone=vit_huge_"], "no backbone is called 'vit_huge_'"),
    (["run", "ridge", "stream=digits-mini", "--out", "file/run"], "cannot write"),
    (["ablate", "default", "--only", "everything"], "no variant is called 'everything'"),
    (["table", ".", "--metric", "NONSENSE"], "unknown metric 'NONSENSE'; choose from: "),
]
"""Mistakes that can be found only with a method, a model or the metrics."""


@pytest.mark.parametrize(("arguments", "words"), MISTAKES + MORE_MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    tmp_path: Path, sodap: Call, arguments: list[str], words: str
) -> None:
    (tmp_path / "file").touch()
    found = sodap(*arguments)
    assert (found.code, found.out) == (2, "")
    assert words in found.err
    assert found.err.startswith("sodap: ")
    assert found.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_mistakes_are_found_without_importing_torch(tmp_path: Path) -> None:
    """In a process of its own, because torch is imported in this one."""
    (tmp_path / "file").touch()
    program = """
import contextlib, io, json, sys
from sodap.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["sodap", *arguments]
    with contextlib.redirect_stderr(io.StringIO()) as errors, contextlib.suppress(SystemExit):
        main()
    slow = [name for name in ("torch", "timm", "lightning", "matplotlib") if name in sys.modules]
    assert errors.getvalue().startswith("sodap: "), (arguments, errors.getvalue())
    assert not slow, (arguments, slow)
"""
    mistakes = json.dumps([arguments for arguments, _ in MISTAKES])
    subprocess.run([sys.executable, "-c", program, mistakes], cwd=tmp_path, check=True)


def test_an_unreadable_image_is_one_sentence_or_left_out(
    tmp_path: Path, sodap: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SODAP_CACHE", str(tmp_path / "cache"))
    for label, level in (("cat", 60), ("dog", 180)):
        folder = tmp_path / "mine" / "one" / label
        folder.mkdir(parents=True)
        for index in range(30):
            Image.new("RGB", (32, 32), (level, index, 0)).save(folder / f"{index}.png")
    (tmp_path / "mine" / "one" / "cat" / "7.png").write_bytes(b"not an image")
    command = ["run", "ridge", "stream=mine", "backbone=micro", "device=cpu"]
    found = sodap(*command)
    assert found.code == 2
    assert "7.png cannot be read as an image" in found.err
    assert found.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()
    rest = sodap(*command, "--skip-unreadable")
    assert rest.code == 0, rest.err
    assert "1 unreadable file left out" in rest.out
    assert "7.png" in (tmp_path / "runs" / "mine-ridge-s0" / "skipped.csv").read_text()


def test_a_run_prints_a_line_an_epoch_and_its_result(tmp_path: Path, sodap: Call) -> None:
    command = ["run", "sequential", *RUN, "--out", "mine"]
    first = sodap(*command)
    assert first.code == 0, first.err
    record = read_record(tmp_path / "mine" / "record.json")
    assert record.command == ["sodap", *command]
    epochs = [line for line in first.out.splitlines() if ", epoch " in line]
    assert len(epochs) == 2 * len(record.stages)
    for line, stage in zip(epochs[1::2], record.stages, strict=True):
        assert line.startswith(f"stage {stage.stage} {stage.domain}, epoch 2: ce ")
    assert all(re.search(r", (at most .* left|about .* left|about to end)$", e) for e in epochs)
    verdict, metrics = record.verdict, record.metrics.accuracy
    assert verdict is not None
    assert metrics is not None
    again = sodap(*command, "--resume")
    assert again.code == 0
    assert "mine is finished already; nothing is left to do" in again.out
    for shown in (first.out, again.out):
        assert re.search(rf"final average +{verdict.final:.3f} ", shown)
        assert re.search(rf"constant answer +{verdict.constant:.3f} .*'{verdict.answer}'", shown)
        assert shown.index("final average") < shown.index("AvgACC")
        assert re.search(rf"AvgACC +{metrics.average_accuracy:.3f} +accuracy on", shown)
        for name, right, count in verdict.recalls:
            assert re.search(rf"│ {name} .*│ +{right} of {count} │", shown)
    tiny = [line for line in first.out.splitlines() if "tiny" in line.lower()]
    assert first.out.index(tiny[0]) < first.out.index(epochs[0]), "before it learns"


def a_result(confusions: list[list[list[int]]], classes: list[str]) -> str:
    """What is shown about a run of one stage that ends with these confusion matrices."""
    matrices = [np.array(each) for each in confusions]
    R = [[float(np.trace(each) / each.sum()) for each in matrices]]
    domains = [
        {"name": f"d{n}", "counts": dict.fromkeys(("train", "val", "test"), each.sum(1).tolist())}
        for n, each in enumerate(matrices)
    ]
    record = a_record(
        stream={"name": "clinic", "classes": classes, "domains": domains},
        R={"accuracy": R, "macro_f1": R},
        confusions=[confusions],
    )
    console = Console(file=io.StringIO(), width=100)
    show_result(console, record, "mine")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def test_a_result_below_a_constant_answer_does_not_look_like_one() -> None:
    text = a_result([[[30, 20, 10], [10, 5, 5], [10, 10, 0]]], ["NoDR", "NPDR", "PDR"])
    assert "better than always answering 'NoDR'" in text
    assert "'PDR' is never found (0 of 20 test images)" in text
    assert text.index("never found") < text.index("recall")
    assert re.search(r"│ PDR +│ +0.000 │ +0 of 20 │", text)


def test_a_result_of_many_classes_shows_the_lowest_recalls() -> None:
    matrix = np.diag(np.arange(30) + 1)
    matrix[7, 0] = 500
    text = a_result([matrix.tolist()], [f"class {n}" for n in range(30)])
    assert "│ class 7 " in text
    assert len(re.findall(r"│ class \d", text)) == MAX_CLASSES


def test_early_stopping_and_drift_are_explained(tmp_path: Path) -> None:
    changes = ["epochs=3", "patience=1", "lr=1e-12", "batch_size=8", "device=cpu"]
    shown = io.StringIO()
    with RunProgress(Console(file=shown, width=300)) as progress:
        config = load_config("default", [*changes, *TINY])
        run(config, tmp_path / "run", stream=make_stream(), callback=progress)
    last = [line for line in shown.getvalue().splitlines() if line.startswith("stage 2 domain 1: ")]
    assert "stopped early" in last[0]
    assert "1 epoch" in last[0]
    assert "drift hardly measured" in last[0]
    assert "10 batches" in last[0]


def test_a_run_without_a_stream_says_what_it_learns(
    tmp_path: Path, sodap: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sodap.runs.runner.run", stop)
    unnamed = sodap("run", "ridge")
    assert "'digits'" in unnamed.out
    assert "stream=FOLDER" in unnamed.out
    (tmp_path / "mine.yaml").write_text("method: ridge\nstream: digits-mini\n")
    for command in (["run", "mine.yaml"], ["run", "ridge", "stream=digits"]):
        assert "stream=FOLDER" not in sodap(*command).out


class DrawnProgress(RunProgress):
    """Draws the bars after every batch: a short run may end before they are drawn by the clock."""

    def batch_done(self, stage: Stage, epoch: int, step: int, steps: int) -> None:
        super().batch_done(stage, epoch, step, steps)
        self.progress.refresh()


def test_a_run_on_a_terminal_shows_progress_bars(tmp_path: Path) -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=120, color_system=None)
    with DrawnProgress(console) as progress:
        config = load_config("sequential", [*TINY, "epochs=1", "batch_size=8"])
        run(config, tmp_path / "run", stream=make_stream(), callback=progress)
        progress.progress.refresh()
    text = shown.getvalue()
    assert "━" in text
    assert "2/2" in text, "domains learned"
    assert "images/s" in text
    assert "stage 2 domain 1: 1 epoch in " in text
    assert ", epoch 1: ce" not in text, "no line an epoch on a terminal"


def test_messages_of_resume(tmp_path: Path, sodap: Call) -> None:
    """One sentence, and not two that contradict each other."""
    write_json(tmp_path / "old" / "config.json", load_config("default", ["epochs=9"]).described())
    other = sodap("run", "default", "--out", "old", "--resume")
    assert (other.code, other.out) == (2, "")
    assert "old holds a run with another training.epochs" in other.err
    none = sodap("run", "ridge", "stream=digits-mini", "--out", "new", "--resume")
    assert none.code == 0
    assert "there is no run in new to resume; it starts now" in none.out


def test_a_new_domain_is_offered_and_learned(
    tmp_path: Path, sodap: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SODAP_CACHE", str(tmp_path / "cache"))

    def add(domain: str) -> None:
        for label, level in (("cat", 60), ("dog", 180)):
            folder = tmp_path / "mine" / domain / label
            folder.mkdir(parents=True)
            for index in range(10):
                Image.new("RGB", (32, 32), (level, index, 0)).save(folder / f"{index}.png")

    add("one")
    command = ["run", "ridge", "stream=mine", "backbone=micro", "device=cpu", "--out", "out"]
    assert sodap(*command).code == 0
    add("two")
    offered = sodap(*command, "--resume")
    assert offered.code == 0
    assert "1 domain added since it began: two; add --extend" in offered.out
    assert len(read_record(tmp_path / "out" / "record.json").stages) == 1
    extended = sodap(*command, "--extend")
    assert extended.code == 0, extended.err
    assert "stage 2 two" in extended.out
    assert np.array(read_record(tmp_path / "out" / "record.json").R.accuracy).shape == (2, 2)
    assert "nothing is left to do" in sodap(*command, "--extend").out


# ------------------------------------------------------------------ signals to real processes


@pytest.mark.slow
def test_killed_in_the_middle_of_an_epoch_and_resumed(tmp_path: Path, sodap: Call) -> None:
    config = load_config("sequential", RUN)
    whole = run(config, tmp_path / "whole")

    command = ["run", "sequential", *RUN, "--out", "killed"]
    process = start(*command, cwd=tmp_path)
    read_until(process, "stage 2 ")
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.communicate()
    assert read_record(tmp_path / "killed" / "record.json").status == "running"

    refused = sodap(*command)
    assert refused.code == 2
    assert "--resume" in refused.err
    resumed = sodap(*command, "--resume")
    assert resumed.code == 0, resumed.err
    assert read_record(tmp_path / "killed" / "record.json").confusions == whole.confusions
    steps = sorted((tmp_path / "whole" / "steps").glob("*.safetensors"))
    assert len(steps) == len(whole.stages)
    for path in steps:  # every step, none lost and none twice
        assert path.read_bytes() == (tmp_path / "killed" / "steps" / path.name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_by_the_user(how: signal.Signals, tmp_path: Path) -> None:
    """Or by a batch system or a container, which send SIGTERM."""
    process = start("run", "sequential", *RUN, "epochs=999", cwd=tmp_path)
    read_until(process, "epoch 1:")
    process.send_signal(how)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert errors == "sodap: interrupted; continue with the same command and --resume\n"
    folder = tmp_path / "runs" / "digits-mini-sequential-s0"
    assert read_record(folder / "record.json").status == "interrupted"
