"""What is read of the files and folders that a user names, what is left out and why, and what is refused."""

import json
import os
import shutil
from pathlib import Path

import pytest

from lpc_ray.errors import DataError
from lpc_ray.sources import gsm8k, skillsbench
from lpc_ray.sources.documents import MOST_BYTES, read_documents, read_sources
from lpc_ray.sources.folder import in_words
from lpc_ray.sources.text import read_rows, read_text, spelled

LATIN = os.fsdecode(b"hand\xe9book")


def _write(folder, **files):
    """Files by name, `__` for a slash and `_` for a dot before the suffix."""
    for name, text in files.items():
        path = folder.joinpath(*name.split("__")[:-1]) / ".".join(name.split("__")[-1].rsplit("_", 1))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _names(sources):
    return [document.name for document in sources.documents]


def _left_out(sources):
    return {one.path: one.reason for one in sources.left_out}


def test_a_name_that_is_not_utf8_becomes_one_that_everything_can_write(tmp_path):
    (tmp_path / LATIN).mkdir()
    _write(tmp_path, one_md="One.")
    shutil.copy(tmp_path / "one.md", tmp_path / LATIN / f"{LATIN}.md")
    (tmp_path / "one.md").unlink()
    _write(tmp_path / LATIN, image_png="")
    found = read_sources([tmp_path])
    assert _names(found) == [r"hand\xe9book/hand\xe9book.md"]
    assert in_words(found.left_out)[0].endswith(rf"{tmp_path.name}/hand\xe9book/image.png")
    assert spelled("été/Ж.md") == "été/Ж.md"


def test_a_skill_and_a_task_whose_name_is_not_utf8_can_be_prompted_and_stored(tmp_path):
    skill = tmp_path / LATIN / "environment" / "skills" / LATIN / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("Use it.")
    (tmp_path / LATIN / "instruction.md").write_text("Do it.")
    [document] = read_documents([tmp_path / LATIN])
    assert (document.name, document.text) == (r"hand\xe9book", "### Skill: hand\\xe9book\n\nUse it.")
    [(name, task)] = skillsbench.read_tasks(tmp_path).items()
    assert name == task.name == r"hand\xe9book" and task.skills == document.text


@pytest.mark.parametrize("name", ["C# guide.md", "#.md", "skill#1", "a#b.jsonl", "notes.md#intro"])
def test_a_name_that_exists_is_itself_and_no_part(tmp_path, name):
    path = tmp_path / "in # a folder" / name
    path.parent.mkdir()
    if "." not in name:
        path.mkdir()
    (path if "." in name else path / "x.md").write_text("The text.")
    [document] = read_documents([path])
    assert document.text == "The text." and document.name == (name if "." in name else "x.md")


def test_a_part_of_a_file_is_read_beside_files_with_the_same_mark(tmp_path):
    rows = ['{"question": "1+1?", "answer": "It is 2. #### 2"}', '{"question": "1+2?", "answer": "It is 3. #### 3"}']
    (tmp_path / "C# set.jsonl").write_text("\n".join(rows))
    [document] = read_documents([tmp_path / "C# set.jsonl#1"])
    assert document.name == "C# set.jsonl#1" and document.text == "Question: 1+1?\nAnswer: It is 2. #### 2"
    with pytest.raises(DataError, match=r"C# set.jsonl: got '3' after #, wanted a number of problems from 1 to 2"):
        read_documents([tmp_path / "C# set.jsonl#3"])
    assert len(gsm8k.first_problems(tmp_path / "C# set.jsonl", "2")) == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.md#2", r"source .*absent.md#2: got no such file nor absent.md, of which it would be a part"),
        ("a#b#2", r"source .*a#b#2: got no such file nor a#b, nor a, of which it would be a part"),
        ("doc.md#2", r"source .*doc.md#2: got no such file, and a part \(#2\) only a .json or .jsonl file can have"),
        ("#", "source .*#: got no such file$"),
        ("absent.md", "source .*absent.md: No such file or directory"),
        ("x" * 300 + ".md", "File name too long"),
        ("a\0b.md", "null byte"),
    ],
)
def test_what_is_neither_a_file_nor_a_part_is_refused_by_its_own_name(tmp_path, name, message):
    (tmp_path / "doc.md").write_text("The text.")
    with pytest.raises(DataError, match=message):
        read_documents([f"{tmp_path}/{name}"])


