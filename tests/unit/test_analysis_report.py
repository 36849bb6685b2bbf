"""The files of a report: what they hold, and what they must not."""

import csv
import io
import json
import re
from dataclasses import fields, replace
from html.parser import HTMLParser

import pytest

from lpc_ray.records import Case, Outcome
from lpc_ray.report.ledger.ledger import ArmRecord, BaselineRecord, StepScore, rows
from lpc_ray.report.ledger.row import Row
from lpc_ray.report.pages.styles import COLOURS, styles
from lpc_ray.report.report import printed_table, write_report
from lpc_ray.storage import Store

FACTS = {"document": {"name": "harbour.md", "tokens": 812}, "sizes": [64, 128], "model": "smollm2"}
VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta"}


def outcomes(count: int, passed: int, reply: str = "berth 4") -> tuple[Outcome, ...]:
    return tuple(
        Outcome(f"case-{i}", "pass" if i < passed else "fail", "", int(i < passed), 1, reply, 40, 10, 0.1, "greedy")
        for i in range(count)
    )


def arm(name: str = "curated-ntp-sci-p128-s0", **changes) -> ArmRecord:
    steps = tuple(
        StepScore(step, 3.0, passed, 24, 1.5 * step, "d" * 32) for step, passed in ((0, 0), (1, 2), (8, 9), (48, 17))
    )
    record = ArmRecord(
        name=name,
        arm_id="0" * 32,
        induction="curated",
        objective="ntp",
        initializer="sci",
        num_tokens=128,
        seed=0,
        initializer_seed=0,
        induction_seed=0,
        status="finished",
        planned_steps=48,
        steps=steps,
        held_out=outcomes(60, 41),
        prefix_bytes=2_949_120,
        trace_generation_seconds=1.0,
        teacher_tokens=0,
        trace_rows=183,
        dropped_rows={"too_long": 2},
        target_tokens_seen=13_500,
    )
    return replace(record, **changes)


BASELINES = (
    BaselineRecord("no_context", 0, 0, outcomes(24, 0), outcomes(60, 1)),
    BaselineRecord("full_document", 0, 0, outcomes(24, 17), outcomes(60, 43)),
)
WRONG = {
    "no arm": [],
    "no held-out outcome": [arm(held_out=())],
    "never verified": [arm(steps=(), held_out=(), status="unfinished")],
    "only step 0": [arm(steps=arm().steps[:1], held_out=(), status="stopped")],
    "diverged": [arm(steps=(replace(arm().steps[0], loss=float("nan")),))],
}


class Folder(dict):
    """A store in memory."""

    def write_bytes(self, relative: str, data: bytes) -> None:
        self[relative] = data


class Reader(HTMLParser):
    """Collects tags, attributes and text; fails on a tag that is not closed in order."""

    def __init__(self, html: str):
        super().__init__()
        self.open, self.tags, self.attributes, self.words = [], [], [], []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def write(arms, baselines=BASELINES, title="Harbour", facts=FACTS, cases=()) -> tuple[dict, str]:
    """The strictly parsed JSON and the HTML text."""
    folder = Folder()
    write_report(folder, title, facts, arms, baselines, cases)
    assert set(folder) == {"report.html", "report.json", "pareto.csv", "convergence.csv"}
    return json.loads(folder["report.json"], parse_constant=pytest.fail), folder["report.html"].decode()


def test_the_files_land_in_a_store(tmp_path):
    table = write_report(Store(str(tmp_path / "runs")), "Harbour", FACTS, [arm()], BASELINES)
    assert [row.name for row in table] == ["no_context", "full_document", "curated-ntp-sci-p128-s0"]
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert names == ["convergence.csv", "pareto.csv", "report.html", "report.json"]


