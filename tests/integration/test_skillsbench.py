"""The SkillsBench verifier in real sandboxes: the project's own tasks, feedback, and replies that mean harm."""

import shutil
import time
from pathlib import Path

import psutil
import pytest

from lpc_ray.config.recipe import VerificationRecipe
from lpc_ray.errors import ConfigError, VerificationError
from lpc_ray.sources.skillsbench import read_tasks
from lpc_ray.storage import Store
from lpc_ray.verification import build_benchmark, skillsbench
from lpc_ray.verification.outcomes import Answerer, OutcomeStore, Verifier
from lpc_ray.verification.sandbox.task_runner import Rules, preflight
from tests.replies import Scripted

TASKS = Path(__file__).resolve().parents[2] / "data" / "tasks"
NAMES = sorted(path.name for path in TASKS.iterdir())


def _solution(name: str) -> str:
    """The Python program inside a task's solve.sh."""
    task = read_tasks(TASKS)[name]
    assert task.solution is not None
    return (task.solution / "solve.sh").read_text().split("<<'PY'\n")[1].split("\nPY\n")[0]


def _block(code: str) -> str:
    return f"Here it is:\n```python\n{code}\n```\n"


def _verifier(tmp_path, cases: Path = TASKS, **settings) -> Verifier:
    settings = {"tune": ["survey-units"], "seconds": 30, **settings}
    benchmark = build_benchmark(VerificationRecipe(kind="skillsbench", cases=str(cases), settings=settings))
    return Verifier(benchmark, OutcomeStore(Store(str(tmp_path / "run")), "p"), None, 512)


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_passes_and_doing_nothing_fails(name):
    task = read_tasks(TASKS)[name]
    found = preflight(task, task.digest, Rules())
    assert found.status == "ready", found.reason
    assert len(found.names) >= 5 and found.untouched == 0


def test_a_task_from_a_checkout_with_crlf_is_ready_as_well(tmp_path):
    shutil.copytree(TASKS / "ledger-gap-fill", tmp_path / "t")
    texts = [file for pattern in ("*.sh", "*.md", "*.toml", "*.py", "Dockerfile") for file in tmp_path.rglob(pattern)]
    assert len(texts) >= 5
    for text in texts:
        text.write_bytes(text.read_bytes().replace(b"\n", b"\r\n"))
    task = read_tasks(tmp_path)["t"]
    assert task.instruction == read_tasks(TASKS)["ledger-gap-fill"].instruction
    found = preflight(task, task.digest, Rules())
    assert found.status == "ready", found.reason


@pytest.mark.parametrize("name", NAMES)
def test_a_reply_with_the_references_program_passes_all_tests(tmp_path, name):
    [outcome] = _verifier(tmp_path, tune=[name]).verify(Answerer("s"), "tune", Scripted(_block(_solution(name))))
    assert outcome.verdict == "pass" and outcome.passed == outcome.total >= 5
    assert outcome.figures == {"reward": 1.0, "attempts": 1, "cap_hit": 0.0}


def test_half_of_the_work_scores_the_tests_it_passes_and_no_reward(tmp_path):
    code = _solution("survey-units").replace("0.60", "0.00")
    [outcome] = _verifier(tmp_path).verify(Answerer("s"), "tune", Scripted(_block(code)))
    assert (outcome.verdict, outcome.stage, outcome.passed, outcome.total) == ("fail", "wrong_output", 5, 7)
    assert outcome.figures["reward"] == 0


def test_errors_are_fed_back_for_three_attempts_and_tokens_add_up(tmp_path):
    broken, right = _block("import nowhere"), _block(_solution("survey-units"))
    scripted = Scripted("No program.", broken, right)
    [outcome] = _verifier(tmp_path).verify(Answerer("s"), "tune", scripted)
    assert outcome.verdict == "pass" and outcome.figures["attempts"] == 3 and outcome.prompt_tokens == 15
    assert [len(ask.messages) for ask in scripted.asked] == [1, 3, 3]
    assert "no ```python block" in scripted.asked[1].messages[-1]["content"]
    assert "No module named 'nowhere'" in scripted.asked[2].messages[-1]["content"]

    again = Scripted(broken)
    [outcome] = _verifier(tmp_path).verify(Answerer("t"), "tune", again)
    assert (outcome.verdict, outcome.stage, len(again.asked)) == ("fail", "exec_error", 3)
    assert (outcome.passed, outcome.total) == (0, 7)