def test_a_path_may_start_at_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    _write(tmp_path, docs__a_md="a", one_md="1")
    assert _names(read_sources(["~/docs", "~/one.md"])) == ["a.md", "one.md"]
    assert read_text(Path("~/one.md"), "cases") == "1"
    with pytest.raises(DataError, match=r"^source ~nobody-of-this-name/x.md: No such file"):
        read_documents(["~nobody-of-this-name/x.md"])


def test_a_pipe_and_a_size_are_refused_in_words_said_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.md")
    with pytest.raises(DataError, match=rf"^source {tmp_path}/pipe.md: got a pipe or device, wanted a file$"):
        read_documents([tmp_path / "pipe.md"])


def test_the_part_of_a_file_may_hold_the_mark_as_well(tmp_path):
    question = {"No": 0, "question": "Q?", "correct": "1", **{f"answer_{one}": str(n) for n, one in enumerate("abcde")}}
    patient = {"name": "N", "texts": {"text_0": "The record."}, "questions": [question]}
    (tmp_path / "b#1.json").write_text(json.dumps({"ward #7 p#2": patient}))
    assert read_documents([tmp_path / "b#1.json#ward #7 p#2"])[0].text == "The record."


def test_what_python_and_a_mac_leave_in_a_task_is_no_part_of_it(tmp_path):
    _write(tmp_path, t__instruction_md="Do.", t__tests__test_a_py="", t__environment__in_csv="1")
    task = skillsbench.read_task(tmp_path / "t")
    before = task.digest
    (tmp_path / "t" / "tests" / "__pycache__").mkdir()
    (tmp_path / "t" / "tests" / "__pycache__" / "a.pyc").write_bytes(b"1")
    (tmp_path / "t" / "environment" / ".DS_Store").write_bytes(b"1")
    (tmp_path / "t" / "environment" / "._in.csv").write_bytes(b"1")
    (tmp_path / "t" / "environment" / "loop").symlink_to("loop")
    assert task.digest == before
    _write(tmp_path, t__environment__in_csv="2")
    assert task.digest != before


def test_a_folder_is_read_as_its_owner_sees_it_and_the_rest_is_told(tmp_path):
    _write(tmp_path, guide_md="Guide.", _venv__lib__LICENSE_txt="MIT", node_modules__x__README_md="# x")
    _write(tmp_path, env__pyvenv_cfg="", env__lib__NOTICE_txt="x", empty_md=" \n", page_html="<p>", paper_pdf="%PDF")
    _write(tmp_path, **{"_ipynb_checkpoints__guide-checkpoint_md": "Guide."})
    for hidden in ("venv", "ipynb_checkpoints"):
        (tmp_path / f"_{hidden}").rename(tmp_path / f".{hidden}")
    (tmp_path / "._guide.md").write_bytes(b"\0\5\x16\7")
    (tmp_path / "alias.md").symlink_to("guide.md")
    (tmp_path / "loop.md").symlink_to("loop.md")
    (tmp_path / "itself").symlink_to(".")
    os.mkfifo(tmp_path / "pipe.md")
    found = read_sources([tmp_path])
    assert [document.text for document in found.documents] == ["Guide."]
    suffixes = "not .txt, .md, .markdown, .rst"
    assert _left_out(found) == {
        f"{tmp_path.name}/{name}": reason
        for name, reason in {
            "._guide.md": "hidden",
            ".ipynb_checkpoints/": "hidden",
            ".venv/": "hidden",
            "node_modules/": "made by a tool",
            "env/": "a Python environment",
            "empty.md": "empty",
            "page.html": suffixes,
            "paper.pdf": suffixes,
            "alias.md": "a link to a file that is read",
            "loop.md": "a link to nothing",
            "itself": "a link to a folder (to have it, name it as a source)",
            "pipe.md": "no regular file",
        }.items()
    }