def test_the_json_holds_every_field_of_every_row():
    report, _ = write([arm()])
    assert set(report) == {
        "run",
        "title",
        "facts",
        "arms",
        "baselines",
        "convergence",
        "thresholds",
        "steps_to_quality",
        "break_even",
        "documents",
        "recipes",
        "findings",
        "induction",
    }
    for entry in (*report["arms"], *report["baselines"]):
        assert set(entry) == {field.name for field in fields(Row)} | {"dominated_by", "induction_seconds"}
        assert entry["induction_seconds"] == entry["trace_generation_seconds"]
    entry = report["arms"][0]
    assert (entry["passed"], entry["total"], entry["best_step"], entry["placeholders_counted"]) == (41, 60, 48, "no")
    assert report["facts"] == FACTS
    assert any("answers 41 of 60" in sentence for sentence in report["findings"])


@pytest.mark.parametrize("arms", WRONG.values(), ids=WRONG.keys())
def test_missing_numbers_are_null_in_strict_json_and_the_page_still_opens(arms):
    facts = {"loss": float("nan"), "lr": float("inf"), "steps": (1, 2), "none": None}
    report, html = write(arms, facts=facts)
    assert report["facts"] == {"loss": None, "lr": None, "steps": [1, 2], "none": None}
    Reader(html)
    for record, entry in zip(arms, report["arms"], strict=True):
        assert (entry["score"] is None) is not bool(record.held_out)


def test_a_report_of_nothing_is_still_a_report():
    report, html = write([], [])
    assert (report["arms"], report["baselines"]) == ([], [])
    assert "No held-out case has been answered yet." in " ".join(Reader(html).words)


def test_the_csv_files_have_a_header_and_empty_cells_for_missing_values():
    folder = Folder()
    write_report(folder, "Harbour", FACTS, [arm(), arm("empty", steps=(), held_out=())], BASELINES)
    places = list(csv.DictReader(io.StringIO(folder["pareto.csv"].decode())))
    assert [place["name"] for place in places] == ["no_context", "full_document", "curated-ntp-sci-p128-s0", "empty"]
    assert (places[3]["score"], places[3]["missing"]) == ("", "score request_tokens offline_seconds")
    points = list(csv.DictReader(io.StringIO(folder["convergence.csv"].decode())))
    assert list(points[0]) == ["arm", "step", "loss", "passed", "total", "score", "training_seconds"]
    assert [point["step"] for point in points] == ["0", "1", "8", "48"]


def test_markup_in_any_text_is_shown_and_not_executed():
    evil = '<script>alert("x")</script>\'&"'
    first = arm(f"arm{evil}", held_out=outcomes(2, 1, reply=evil), dropped_rows={evil: 1})
    case = Case("case-0", f"question {evil}", (f"answer {evil}",), "held_out")
    _, html = write([first], title=f"title {evil}", facts={evil: {"inner": evil}, "list": [evil]}, cases=[case])
    page = Reader(html)
    assert "script" not in page.tags
    words = "".join(page.words)
    for wanted in (f"title {evil}", f"question {evil}", f"Accepted: answer {evil}", f"arm{evil}", f"1 {evil}"):
        assert wanted in words
    assert not [value for _, value in page.attributes if value and "<script" in value and not value.startswith("arm")]


def test_the_page_loads_nothing_from_anywhere():
    _, html = write([arm(), arm("other", induction="ss")])
    assert "http" not in html
    assert "//" not in html
    page = Reader(html)
    assert not {"link", "script", "img", "iframe", "base", "object"} & set(page.tags)
    assert "@import" not in html
    loads = [value for name, value in page.attributes if name in ("href", "src", "xlink:href", "srcset", "data")]
    assert loads
    assert all(value.startswith("#") for value in loads)
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))


def test_every_reference_inside_the_page_has_exactly_one_target():
    _, html = write([arm(), arm("other", induction="ss")])
    attributes = Reader(html).attributes
    ids = [value for name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids))
    wanted = {value[1:] for name, value in attributes if name == "href"} | set(re.findall(r"url\(#([^)]*)\)", html))
    assert wanted <= set(ids)
    assert "case-1" in wanted


def test_names_in_any_script_reach_every_file():
    name = "überblick-手引き-$x$-_ñ"
    report, html = write([arm(name)], title="Полный отчёт")
    assert report["arms"][0]["name"] == name
    assert "Полный отчёт" in html
    svgs = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert [name in svg for svg in svgs] == [True, True]