def test_a_later_attempt_finds_its_inputs_untouched(tmp_path):
    vandal = "import os\nfor name in os.listdir('/root'): os.remove('/root/' + name)\nraise SystemExit(1)"
    scripted = Scripted(_block(vandal), _block(_solution("survey-units")))
    [outcome] = _verifier(tmp_path).verify(Answerer("s"), "tune", scripted)
    assert outcome.verdict == "pass" and outcome.figures["attempts"] == 2


CONFTEST = "import pytest\n@pytest.hookimpl\ndef pytest_runtest_call(item): item.runtest = lambda: None"
PLANT = f"""
import os, pathlib
text = {CONFTEST!r}
for name in ("conftest.py", "sitecustomize.py", "usercustomize.py", "pytest.py", "csv.py", "test_outputs.py"):
    pathlib.Path("/root", name).write_text(text)
pathlib.Path("/root/pytest.ini").write_text("[pytest]\\naddopts = -k nothing")
site = pathlib.Path("/root/.local/lib/python3.11/site-packages")
site.mkdir(parents=True)
(site / "usercustomize.py").write_text("import os; os._exit(0)")
"""


@pytest.mark.parametrize(
    ("reply", "stage"),
    [
        ("", "no_code"),
        ("I cannot do this.", "no_code"),
        ("```python\n```", "no_code"),
        (_block("pass"), "wrong_output"),
        (_block("def broken(:"), "exec_error"),
        (_block("open('/root/survey_metric.csv', 'w').write('nonsense')"), "wrong_output"),
        (_block("import os\nwhile True: os.fork()"), "exec_error"),
        (_block("open('/usr/escaped', 'w')"), "exec_error"),
        (_block("print(open('/etc/shadow').read())"), "exec_error"),
        (_block("import socket; socket.create_connection(('127.0.0.1', 22), 3)"), "exec_error"),
        (_block("for _ in range(1024): print('x' * 1024**2)"), "exec_error"),
        (_block("while True: pass"), "timeout"),
        (_block("import os, signal; os.kill(os.getppid(), signal.SIGKILL)"), "exec_error"),
        (_block("open('/tests/test_outputs.py', 'w').write('def test(): pass')"), "exec_error"),
        (_block("import os; print(os.listdir('/solution'))"), "exec_error"),
        (_block(PLANT), "wrong_output"),
        (_block("import os; os.symlink('/dev/zero', '/root/survey_metric.csv')"), "wrong_output"),
        (_block("import os; os.chmod('/root', 0)"), "wrong_output"),
        (_block("import os\nfor _ in range(1200):\n    os.mkdir('d')\n    os.chdir('d')"), "wrong_output"),
        (
            _block(
                "import os, time\nfor _ in range(30):\n    os.mkdir('d' * 200)\n    os.chdir('d' * 200)\ntime.sleep(100)"
            ),
            "exec_error",
        ),
    ],
)
def test_a_reply_that_is_wrong_or_means_harm_fails_at_its_stage(tmp_path, reply, stage):
    seconds = 3 if stage == "timeout" else 30
    verifier = _verifier(tmp_path, attempts=1, seconds=seconds, test_seconds=120)
    before = {process["pid"] for process in _living()}
    [outcome] = verifier.verify(Answerer("s"), "tune", Scripted(reply))
    assert (outcome.verdict, outcome.passed, outcome.total) == ("fail", 0, 7)
    assert outcome.stage == stage
    deadline = time.monotonic() + 10
    while any(process["name"] == "bwrap" and process["pid"] not in before for process in _living()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _living() -> list[dict]:
    processes = [process.info for process in psutil.process_iter(["pid", "name", "status"])]
    return [each for each in processes if each["status"] != psutil.STATUS_ZOMBIE]


def _task(folder: Path, test: str, solve: str | None = "echo done > /root/out") -> Path:
    for name in ("tests", "solution", "environment"):
        (folder / "t" / name).mkdir(parents=True)
    (folder / "t" / "instruction.md").write_text("Write the word done to /root/out.")
    if test:
        (folder / "t" / "tests" / "test_outputs.py").write_text(test)
    if solve:
        (folder / "t" / "solution" / "solve.sh").write_text(solve)
    return folder


GOOD = "def test_out():\n    assert open('/root/out').read() == 'done\\n'\n"


@pytest.mark.parametrize(
    ("test", "solve", "verdict"),
    [
        ("", "echo done > /root/out", "empty"),
        (GOOD, None, "harness_confounded"),
        (GOOD, "pip install what-is-not-there && echo done > /root/out", "harness_confounded"),
        ("def test_nothing():\n    pass\n", "true", "harness_confounded"),
        ("import what_is_not_there\n" + GOOD, "echo done > /root/out", "harness_confounded"),
    ],
)
def test_a_task_that_cannot_be_trusted_is_shown_and_never_scored(tmp_path, test, solve, verdict):
    verifier = _verifier(tmp_path, _task(tmp_path, test, solve), tune=["t"])
    scripted = Scripted(_block("open('/root/out', 'w').write('done\\n')"))
    [outcome] = verifier.verify(Answerer("s"), "tune", scripted)
    assert (outcome.verdict, outcome.passed) == (verdict, 0) and not scripted.asked
    [line] = verifier.benchmark.readiness()
    assert line.startswith(f"task t: {verdict}, not scored")


def test_an_input_that_would_go_into_the_system_confounds_the_task(tmp_path):
    folder = _task(tmp_path, GOOD)
    (folder / "t" / "environment" / "in.txt").write_text("x")
    (folder / "t" / "environment" / "Dockerfile").write_text("FROM x\nCOPY in.txt /usr/share/in.txt\n")
    verifier = _verifier(tmp_path, folder, tune=["t"])
    [outcome] = verifier.verify(Answerer("s"), "tune", Scripted("x"))
    assert outcome.verdict == "harness_confounded" and "an input goes to /usr" in verifier.benchmark.readiness()[0]


READ = "import os, pytest\ntext = open('/root/out').read() if os.path.exists('/root/out') else ''\n"
EACH = "@pytest.mark.parametrize('word', text.split())\ndef test_word(word):\n"
PLAIN = "def test_out():\n    assert text == 'done\\n'\n"


@pytest.mark.parametrize(
    ("test", "left", "passed", "total"),
    [
        (READ + "assert text != 'bad'\n" + PLAIN, "bad", 0, 1),
        (READ + PLAIN + "def test_skipped():\n    if text == 'bad':\n        pytest.skip()\n", "bad", 0, 2),
        (READ + EACH + "    assert word == 'done'\n", "no", 0, 1),
        (READ + EACH + "    assert len(word) > 3\n", "done do", 0, 1),
    ],
)  # fmt: skip
def test_tests_that_a_programs_leavings_keep_from_running_have_not_been_passed(tmp_path, test, left, passed, total):
    verifier = _verifier(tmp_path, _task(tmp_path, test), tune=["t"])
    [outcome] = verifier.verify(Answerer("s"), "tune", Scripted(_block(f"open('/root/out', 'w').write({left!r})")))
    assert (outcome.verdict, outcome.stage, outcome.passed, outcome.total) == ("fail", "wrong_output", passed, total)


@pytest.mark.parametrize(
    "program",
    [
        "os.symlink('/tests/expected', '/root/out')",
        "os.symlink('../tests/expected', '/root/out')",
        "os.symlink('/tests/expected', '/tmp/it'); os.symlink('/tmp/it', '/root/out')",
        "os.symlink('/proc/self/root/tests/expected', '/root/out')",
        "os.symlink('/', '/root/all'); os.symlink('all/tests/expected', '/root/out')",
        "os.makedirs('/root/a/b'); os.symlink('/root', '/root/a/b/up'); os.symlink('a/b/up/../tests/expected', '/root/out')",
        "os.mkdir('a'); os.symlink('/tests/expected', 'a/it'); os.symlink('a/it', '/root/out'); os.chmod('a', 0o111)",
        "for _ in range(30): os.mkdir('d' * 200); os.chdir('d' * 200)\nos.symlink('/tests/expected', 'out')",
        "for _ in range(30):\n    os.mkdir('d' * 200)\n    os.chdir('d' * 200)\n"
        "    for n in range(9): os.symlink('/tests/expected', str(n))\nos.symlink('/root/' + 'd' * 200 + '/1', '/root/out')",
    ],
)  # fmt: skip
def test_a_link_to_the_ground_truth_is_no_answer(tmp_path, program):
    folder = _task(tmp_path, "def test_out():\n    assert open('/root/out').read() == open('/tests/expected').read()\n")
    (folder / "t" / "tests" / "expected").write_text("done\n")
    verifier = _verifier(tmp_path, folder, tune=["t"], attempts=1)
    [outcome] = verifier.verify(Answerer("s"), "tune", Scripted(_block(f"import os\n{program}")))
    assert (outcome.verdict, outcome.passed, outcome.total) == ("fail", 0, 1)


@pytest.mark.parametrize("target", ["kept", "/root/a/kept", "../a/kept", "./kept"])
def test_a_link_inside_a_programs_own_folders_is_kept(tmp_path, target):
    folder = _task(tmp_path, GOOD.replace("/root/out", "/root/a/out"), "mkdir /root/a; echo done > /root/a/out")
    verifier = _verifier(tmp_path, folder, tune=["t"])
    program = "import os\nos.mkdir('/root/a')\nopen('/root/a/kept', 'w').write('done\\n')\n"
    program += f"os.symlink({target!r}, '/root/a/out')"
    [outcome] = verifier.verify(Answerer("s"), "tune", Scripted(_block(program)))
    assert outcome.verdict == "pass"


@pytest.mark.parametrize(
    "leave",
    ["shutil.rmtree(w)", "os.chmod(w, 0)", "os.rename(w, '/root/x')", "os.rename(w, w + '1'); os.symlink('/proc', w)"],
)
def test_a_program_that_spoils_its_working_directory_fails_and_stays_in_the_score(tmp_path, leave):
    folder = _task(tmp_path, GOOD.replace("/root/out", "out"), "echo done > /root/work/out")
    (folder / "t" / "environment" / "Dockerfile").write_text("FROM x\nWORKDIR /root/work\n")
    verifier = _verifier(tmp_path, folder, tune=["t"], attempts=1)
    code = f"import os, shutil\nw = '/root/work'\n{leave}"
    [outcome] = verifier.verify(Answerer("s"), "tune", Scripted(_block(code)))
    assert (outcome.verdict, outcome.stage, outcome.passed, outcome.total) == ("fail", "wrong_output", 0, 1)


def test_what_a_program_leaves_in_tmp_is_there_for_the_tests(tmp_path):
    folder = _task(tmp_path, GOOD.replace("/root/out", "/tmp/out"), "echo done > /tmp/out")
    verifier = _verifier(tmp_path, folder, tune=["t"])
    [outcome] = verifier.verify(Answerer("s"), "tune", Scripted(_block("open('/tmp/out', 'w').write('done\\n')")))
    assert outcome.verdict == "pass"


@pytest.mark.parametrize("report", ["not XML", "<?xml version='1.0' encoding='foo'?><a/>", "<a>" * 3])
def test_a_report_that_was_tampered_with_is_invalid(tmp_path, report):
    test = (
        "import os\ndef test_out():\n    if os.path.exists('/root/forge'):\n        exec(open('/root/forge').read())\n"
    )
    test += "    assert open('/root/out').read() == 'done\\n'\n"
    verifier = _verifier(tmp_path, _task(tmp_path, test), tune=["t"], attempts=1)
    forge = f"import os\nopen('/logs/report.xml', 'w').write({report!r})\nos._exit(0)"
    [outcome] = verifier.verify(Answerer("s"), "tune", Scripted(_block(f"open('forge', 'w').write({forge!r})")))
    assert (outcome.verdict, outcome.total) == ("invalid", 1)


def test_a_task_that_was_confounded_is_asked_again_once_its_reference_passes(tmp_path):
    folder = _task(tmp_path, GOOD, "exit 1")
    scripted = Scripted(_block("open('/root/out', 'w').write('done\\n')"))
    verifier = _verifier(tmp_path, folder, tune=["t"])
    assert verifier.verify(Answerer("s"), "tune", scripted)[0].verdict == "harness_confounded"
    assert verifier.is_verified("s", "tune") and not scripted.asked
    (folder / "t" / "solution" / "solve.sh").write_text("echo done > /root/out")
    verifier = _verifier(tmp_path, folder, tune=["t"])
    assert not verifier.is_verified("s", "tune")
    assert verifier.verify(Answerer("s"), "tune", scripted)[0].verdict == "pass"
    assert verifier.is_verified("s", "tune") and len(scripted.asked) == 1


def test_a_case_on_which_the_verifier_failed_is_asked_again_and_no_other(tmp_path, monkeypatch):
    scripted = Scripted(_block("pass"))
    verifier = _verifier(tmp_path, tune=["survey-units", "tide-codec"], attempts=1)
    real = skillsbench.run_program

    def broken(sandbox, workdir, code, rules):
        if (sandbox.home / "root" / "survey.csv").exists():
            return real(sandbox, workdir, code, rules)
        raise VerificationError("sandbox: no")

    monkeypatch.setattr(skillsbench, "run_program", broken)
    first = verifier.verify(Answerer("s"), "tune", scripted)
    assert sorted(outcome.verdict for outcome in first) == ["fail", "verifier_error"]
    assert {outcome.stage for outcome in first} == {"wrong_output", "sandbox: no"}
    monkeypatch.setattr(skillsbench, "run_program", real)
    second = verifier.verify(Answerer("s"), "tune", scripted)
    assert [outcome.verdict for outcome in second] == ["fail", "fail"] and len(scripted.asked) == 3


def test_tasks_are_found_from_any_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(TASKS.parent)
    verifier = _verifier(tmp_path, Path("tasks"))
    monkeypatch.chdir(tmp_path)
    [outcome] = verifier.verify(Answerer("s"), "tune", Scripted(_block(_solution("survey-units"))))
    assert outcome.verdict == "pass"


def test_a_missing_sandbox_stops_the_verification(tmp_path, monkeypatch):
    verifier = _verifier(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(VerificationError, match="bwrap"):
        verifier.verify(Answerer("s"), "tune", Scripted(_block("pass")))
    assert verifier.outcomes.get("s", "tune") is None


def test_skill_arms_have_the_skill_in_the_prompt_and_all_others_do_not(tmp_path):
    verifier = _verifier(tmp_path)
    [case] = verifier.benchmark.cases
    skill = read_tasks(TASKS)["survey-units"].skills
    [bare] = verifier.ask(Answerer("no_context"), case).messages
    [full] = verifier.ask(Answerer("full", document=skill), case).messages
    assert skill in full["content"] and full["content"].endswith(bare["content"])
    assert "fathom" not in bare["content"]
    with pytest.raises(VerificationError, match="the no-skill prompt holds the skill's text"):
        Verifier(verifier.benchmark, verifier.outcomes, skill, 512).ask(Answerer("no_context"), case)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tune": ["survey-unit"]}, "got task 'survey-unit', wanted one of deck-rate-update"),
        ({"held_out": ["survey-units"]}, "got task 'survey-units' in tune and held_out"),
        ({"tune": []}, "settings: tune: got \\[\\], wanted at least 1 item"),
    ],
)
def test_settings_that_cannot_be_carried_out_are_refused(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        _verifier(tmp_path, **settings)