def test_a_link_to_a_file_elsewhere_is_read_and_a_linked_folder_when_it_is_named(tmp_path):
    _write(tmp_path, elsewhere__one_md="One.", folder__two_md="Two.")
    (tmp_path / "folder" / "linked.md").symlink_to(tmp_path / "elsewhere" / "one.md")
    (tmp_path / "folder" / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "folder" / "twice.md").symlink_to(tmp_path / "elsewhere" / "one.md")
    assert _names(read_sources([tmp_path / "folder"])) == ["linked.md", "two.md"]
    assert _names(read_sources([tmp_path / "folder" / "more"])) == ["one.md"]


def test_ignore_files_are_honoured_as_git_does(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_bytes(
        b"drafts/\r\n*.tmp.md\r\n!kept.tmp.md\r\n/top.md\r\n[z-a]\r\n!\r\nh\xe9.md\r\n"
    )
    _write(tmp_path, docs__a_md="a", docs__drafts__b_md="b", docs__sub__top_md="t", top_md="T", docs__sub__n_md="n")
    for name in ("x.tmp.md", "kept.tmp.md", os.fsdecode(b"h\xe9.md")):
        (tmp_path / "docs" / name).write_text(name[0])
    (tmp_path / "docs" / "sub" / ".gitignore").write_text("n.md\n")
    (tmp_path / "docs" / "sub" / ".ignore").write_text("!n.md\n")
    found = read_sources([tmp_path / "docs"])
    assert _names(found) == ["a.md", "kept.tmp.md", "sub/n.md", "sub/top.md"]
    ignored = {path for path, reason in _left_out(found).items() if reason == "ignored by ../.gitignore"}
    assert ignored == {"docs/drafts/", "docs/x.tmp.md", r"docs/h\xe9.md"}
    assert "top.md" in {path.rpartition("/")[2] for path in _left_out(read_sources([tmp_path]))}
    assert _names(read_sources([tmp_path / "docs" / "drafts"])) == ["b.md"]  # ignored, and named all the same


def test_skills_are_one_document_beside_the_other_files_of_their_folder(tmp_path):
    _write(tmp_path, guide_md="Guide.", pdf__SKILL_md="Use it.", pdf__forms_md="Forms.", csv__SKILL_md="Read it.")
    _write(tmp_path, notes__n_md="Note.", hidden__SKILL_md="No.")
    (tmp_path / "hidden").rename(tmp_path / ".hidden")
    found = read_sources([tmp_path])
    assert _names(found) == [tmp_path.name, "guide.md", "notes/n.md"]
    assert found.documents[0].text == "### Skill: csv\n\nRead it.\n### Skill: pdf\n\nUse it."
    assert _left_out(found) == {
        f"{tmp_path.name}/.hidden/": "hidden",
        f"{tmp_path.name}/pdf/forms.md": "beside a SKILL.md, which alone is loaded",
    }


def test_a_skill_that_is_a_link_is_loaded_like_any_other(tmp_path):
    _write(tmp_path, shared__pdf__SKILL_md="Use it.")
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills" / "pdf").symlink_to(tmp_path / "shared" / "pdf")
    found = read_sources([tmp_path / "skills"])
    assert [one.text for one in found.documents] == ["### Skill: pdf\n\nUse it."] and not found.left_out


def test_an_empty_skill_is_refused_wherever_it_is_read(tmp_path):
    _write(tmp_path, t__environment__skills__pdf__SKILL_md=" \r\n", t__instruction_md="Do.")
    with pytest.raises(DataError, match=r"^skill .*pdf/SKILL.md: got an empty file, wanted the skill's text$"):
        read_documents([tmp_path / "t"])
    with pytest.raises(DataError, match="got an empty file"):
        _ = skillsbench.read_task(tmp_path / "t").skills


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("---\nname: pdf\n---\n", "got front matter alone, wanted the skill's text behind it"),
        ("---\nname: pdf\n---", "got front matter alone, wanted the skill's text behind it"),
        ("---\n---\n \n", "got front matter that is NoneType, wanted a mapping of fields"),
        ("---\nname: pdf\nUse it.\n", "got front matter without an end, wanted a second line of ---"),
        ("---\r\nname: pdf\r\n----\r\nUse it.", "got front matter without an end, wanted a second line of ---"),
        ("---\nname: [\n---\nUse it.", "front matter is not YAML: "),
        ("---\nday: 2024-13-45\n---\nUse it.", "front matter is not YAML: "),
        ("---\n- a\n---\nUse it.", "got front matter that is list, wanted a mapping of fields"),
    ],
)
def test_front_matter_of_a_skill_ends_is_yaml_and_has_a_text_behind_it(tmp_path, text, message):
    _write(tmp_path, s__pdf__SKILL_md="", own__SKILL_md="", n__note_md="---\nfree text")
    for file in (tmp_path / "s/pdf/SKILL.md", tmp_path / "own/SKILL.md"):
        file.write_bytes(text.encode())
    for path in (tmp_path / "s", tmp_path / "own", tmp_path / "own" / "SKILL.md"):
        with pytest.raises(DataError) as caught:
            read_documents([path])
        assert f"SKILL.md: {message}" in str(caught.value) and "\n" not in str(caught.value)
    assert read_documents([tmp_path / "n"])[0].text == "---\nfree text"  # a rule in a text that is no skill