def test_a_lone_surrogate_in_a_reply_does_not_lose_the_report():
    _, html = write([arm(held_out=outcomes(1, 1, reply="half \ud83d"))])
    assert "half \\ud83d" in html


def test_plots_follow_the_pages_colour_and_name_every_line():
    stopped = arm("raw-ntp-sci-p128-s0", induction="raw", status="stopped", steps=arm().steps[:3])
    _, html = write([arm(), stopped])
    convergence_svg, pareto_svg = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert "#010203" not in html
    assert "<!--" not in html
    assert "currentColor" in convergence_svg
    for name in ("curated-ntp-sci-p128-s0", "raw-ntp-sci-p128-s0", "no_context 0/24", "full_document 17/24"):
        assert name in convergence_svg
    for label in ("curated-ntp-sci-p128-s0 (128 prefix tokens)", "no_context (no prefix tokens)"):
        assert label in pareto_svg
    for tick in ("0", "8", "48"):
        assert f">{tick}</text>" in convergence_svg
    assert ">1</text>" not in convergence_svg, "1 would touch 0 on a linear axis"


def test_a_stopped_arm_is_named_with_step_and_score_and_meets_no_later_threshold():
    stopped = arm("raw", induction="raw", status="stopped", steps=arm().steps[:2], held_out=())
    report, html = write([stopped])
    assert report["arms"][0]["status"] == "stopped at step 1 (verified 2/24)"
    words = " ".join(" ".join(Reader(html).words).split())
    assert "raw not reached not reached not reached 8.3 % stopped at step 1" in words
    assert "was stopped at step 1 of 48 with 2 of 24 tune cases right" in words


def test_the_appendix_shows_each_case_with_every_reply():
    error = replace(outcomes(1, 0)[0], verdict="verifier_error", stage="timeout")
    case = Case("case-0", "Which berth?", ("berth 4", "no. 4"), "held_out")
    _, html = write([arm(held_out=(error,))], [replace(BASELINES[1], held_out=outcomes(2, 1))], cases=[case])
    words = " ".join(" ".join(Reader(html).words).split())
    assert "case-0: 1 of 2 right. Which berth?" in words
    assert "case-1: 0 of 1 right" in words
    assert "Accepted: berth 4 | no. 4" in words
    assert "curated-ntp-sci-p128-s0 verifier_error timeout berth 4" in words
    assert 'class="verdict other" title="verifier_error">!<' in html


def test_arms_of_one_recipe_look_alike_and_no_two_recipes_do():
    arms = [arm(f"{i}-{seed}", induction=f"family-{i}", seed=seed) for i in range(12) for seed in range(3)]
    look = styles(rows(arms, []))
    assert look["0-0"] == look["0-1"] == look["0-2"]
    assert len({(style.colour, style.marker) for style in look.values()}) == len(arms) / 3
    many = styles(rows([arm(str(i), induction=f"family-{i}") for i in range(80)], []))
    assert len({(style.colour, style.marker) for style in many.values()}) == 80
    assert len({look[f"{i}-0"].marker for i in range(len(COLOURS))}) == len(COLOURS)


def luminance(colour: str) -> float:
    """WCAG 2 relative luminance of #rrggbb."""
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("page", ["#ffffff", "#14171b"])
def test_every_line_stands_out_on_a_light_and_on_a_dark_page(page):
    for colour in COLOURS:
        dark, light = sorted((luminance(colour), luminance(page)))
        assert (light + 0.05) / (dark + 0.05) >= 3, colour


def test_the_printed_table_fits_a_terminal_and_keeps_every_column():
    stopped = arm("curated-ntp-random_vectors-p128-s1-i12-d3", status="stopped")
    table = printed_table(rows([arm(), stopped, arm("[bold]手引き", held_out=())], BASELINES))
    lines = table.splitlines()
    assert max(map(len, lines)) <= 110
    for heading in ("arm or baseline", "status", "held-out", "score", "95 % CI", "step", "tune", "tokens"):
        assert heading in lines[0]
    line = next(line for line in lines if "curated-ntp-sci" in line)
    assert line.split() == [
        "curated-ntp-sci-p128-s0",
        "finished",
        "41/60",
        "68.3",
        "%",
        "55.8-78.7",
        "48",
        "17/24",
        "50",
    ]
    assert "[bold]手引き" in table
    assert "\x1b" not in table


