"""Configs: what is refused, in which words, and what identity depends on."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from lpc_ray.artifacts.handles import ARTIFACTS, set_handle
from lpc_ray.artifacts.store import publish
from lpc_ray.cli.jobs import run_job, store_url
from lpc_ray.config.job import JobConfig, load
from lpc_ray.config.loading import UniqueKeyLoader, nearest, read
from lpc_ray.config.plugins import load_plugin, plugin_names
from lpc_ray.config.shares import size_in_tokens
from lpc_ray.config.suite import PatientsConfig, SuiteConfig
from lpc_ray.errors import ArtifactError, ConfigError, DataError, LPCError, StorageError
from lpc_ray.induction import build_family, family_names
from lpc_ray.model.embedded import fetch_embedded_model, resolve_model
from lpc_ray.model.identity import model_identity
from lpc_ray.records import Case
from lpc_ray.run.arms import arms, fingerprint
from lpc_ray.run.baselines import prompt_baselines, untrained
from lpc_ray.run.facts import run_facts
from lpc_ray.run.leakage import check_family
from lpc_ray.run.plan import make_plan
from lpc_ray.sources.documents import read_documents
from lpc_ray.sources.text import parse_json, read_rows
from lpc_ray.storage import Store
from lpc_ray.verification.short_answer import ShortAnswer

ROOT = Path(__file__).resolve().parents[2]
BASE = {
    "name": "t",
    "recipe": {
        "source": {"paths": ["doc.md"]},
        "induction": {"families": {"curated": {"paths": ["faq.jsonl"]}, "raw": {}}},
        "verification": {"cases": "cases.jsonl"},
        "sweep": [
            {"induction": "curated", "objective": "ntp", "initializer": ["first_k", "sci"], "num_tokens": 8},
            {"induction": "raw", "objective": "ntp", "initializer": "first_k", "num_tokens": 8, "seed": [0, 1]},
        ],
    },
}


SMALL = ["recipe.sweep.0.num_tokens=4", "recipe.sweep.1.num_tokens=4"]


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(BASE))
    return path


@pytest.fixture
def documents(tmp_path):
    (tmp_path / "doc.md").write_text("The gate code is 4718.")
    return read_documents([tmp_path / "doc.md"])


def test_an_unknown_key_is_named_beside_the_nearest_valid_one(config_file):
    with pytest.raises(ConfigError, match=r"recipe\.training\.lrr \(did you mean 'lr'\?\)"):
        load(config_file, ["recipe.training.lrr=1"])
    with pytest.raises(ConfigError, match=r"cluster\.engine\.replica .*'replicas'"):
        load(config_file, ["cluster.engine.replica=2"])


@pytest.mark.parametrize(
    "override", ["recipe.training.steps=0", "recipe.training.lr=fast", "nonsense", "recipe.training.lr=[", "name=a/b"]
)
def test_a_bad_value_or_override_is_one_line(config_file, override):
    with pytest.raises(ConfigError) as caught:
        load(config_file, [override])
    assert "\n" not in str(caught.value)


def test_a_path_that_is_not_utf8_is_refused_in_a_config_and_as_a_run_folder(config_file, tmp_path, monkeypatch):
    latin = os.fsdecode(b"d\xe9r")
    with pytest.raises(
        ConfigError, match=r"^override 'recipe.source.paths=\[d\\udce9r\]': got a name that is not UTF-8"
    ):
        load(config_file, [f"recipe.source.paths=[{latin}]"])
    with pytest.raises(
        ConfigError, match=r"recipe.source.paths.0: got 'd\\udce9r', wanted UTF-8: a file of another name is"
    ):
        load(config_file, [r'recipe.source.paths=["d\uDCE9r"]'])
    (tmp_path / latin).mkdir()
    monkeypatch.chdir(tmp_path / latin)
    assert load(config_file.rename(tmp_path / latin / "job.yaml")).name == BASE["name"]
    with pytest.raises(StorageError, match="got a path that is not UTF-8, which MLflow and Ray cannot use"):
        store_url(load("job.yaml"))


def test_overrides_reach_any_field(config_file):
    config = load(config_file, ["recipe.training.lr=0.02", "recipe.sweep.0.num_tokens=[4, 6]"])
    assert config.recipe.training.lr == 0.02 and config.recipe.sweep[0].num_tokens == (4, 6)


def test_an_induction_that_no_family_describes_is_refused(config_file):
    with pytest.raises(ConfigError, match="got induction 'curatd'.*did you mean 'curated'"):
        load(config_file, ["recipe.sweep.0.induction=curatd"])


def test_an_unknown_family_names_the_nearest():
    with pytest.raises(ConfigError, match="got 'curate'.*did you mean 'curated'"):
        build_family("curate", {})
    with pytest.raises(ConfigError, match="num_chunk"):
        build_family("ss", {"num_chunk": 2})
    assert family_names() == ["ar", "ar_ta", "ar_ts", "bo", "csb", "curated", "general", "r", "raw", "ss"]


def test_the_fingerprint_covers_the_recipe_and_nothing_else(config_file):
    base = load(config_file)
    elsewhere = load(
        config_file, ["cluster.engine.replicas=8", "store.url=s3://b/x", "tracking.uri=http://h", "name=u"]
    )
    assert fingerprint(base.recipe) == fingerprint(elsewhere.recipe)
    assert fingerprint(load(config_file, ["recipe.training.lr=0.02"]).recipe) != fingerprint(base.recipe)


def test_arms_multiply_the_axes_in_order_and_share_traces(config_file, documents):
    found = arms(load(config_file).recipe, documents)
    assert [arm.name for arm in found] == [
        "curated-ntp-first_k-p8-s0",
        "curated-ntp-sci-p8-s0",
        "raw-ntp-first_k-p8-s0",
        "raw-ntp-first_k-p8-s1",
    ]
    assert len({arm.id for arm in found}) == 4 and len({arm.traces for arm in found}) == 2


@pytest.mark.parametrize("size", [0, 1, -3, 1.5])
def test_a_prefix_size_that_leaves_nothing_to_train_is_refused(config_file, documents, size):
    with pytest.raises(ConfigError, match="num_tokens"):
        arms(load(config_file, [f"recipe.sweep.0.num_tokens={size}"]).recipe, documents, 100)


def test_a_fraction_is_taken_of_the_source(config_file, documents):
    recipe = load(config_file, ["recipe.sweep.0.num_tokens=0.5"]).recipe
    assert arms(recipe, documents, source_tokens=2702)[0].num_tokens == 1351


@pytest.mark.parametrize(
    ("size", "source", "wanted"),
    [(0.5, 2702, 1351), (0.5, 2703, 1351), (0.3, 805, 241), (0.29, 100, 29), (0.999, 4, 3), (1351, 2702, 1351)],
)
def test_a_fraction_of_a_source_is_rounded_down_from_exactly_what_is_written(size, source, wanted):
    assert size_in_tokens(size, source) == wanted


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "empty"), (b"caf\xe9", "not UTF-8"), (b" \n\t", "empty"), (b"one\0two", "NUL character at offset 3")],
)
def test_a_bad_document_is_refused(tmp_path, content, message):
    (tmp_path / "doc.md").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_documents([tmp_path / "doc.md"])


def test_a_text_that_is_there_twice_is_refused(tmp_path):
    (tmp_path / "a.md").write_text("One text.")
    (tmp_path / "b.md").write_text("One text.")
    with pytest.raises(DataError, match=r"source b\.md: got the same text as a\.md, wanted each once"):
        read_documents([tmp_path])


def test_a_key_that_stands_twice_in_a_config_is_refused(config_file):
    config_file.write_text(config_file.read_text() + "\nname: another\n")
    with pytest.raises(ConfigError, match="got key 'name' more than once"):
        load(config_file)


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path):
    for name in ("b.md", "a.txt", "sub/c.rst", "skip.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"text {name}")
    assert [document.name for document in read_documents([tmp_path])] == ["a.txt", "b.md", "sub/c.rst"]


def test_a_family_that_was_given_a_held_out_question_is_refused(config_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case = {"question": "What is the gate code?", "answers": ["4718"]}
    cases = [{**case, "id": "h", "split": "held_out"}, {**case, "id": "t", "split": "tune", "question": "Which code?"}]
    Path("cases.jsonl").write_text("\n".join(map(json.dumps, cases)))
    Path("doc.md").write_text("The gate code is 4718. Nobody else knows it.")
    Path("faq.jsonl").write_text('{"question": "which code?", "answer": "4718"}')
    make_plan(load(config_file, SMALL))
    Path("faq.jsonl").write_text('{"question": "what is  the gate CODE?", "answer": "4718"}')
    with pytest.raises(DataError, match="curated: got the question of held-out case 'h'"):
        make_plan(load(config_file))


@pytest.mark.parametrize(
    ("family", "settings", "row"),
    [
        ("curated", {}, {"question": "Tell me: what is the gate code? Be short.", "answer": "4718"}),
        ("general", {}, {"messages": [{"role": "user", "content": "What is the gate code?"},
                                      {"role": "assistant", "content": "4718"}, {"role": "user", "content": "Thanks"}]}),
        ("ar_ts", {"task": "Answer: what is the gate code?"}, None),
    ],
)  # fmt: skip
def test_a_held_out_question_is_found_wherever_a_family_reads_it(monkeypatch, tmp_path, family, settings, row):
    path = tmp_path / "rows.jsonl"
    if row is not None:
        path.write_text(json.dumps(row))
        settings = {"paths": [str(path)]}
    cases = (Case("h", "What is the gate code?", ("4718",), "held_out"), Case("s", "Why?", ("x",), "held_out"))
    with pytest.raises(DataError, match=f"families.{family}: got the question of held-out case 'h'"):
        check_family(family, build_family(family, settings), ShortAnswer(cases))
    check_family(family, build_family(family, settings), ShortAnswer(cases[1:]))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["recipe.sweep.0.objective=kl"], "got objective kl, wanted ntp: curated has no teacher"),
        (["recipe.sweep.0.initializer=strided"], r"initializer\.0: got 'strided'.*did you mean 'strided_rope'"),
        (
            ["recipe.sweep.0.objective=klm"],
            r"recipe\.sweep\.0\.objective\.0: got 'klm', wanted one of kl, mix, ntp .*'kl'",
        ),
        (["recipe.verification.kind=gsm"], r"recipe\.verification\.kind: got 'gsm', wanted one of gsm8k, .*'gsm8k'"),
        (
            ["cluster.engine.kind=vlm"],
            r"cluster\.engine\.kind: got 'vlm', wanted one of vllm \(did you mean 'vllm'\?\)$",
        ),
        (["cluster.training.backend=fsdp"], r"cluster\.training\.backend: got 'fsdp', wanted one of deepspeed$"),
        (["recipe.sweep.0.objective=mix"], "got objective mix, wanted ntp: curated has no teacher"),
        (
            ["recipe.induction.families.ss.max_answer_tokens=1500"],
            "families.ss: got chunks and answers of 2304 tokens together, wanted at most the 2048 of .*context_tokens",
        ),
        (["recipe.induction.families.ss.temperature=true"], "families.ss: temperature: got true, wanted a number"),
        (
            ["recipe.induction.families.ss.temperature=.inf"],
            "families.ss.temperature: got inf, wanted a finite number",
        ),
        (["recipe.induction.families.ss.turns=0"], "families.ss: turns: got 0, wanted greater than or equal to 1"),
        (["recipe.induction.families.ss.trns=2"], "families.ss: unknown key trns .did you mean 'turns'"),
    ],
)
def test_what_a_family_cannot_do_is_refused_before_anything_is_loaded(monkeypatch, overrides, message):
    monkeypatch.chdir(ROOT)
    with pytest.raises(ConfigError, match=message):
        make_plan(load(ROOT / "jobs/configs/pi_scale.cpu.yaml", overrides))


def test_a_share_of_general_prompts_needs_the_family_and_has_its_own_traces(config_file, documents, tmp_path):
    share = "recipe.training.general_share=0.1"
    with pytest.raises(ConfigError, match="general_share: got 0.1 without a family"):
        load(config_file, [share])
    families = "recipe.induction.families.general={paths: [g.jsonl]}"
    plain, mixed = (
        arms(load(config_file).recipe, documents),
        arms(load(config_file, [share, families]).recipe, documents),
    )
    assert [arm.traces for arm in mixed] == [arm.traces for arm in plain]
    assert {one.family for arm in mixed for one in arm.trace_sets} == {"curated", "raw", "general"}
    assert all(arm.general_traces is None for arm in plain) and not {arm.id for arm in plain} & {
        arm.id for arm in mixed
    }


def test_a_trace_set_that_cost_less_than_training_is_to_have_is_refused(monkeypatch):
    monkeypatch.chdir(ROOT)
    plan = make_plan(load(ROOT / "jobs/configs/families.cpu.yaml", ["recipe.training.teacher_tokens=500"]))
    sets = {one.family: one for one in plan.trace_sets()}
    plan.check_teacher_tokens(sets["ss"], 500)
    plan.check_teacher_tokens(sets["curated"], 0)
    with pytest.raises(DataError, match="families.ss: got 499 teacher tokens"):
        plan.check_teacher_tokens(sets["ss"], 499)


def test_an_engine_whose_context_holds_no_question_is_refused(monkeypatch):
    monkeypatch.chdir(ROOT)
    config = ROOT / "jobs/configs/pi_scale.cpu.yaml"
    least = 128 + make_plan(load(config)).longest_prompt() + 24
    short = [f"recipe.induction.families.ss.{name}=20" for name in ("min_chunk_tokens", "max_chunk_tokens")]
    short += ["recipe.induction.families.ss.max_answer_tokens=20", "recipe.induction.context_tokens=160"]
    make_plan(load(config, [*short, f"cluster.engine.max_model_len={least}"]))
    with pytest.raises(
        ConfigError, match=rf"max_model_len: got {least - 1}, wanted at least the {least} tokens of prefix \(128\)"
    ):
        make_plan(load(config, [*short, f"cluster.engine.max_model_len={least - 1}"]))


def test_the_context_that_drops_traces_is_the_recipes_and_the_engines_may_only_be_longer(monkeypatch):
    monkeypatch.chdir(ROOT)

    def sets(*overrides):
        plan = make_plan(load(ROOT / "jobs/configs/pi_scale.cpu.yaml", list(overrides)))
        return {one.id for one in plan.trace_sets()}, {
            plan.induction_task(one).context_tokens for one in plan.trace_sets()
        }

    ids, limits = sets()
    assert sets("cluster.engine.max_model_len=4096") == (ids, limits) and limits == {2048}
    shorter, limits = sets("recipe.induction.context_tokens=1024")
    assert not shorter & ids and limits == {1024}
    assert sets("recipe.induction.context_tokens=1024", "cluster.engine.max_model_len=1024") == (shorter, limits)
    with pytest.raises(ConfigError, match=r"max_model_len: got 1023, wanted at least the 1024 in which ss may ask"):
        sets("recipe.induction.context_tokens=1024", "cluster.engine.max_model_len=1023")
    untaught = ["recipe.sweep=[{induction: raw, objective: ntp, initializer: strided_rope}]"]
    assert sets(*untaught, "cluster.engine.max_model_len=1024")[1] == {2048}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_lora_rank": 512}, "multi-head latent attention"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention layers"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "dynamic RoPE"),
        ({"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2}}, "dynamic RoPE"),
        ({"sliding_window": 160}, "wanted at most its sliding window of 160"),
        (
            {"max_position_embeddings": 700},
            "804 tokens of the document that strided_rope reads whole, .* context of 700",
        ),
        ({"max_position_embeddings": 1000}, "max_model_len: got 2048, wanted at most the model's 1000"),
        ({"sliding_window": 160, "use_sliding_window": False}, None),
        ({"sliding_window": 160, "layer_types": ["full_attention"]}, None),
    ],
)
def test_a_model_that_no_prefix_enters_or_fits_is_refused_before_anything_is_loaded(
    monkeypatch, tmp_path, changes, message
):
    monkeypatch.chdir(ROOT)
    embedded = fetch_embedded_model()
    config = {**json.loads((embedded / "config.json").read_text()), **changes}
    (tmp_path / "config.json").write_text(
        json.dumps({key: value for key, value in config.items() if value is not None})
    )
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors"):
        (tmp_path / name).symlink_to(embedded / name)
    job = load(ROOT / "jobs/configs/pi_scale.cpu.yaml", [f"recipe.model.id={tmp_path}"])
    if message is None:
        make_plan(job)
        return
    with pytest.raises(ConfigError, match=message):
        make_plan(job)


def test_a_prefix_longer_than_its_source_has_no_text_beside_it(monkeypatch):
    monkeypatch.chdir(ROOT)
    sweep = "recipe.sweep=[{induction: curated, objective: ntp, initializer: sci, num_tokens: [128, 900], seed: 0}]"
    plan = make_plan(load(ROOT / "jobs/configs/pi_scale.cpu.yaml", [sweep]))
    assert [(name, size) for name, size, _ in prompt_baselines(plan)] == [
        ("no_context", 0),
        ("full_document", 0),
        ("truncated", 128),
    ]
    assert untrained(plan) == [("first_k", 128)]


def test_a_preview_is_asked_for_by_count_and_replaces_the_work(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    called = []
    jobs = {"work": lambda plan, run: called.append("work"), "preview": lambda plan, count: called.append(count)}
    run_job("x", arguments=["--preview", "3"], **jobs)
    run_job("x", arguments=[], **jobs)
    assert called == [3, "work"]
    with pytest.raises(SystemExit):
        run_job("x", arguments=["--preview", "0"], **jobs)
    assert "got '0', wanted a whole number above 0" in capsys.readouterr().err


def test_a_dry_run_loads_neither_torch_nor_any_framework():
    code = (
        "import sys; from lpc_ray.cli.jobs import run_job; run_job('x', None, ['--dry-run']);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'ray', 'vllm', 'deepspeed', 'mlflow', 'transformers')))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "curated-ntp-strided_rope-p128-s0" in result.stdout


def test_a_dry_run_says_which_tasks_have_no_tests_and_which_tell_their_skill(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(ROOT)
    for name in ("bare", "tested"):
        (tmp_path / name / "tests").mkdir(parents=True)
        (tmp_path / name / "instruction.md").write_text("Do it.")
    (tmp_path / "tested" / "tests" / "test_it.py").write_text("")
    kind = (
        f"recipe.verification={{kind: skillsbench, cases: {tmp_path}, settings: {{tune: [bare], held_out: [tested]}}}}"
    )
    rule = "one two three four five six seven eight nine ten eleven twelve"
    skill = tmp_path / "bare" / "environment" / "skills" / "s" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text(f"Mind: {rule} thirteen")
    (tmp_path / "bare" / "instruction.md").write_text(f"Count: {rule}!")
    run_job("x", None, ["--dry-run", kind])
    shown = capsys.readouterr().out
    assert "task bare: its instruction holds words of the skill" not in shown
    (tmp_path / "bare" / "instruction.md").write_text(f"Count: {rule} and stop.")
    run_job("x", None, ["--dry-run", kind])
    shown = capsys.readouterr().out
    assert f"task bare: its instruction holds words of the skill, which every arm then has: {rule!r}\n" in shown
    assert "task bare: got no tests (test_*.py), so its outcomes will be empty: they are not scored\n" in shown
    assert "task tested" not in shown


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("recipe.training.lr=.inf", "lr"),
        ("recipe.sweep.0.seed=[]", "seed"),
        ('recipe.source.paths=[""]', "source.paths"),
        ("recipe.training.checkpoint_steps=[-5]", "checkpoint_steps"),
        ("store.url=nosuch://x", "nosuch"),
        ("recipe.training.lr=" + "[" * 1000, "recipe.training.lr"),
        ("recipe.sweep.0.seed=-1", r"recipe\.sweep\.0\.seed\.0: got -1, wanted greater than or equal to 0$"),
        ("recipe.sweep.0.num_tokens=[8, x]", r"recipe\.sweep\.0\.num_tokens\.1: got 'x', wanted an integer from 1 to"),
        ("recipe.training.steps=true", r"recipe\.training\.steps: got true, wanted a number$"),
        ("recipe.training.batch_tokens=1", r"recipe\.training\.batch_tokens: got 1, wanted"),
        ("recipe.training.steps=99999999999999999999", r"recipe\.training\.steps: got 9+, wanted less than"),
        ("recipe.training.lr=1e300", r"recipe\.training\.lr: got 1e\+300, wanted less than or equal to 100"),
        ("recipe.sweep.0.seed=[18446744073709551616]", r"seed\.0: got 18446744073709551616, wanted less than"),
        (
            "recipe.training.checkpoint_steps=[5, 3]",
            r"checkpoint_steps: got \[5, 3\], wanted ascending steps of at most",
        ),
        (
            "recipe.training.checkpoint_steps=[1000]",
            r"checkpoint_steps: got \[1000\], wanted ascending steps of at most",
        ),
        ("recipe.source=3", r"recipe\.source: got 3, wanted a mapping$"),
        (
            "recipe.training.key_lr_factor=1e9",
            r"recipe\.training\.key_lr_factor: got 1000000000.0, wanted less than or equal to 1000",
        ),
        ("recipe.training.clip_norm=1e30", r"recipe\.training\.clip_norm: got 1e\+30, wanted less than or equal to 1"),
        ("recipe.training.kl_temperature=1e-12", r"kl_temperature: got 1e-12, wanted greater than or equal to 0.01"),
        (
            "recipe.sweep.0.num_tokens=10000000000",
            r"num_tokens\.0: got 10000000000, wanted an integer from 1 to 1073741824",
        ),
        (
            "cluster.training.workers=1000000",
            r"cluster\.training\.workers: got 1000000, wanted less than or equal to 10000",
        ),
        ("cluster.training.collective_timeout_seconds=0", r"timeout_seconds: got 0, wanted greater than or equal to 1"),
        ("recipe.sweep.0.num_tokens=1.0", r"num_tokens\.0: got 1\.0, wanted an integer from 1 to"),
        ("recipe.sweep.0.num_tokens=true", r"num_tokens\.0: got True, wanted an integer from 1 to"),
        ("recipe.sweep.0.num_tokens=['8']", r"num_tokens\.0: got '8', wanted an integer from 1 to"),
        ("recipe.training.steps='8'", r"recipe\.training\.steps: got '8', wanted a whole number$"),
        ("recipe.training.steps=8.0", r"recipe\.training\.steps: got 8\.0, wanted a whole number$"),
        ("recipe.training.lr='0.1'", r"recipe\.training\.lr: got '0\.1', wanted a number$"),
        ("recipe.sweep.0.seed=true", r"recipe\.sweep\.0\.seed: got true, wanted a number$"),
        ("recipe.sweep.0.seed=[0, 1.0]", r"recipe\.sweep\.0\.seed\.1: got 1\.0, wanted a whole number$"),
        ("recipe.training.gradient_checkpointing=1", r"gradient_checkpointing: got 1, wanted true or false$"),
        ("recipe.training.gradient_checkpointing='yes'", r"gradient_checkpointing: got 'yes', wanted true or false$"),
        ("recipe.prompt.date=0", r"recipe\.prompt\.date: got 0, wanted a day such as 2024-07-26$"),
        ('recipe.prompt.system="a\\0b"', r"recipe\.prompt\.system: got '\\x00', a control character, wanted text$"),
        ('recipe.source.description="\\e[2J"', r"recipe\.source\.description: got '\\x1b', a control character"),
        ('recipe.source.paths=["a\\x7f.md"]', r"recipe\.source\.paths\.0: got '\\x7f', a control character"),
        ('cluster.engine.extra={"a\\x01": 1}', r"cluster\.engine\.extra\.a.: got '\\x01', a control character"),
        (
            "recipe.training.steps=010",
            r"^override 'recipe\.training\.steps=010': the value is not YAML: got 010, which YAML",
        ),
        ("recipe.training.steps=1:30", r"got 1:30, which YAML reads in two ways"),
        ("recipe.training.lr=1:30.5", r"got 1:30\.5, which YAML reads in two ways"),
        ("recipe.prompt.system=!!binary AAAA", r"recipe\.prompt\.system: got bytes, wanted text$"),
        ("cluster.engine.extra={a: [.nan]}", r"cluster\.engine\.extra\.a\.0: got nan, wanted a finite number$"),
        ("cluster.engine.extra={a: .inf}", r"cluster\.engine\.extra\.a: got inf, wanted a finite number$"),
        ("recipe.gate={}", r"recipe\.gate: got no threshold, wanted one of min_held_out, max_kl_drift"),
    ],
)
def test_values_without_sense_are_refused_by_name(config_file, override, message):
    with pytest.raises(LPCError, match=message):
        Store(load(config_file, [override]).store.url)


def test_numbers_are_written_as_json_has_them_or_yaml(config_file):
    told = [
        "recipe.training.lr=1e-3",
        "recipe.training.clip_norm=2",
        "recipe.sweep.0.seed=3",
        "recipe.training.steps=50",
    ]
    recipe = load(config_file, told).recipe
    assert (recipe.training.lr, recipe.training.clip_norm, recipe.sweep[0].seed) == (0.001, 2.0, (3,))
    assert load(config_file, ['recipe.prompt.system="a\\tb\\nc"']).recipe.prompt.system == "a\tb\nc"


def _numbers(schema, definitions, path=""):
    """Path and JSON schema of every number that a config may hold."""
    if "$ref" in schema:
        yield from _numbers(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions, path)
    for one in schema.get("anyOf", []):
        yield from _numbers(one, definitions, path)
    for name, one in schema.get("properties", {}).items():
        yield from _numbers(one, definitions, f"{path}.{name}".lstrip("."))
    for one in (schema.get("items"), *schema.get("prefixItems", [])):
        if isinstance(one, dict):
            yield from _numbers(one, definitions, path)
    if schema.get("type") in ("integer", "number"):
        yield path, schema


def test_every_number_of_a_job_has_bounds():
    """Sizes are checked by a function of their own, and thresholds when they are parsed."""
    schema = JobConfig.model_json_schema()
    found = list(_numbers(schema, schema["$defs"]))
    low, high = {"minimum", "exclusiveMinimum", "enum"}, {"maximum", "exclusiveMaximum", "enum"}
    unbounded = {path for path, one in found if not (low & one.keys() and high & one.keys())}
    assert len(found) > 50 and unbounded == {"recipe.sweep.num_tokens", "report.thresholds"}


def _settings():
    """Every model of settings that a config may hold besides."""
    yield from (SuiteConfig, PatientsConfig)
    yield from (load_plugin("lpc_ray.induction", "FAMILY", name, "x").FAMILY for name in family_names())
    for package, defines in (("lpc_ray.verification", "load"), ("lpc_ray.prefix.initializers", "initialize")):
        modules = (load_plugin(package, defines, name, "x") for name in plugin_names(package, defines))
        yield from (module.Settings for module in modules if hasattr(module, "Settings"))


def test_every_number_of_a_familys_an_initializers_and_a_verifiers_settings_has_bounds():
    low, high = {"minimum", "exclusiveMinimum", "enum"}, {"maximum", "exclusiveMaximum", "enum"}
    unbounded, count = [], 0
    for kind in _settings():
        schema = kind.model_json_schema()
        found = list(_numbers(schema, schema.get("$defs", {})))
        count += len(found)
        unbounded += [(kind.__module__, path) for path, one in found if not (low & one.keys() and high & one.keys())]
    assert count > 40 and unbounded == []


@pytest.mark.parametrize(
    ("family", "setting"),
    [
        ("ss", "temperature: 1e9"),
        ("ss", "num_chunks: 2000000000"),
        ("bo", "num_candidates: 1001"),
        ("raw", "window_tokens: 1e3"),
    ],
)
def test_a_familys_number_out_of_bounds_is_one_line(family, setting):
    name, value = yaml.load(setting, UniqueKeyLoader).popitem()
    with pytest.raises(
        ConfigError, match=rf"^recipe\.induction\.families\.{family}: {name}: got [^\n]*, wanted [^\n]*$"
    ):
        build_family(family, {name: value})


def test_a_line_of_jsonl_ends_at_a_line_feed_alone(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "one\u2028two\x85three"}\r\n\n{"text": "four"}\n', encoding="utf-8")
    found = list(read_rows(tmp_path / "rows.jsonl", "rows"))
    assert [row["text"] for _, row in found] == ["one\u2028two\x85three", "four"]
    assert found[1][0] == f"rows {tmp_path / 'rows.jsonl'} line 3"


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.md")
    with pytest.raises(DataError, match=r"source .*pipe\.md: got a pipe or device, wanted a file"):
        read_documents([tmp_path / "pipe.md"])


@pytest.mark.parametrize(
    "line", ['{"id": "a", "id": "b"}', '{"id": "a \\ud800"}', "[" * 100_000, '{"id": ' + "1" * 5000 + "}"]
)
def test_json_that_no_store_or_tokenizer_could_take_is_refused(line):
    with pytest.raises(DataError, match="^cases c line 1: "):
        parse_json(line, "cases c line 1")


def test_an_earlier_lpc_of_another_model_is_refused_before_anything_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    own = model_identity(resolve_model("smollm2-135m-instruct"))
    tensor = torch.zeros(own.num_layers, 128, own.num_kv_heads, own.head_dim)
    store = Store(str(tmp_path))
    for handle, identity in {"own": own, "alien": dataclasses.replace(own, rope="{}")}.items():
        set_handle(store, handle, publish(store / ARTIFACTS, tensor, tensor.clone(), identity, 0).digest)
    config = ROOT / "jobs/configs/pi_scale.cpu.yaml"

    def served(handles: str) -> None:
        make_plan(load(config, [f"recipe.baseline_prefixes={{store: {tmp_path}, handles: [{handles}]}}"]))

    def trained(handle: str) -> None:
        sweep = "recipe.sweep=[{induction: raw, objective: ntp, initializer: pretrained, num_tokens: 128, seed: 0}]"
        earlier = f"recipe.initializers.pretrained={{store: {tmp_path}, handle: {handle}}}"
        make_plan(load(config, [sweep, earlier]))

    served("own")
    trained("own")
    with pytest.raises(
        ArtifactError, match="recipe.baseline_prefixes: own\\+alien: made for another model: rope is {}"
    ):
        served("own+alien")
    with pytest.raises(ArtifactError, match="recipe.initializers.pretrained: made for another model: rope is {}"):
        trained("alien")


@pytest.mark.parametrize(
    ("config", "fact"),
    [
        (
            "pi_scale.cpu",
            "66 held out, which ask for 30 answers, 20 of them asked for in other words while tuning; greedy",
        ),
        ("skill", "1 to tune and stop by, 2 held out; greedy, at most 768 tokens"),
    ],
)
def test_a_report_counts_facts_only_where_an_answer_is_one(monkeypatch, config, fact):
    monkeypatch.chdir(ROOT)
    assert fact in run_facts(make_plan(load(ROOT / f"jobs/configs/{config}.yaml")), lambda: "now")["cases"]


@pytest.mark.parametrize(
    "name, hint",
    [
        ("prefixes", " (did you mean 'baseline_prefixes'?)"),
        ("strided", " (did you mean 'strided_rope'?)"),
        ("trainin", " (did you mean 'training'?)"),
        ("lr", ""),
        ("colour", ""),
    ],
)
def test_the_hint_is_the_name_that_holds_what_was_written_else_the_one_most_like_it(name, hint):
    assert nearest(name, {"prefix", "baseline_prefixes", "strided_rope", "training"}) == hint


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(["v0: &v0 [x, x, x]", *(f"v{n}: &v{n} [{', '.join([f'*v{n - 1}'] * 9)}]" for n in range(1, 12))]),
        "recipe: &itself {model: *itself}",
        "recipe: &itself [*itself]",
    ],
)
def test_aliases_that_stand_for_too_much_are_one_line(tmp_path, text):
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(ConfigError, match="got aliases that stand for more than 100000 values, or for themselves$"):
        load(tmp_path / "job.yaml")


def test_an_alias_stands_for_what_it_names(tmp_path):
    (tmp_path / "some.yaml").write_text("a: &a {b: [1, 2]}\nc: *a\nd: [*a, *a]\n")
    assert read(tmp_path / "some.yaml") == {"a": {"b": [1, 2]}, "c": {"b": [1, 2]}, "d": [{"b": [1, 2]}] * 2}