def test_a_skill_with_front_matter_is_read_whole(tmp_path):
    _write(tmp_path, s__pdf__SKILL_md="---\nname: pdf\n---\n\nUse it.")
    assert read_documents([tmp_path / "s"])[0].text == "### Skill: pdf\n\n---\nname: pdf\n---\n\nUse it."


@pytest.mark.parametrize("url", ["https://example.org/x.md", "s3://bucket/a#b.json", "file:///etc/hosts", "hf://d/x"])
def test_a_url_as_a_source_or_a_file_of_cases_is_said_to_be_one(url):
    words = "got a URL, which is not read, wanted a file: download it and name the copy"
    shown = url.replace("file:///etc", "file://etc")
    with pytest.raises(DataError) as caught:
        read_documents([url])
    assert str(caught.value) in (f"source {url}: {words}", f"source {shown}: {words}")
    with pytest.raises(DataError) as caught:
        list(read_rows(Path(url), "cases"))
    assert str(caught.value) == f"cases {shown}: {words}"


@pytest.mark.parametrize("text", ["\u200b\n", "\u2060\u200d", "\u00a0\u2003\n", "\ufeff\ufeff", "\x1b\x07"])
def test_a_text_of_which_nothing_can_be_seen_is_empty(tmp_path, text):
    _write(tmp_path, a_md=text, s__a_md=text, s__b_md="Text.", k__p__SKILL_md=f"---\nname: p\n---\n{text}")
    with pytest.raises(DataError, match=r"a\.md: got an empty document$"):
        read_documents([tmp_path / "a.md"])
    assert _left_out(read_sources([tmp_path / "s"])) == {"s/a.md": "empty"}
    with pytest.raises(DataError, match="got front matter alone"):
        read_documents([tmp_path / "k"])


def test_a_folder_whose_name_begins_as_a_url_does_is_read(tmp_path, monkeypatch):
    _write(tmp_path, **{"http:__a_md": "A."})
    monkeypatch.chdir(tmp_path)
    assert read_documents(["http:/a.md"])[0].text == "A."