def test_the_page_tells_off_source_damage_and_the_gates_word_or_that_none_was_measured():
    damaged = arm(
        kl_drift=0.0312,
        accuracy_change=-0.125,
        accuracy_bare=0.75,
        abstention=0.5,
        abstention_bare=0.25,
        gate="kl_drift 0.0312, wanted at most 0.01",
    )
    _, html = write([damaged])
    words = " ".join(" ".join(Reader(html).words).split())
    assert "0.0312 -12.5 points 75.0 % 50.0 % 25.0 % refused: kl_drift 0.0312, wanted at most 0.01" in words
    assert "75.0 % 50.0 % 25.0 % passed" in " ".join(
        " ".join(Reader(write([replace(damaged, gate="passed")])[1]).words).split()
    )
    assert "was not measured" not in words
    _, html = write([arm()])
    assert "have nothing to do with its source was not measured" in html
    assert "Off the source" not in html


def test_a_legend_has_one_entry_per_recipe():
    arms = [arm(f"{name}-{seed}", induction=name, seed=seed) for name in ("raw", "ss") for seed in range(3)]
    for drawn in re.findall(r"<svg.*?</svg>", write(arms)[1], re.DOTALL):
        assert drawn.count("3 seeds") == 2 and "raw-ntp-sci-p128, 3 seeds" in drawn and "raw-0" not in drawn


def test_unscored_cases_and_intervals_stand_beside_the_count():
    odd = replace(outcomes(1, 0)[0], case_id="case-7", verdict="verifier_error")
    one = arm(held_out=(*outcomes(7, 7), odd))
    _, html = write([one])
    words = " ".join(" ".join(Reader(html).words).split())
    assert "7/7 , 1 case not scored (verifier_error) 100.0 % 65–100 %" in words
    assert "curated-ntp-sci-p128-s0: 1 case not scored (verifier_error)" in printed_table(rows([one], []))


def test_the_page_says_where_denominators_differ():
    held = (replace(outcomes(1, 0)[0], verdict="verifier_error"), *outcomes(60, 41)[1:])
    _, html = write([arm(), arm("other", num_tokens=64, held_out=held)])
    assert "Denominators differ (59 and 60 checks), so these rows are not on the same checks." in html
    assert "Denominators differ" not in write([arm()])[1]


def test_names_cannot_turn_page_or_terminal_round():
    odd = arm("x\u202egnp\x1b[2J\udce9")
    _, html = write([odd])
    assert not {"\u202e", "\x1b"} & set(html) and "x\\u202egnp" in html
    assert not {"\u202e", "\x1b"} & set(printed_table(rows([odd], [])))


def test_a_break_even_is_judged_case_by_case():
    """4 to 0 on the same 28 cases: McNemar's p = 0.125, whatever the counts alone say."""
    report, html = write([arm(held_out=outcomes(28, 1))], [replace(BASELINES[1], held_out=outcomes(28, 5))])
    (line,) = report["break_even"]
    assert (line["p_value"], line["test"]) == (0.125, "McNemar")
    assert "p = 0.12, McNemar" in html


def test_the_page_tells_what_a_verifier_told_beside_its_verdict():
    outcomes_with_figures = tuple(
        replace(outcome, figures={"lenient": 1.0, "cap_hit": 0.0}) for outcome in outcomes(4, 2)
    )
    _, html = write([arm(held_out=outcomes_with_figures)])
    words = " ".join(" ".join(Reader(html).words).split())
    assert "arm or baseline lenient cap hit curated-ntp-sci-p128-s0 1.00 0.00" in words
    assert "Beside the score" not in write([arm()])[1]