def test_a_folder_without_texts_says_what_it_holds_instead(tmp_path):
    for number in range(10):
        _write(tmp_path, **{f"p{number}_pdf": "%PDF"})
    with pytest.raises(DataError, match=r"without .txt, .md, .markdown, .rst files \(10 not .*p0.pdf,.* and 2 more\)$"):
        read_documents([tmp_path])


@pytest.mark.parametrize("closed", ["closed", "closed.md", ".gitignore"])
def test_what_cannot_be_read_is_refused_and_not_left_out(unprivileged, closed):
    _write(unprivileged, a_md="a")
    (unprivileged / closed).touch() if "." in closed else (unprivileged / closed).mkdir()
    (unprivileged / closed).chmod(0)
    if os.geteuid() == 0:
        os.seteuid(65534)
    with pytest.raises(DataError, match=rf"^source .*{closed}.*: Permission denied$"):
        read_documents([unprivileged])


def test_a_text_larger_than_memory_should_hold_is_refused_before_it_is_read(tmp_path):
    with open(tmp_path / "big.md", "wb") as file:
        file.truncate(MOST_BYTES + 1)  # a hole: as large as it says, and costs nothing
    with pytest.raises(
        DataError, match=r"^source [^ ]*big.md: got a file of 33,554,433 bytes, wanted at most 33,554,432$"
    ):
        read_documents([tmp_path / "big.md"])
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name * (MOST_BYTES // 2 + 1))
    with pytest.raises(DataError, match=r"source.paths: got texts of 33,554,434 bytes together, wanted at most"):
        read_documents([tmp_path / "a.txt", tmp_path / "b.txt"])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_wide_text_is_refused_with_the_way_out(tmp_path, encoding):
    (tmp_path / "wide.md").write_bytes("Text.".encode(encoding))
    wanted = (
        "NUL character at offset 1" if encoding == "utf-16-le" else rf"got {encoding.upper()}, wanted UTF-8 \(iconv"
    )
    with pytest.raises(DataError, match=wanted):
        read_documents([tmp_path / "wide.md"])


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_a_mark_at_the_start_change_nothing_that_is_read(tmp_path, end, mark):
    def written(name: str, text: str):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((mark + text.replace("\n", end)).encode())
        return path

    assert read_text(written("a.md", "One.\n\nTwo.\n"), "source") == "One.\n\nTwo.\n"
    assert [row for _, row in read_rows(written("r.jsonl", '{"a": "x\\r\\ny"}\n{"a": "z"}\n'), "rows")] == [
        {"a": "x\r\ny"},
        {"a": "z"},
    ]
    written("t/task.md", "---\nverifier: {timeout_sec: 7}\n---\n\nDo it.\nNow.\n")
    written("t/environment/skills/pdf/SKILL.md", "---\nname: pdf\n---\nUse it.\n")
    written("t/environment/Dockerfile", "FROM x\nWORKDIR /app\nCOPY in.txt \\\n  /app/\n")
    written("t/environment/in.txt", "in\n")
    task = skillsbench.read_task(tmp_path / "t")
    assert (task.instruction, task.timeout_seconds) == ("Do it.\nNow.\n", 7.0)
    assert task.skills == "### Skill: pdf\n\n---\nname: pdf\n---\nUse it.\n"
    assert skillsbench.placements(task) == ("/app", [(tmp_path / "t" / "environment" / "in.txt", "/app/in.txt")])
    written("u/instruction.md", "Do it.\n")
    written("u/task.toml", "[verifier]\ntimeout_sec = 9\n")
    assert skillsbench.read_task(tmp_path / "u").timeout_seconds == 9.0


def test_front_matter_ends_at_a_line_of_its_own(tmp_path):
    (tmp_path / "task.md").write_text("--- \nname: a---b\n---\t\nDo --- it.\n")
    assert skillsbench.read_task(tmp_path).instruction == "Do --- it.\n"
