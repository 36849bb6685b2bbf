"""Every cell of the published tables, transcribed a second time in the pages' own layout, against the files."""

import json
from itertools import product
from pathlib import Path

import pytest

from lpc_ray.report.results.read import read_results

FOLDER = Path(__file__).parents[2] / "data" / "published"
LPC, RC = "learned prefix caches", "reasoncache"
PPT, LIFT, XLSX, GDP, SYZ = (
    "exceltable-in-ppt",
    "powerlifting-coef-calc",
    "xlsx-recover-data",
    "weighted-gdp-calc",
    "syzkaller-ppdev-syzlang",
)
BY_TASK_AND_ARM = [
    ("h100-pi-pilot", LPC, "Raw skill NTP | Fixed self-study KL | AR-PI skill KL | R-PI KL"),
    ("h100-pi-pilot", RC, "Raw skill NTP | Fixed self-study KL | ARCI skill KL | ARCI reasoning KL"),
    ("cartridge-skillsbench", LPC, "Full skill | Truncated skill | No skill | Cartridge 50%"),
    ("cartridge-skillsbench", RC, "Full skill | Truncated skill | No skill | Cartridge 50%"),
]
CELLS = {
    "h100-pi-pilot": {
        PPT: "0 / 8 | 0 / 8 | 7 / 8 | 7 / 8",
        LIFT: "0 / 11 | 0 / 11 | 0 / 11 | 0 / 11",
        XLSX: "1 / 19 | 12 / 19 | 1 / 19 | 14 / 19",
        GDP: "10 / 27 | 10 / 27 | 10 / 27 | 10 / 27",
    },
    "cartridge-skillsbench": {
        PPT: "0 / 8 | 7 / 8 | 7 / 8 | 7 / 8",
        LIFT: "9 / 11 | 5 / 11 | 5 / 11 | 5 / 11",
        XLSX: "0 / 1 | 2 / 19 | 1 / 19 | 14 / 19",
        GDP: "1 / 27 | 1 / 27 | 1 / 27 | 1 / 27",
    },
}
RETEST = [
    (PPT, "Best learned prefix", "0 / 8"),
    (PPT, "No skill", "0 / 8"),
    (XLSX, "AR-TA + KL, strided-RoPE", "15 / 19"),
    (XLSX, "No skill", "6 / 19"),
    (SYZ, "Best learned prefix", "1 / 7"),
    (SYZ, "No skill", "0 / 7"),
]
SEED_SWEEP = {
    "SS-PI + KL": "0 / 1 invalid | 13 / 19 | 13 / 19 | 13 / 19",
    "AR-TA + KL": "1 / 19 | 13 / 19 | 3 / 19 | 15 / 19",
    "AR-TS + KL": "0 / 1 invalid | 13 / 19 | 13 / 19 | 1 / 19",
    "BO-PI + KL": "0 / 1 invalid | 13 / 19 | 11 / 19 | 0 / 1 invalid",
}
WITH_TOKENS = {
    ("h100-pi-stabilization", RC): [
        (XLSX, "BO-PI", "17 / 19", 4072, 1744),
        (XLSX, "CSB-PI", "14 / 19", 3641, 1744),
        (XLSX, "SS-PI", "12 / 19", 3505, 1744),
        (XLSX, "No skill", "8 / 19", 1732, 0),
    ],
    ("h100-pi-stabilization", LPC): [
        (XLSX, "BO-PI + KL", "17 / 19", 4072, 1744),
        (XLSX, "CSB-PI + KL", "14 / 19", 3641, 1744),
        (XLSX, "SS-PI + KL", "12 / 19", 3505, 1744),
    ],
    ("h100-gsm8k", RC): [
        ("gsm8k", "ReasonCACHE NTP", "20 / 24", 251.6, 512),
        ("gsm8k", "ReasonCACHE NTP", "19 / 24", 239.9, 256),
        ("gsm8k", "Text prefill", "19 / 24", 277.9, 256),
        ("gsm8k", "No cache", "17 / 24", 301.7, 0),
    ],
    ("h100-gsm8k", LPC): [
        ("gsm8k", "ReasonCACHE NTP", "20 / 24", 251.6, 512),
        ("gsm8k", "No cache", "17 / 24", 301.7, 0),
    ],
}
SCALE = {
    RC: "No skill 16 | Full skill 16 | SS-PI 16 | AR-TA 16 | AR-TS 16 | R-PI 16 | CSB-PI 48 | BO-PI 48",
    LPC: "CSB-PI + KL 48 | BO-PI + KL 48",
}
LONGHEALTH = """
patient_05 |  9,603 | 11 / 20 | 11 / 20 |  0 | tie
patient_06 | 10,807 | 11 / 20 | 11 / 20 |  0 | tie
patient_12 | 12,503 | 17 / 20 | 13 / 20 | -4 | first-k
patient_18 | 11,904 |  8 / 20 | 10 / 20 | +2 | SCI
"""
CONVERGENCE = """
AR-TA, first-k      |  8 |  8 |  8 | 17 / 19
AR-TA, SCI seed 0   |  — |  — |  — |  8 / 19
AR-TA, SCI seed 1   | 16 | 16 |  — | 13 / 19
AR-TA, SCI seed 2   |  — |  — |  — |  8 / 19
AR-TA, strided-RoPE |  4 |  4 |  4 | 16 / 19
SS-PI, first-k      |  2 |  — |  — | 12 / 19
SS-PI, SCI seed 1   | 16 | 16 |  — | 14 / 19
SS-PI, SCI seed 2   |  4 |  4 |  — | 14 / 19
SS-PI, strided-RoPE |  8 |  8 |  — | 13 / 19
"""
FASTEST = """
AR-TA, first-k      |  8 | 17 / 19 | 17 / 19
AR-TA, strided-RoPE |  4 | 16 / 19 | 16 / 19
AR-TA, SCI seed 1   | 16 | 13 / 19 | 13 / 19
SS-PI, SCI seed 2   |  4 | 14 / 19 | 14 / 19
SS-PI, first-k      |  2 | 12 / 19 | 12 / 19
"""
FAMILIES = {"AR-TA": "ar_ta", "AR-TS": "ar_ts", "SS-PI": "ss", "BO-PI": "bo", "CSB-PI": "csb", "R-PI": "r"}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")]


def lines(block: str) -> list[list[str]]:
    return [cells(line) for line in block.strip().splitlines()]


def table(run: str, page: str, number: int = 0, kind: str = "tables") -> dict:
    """The `number`-th table that a page prints of a run."""
    tables = json.loads((FOLDER / f"{run}.json").read_text())[kind]
    return [one for one in tables if one["page"] == page][number]


@pytest.fixture(scope="module")
def rows():
    return [row for found in read_results(sorted(FOLDER.glob("*.json"))) for row in found.rows]


def test_published_tables_are_those_of_the_two_pages():
    pages = {}
    for file in sorted(FOLDER.glob("*.json")):
        content = json.loads(file.read_text())
        pages[content["run"]] = [one["page"] for one in (*content.get("tables", ()), *content.get("curves", ()))]
    twice = [LPC, RC]
    assert pages == {
        "a100-convergence": twice,
        "a100-longhealth": [LPC],
        "a100-retest": [*twice, LPC],
        "cartridge-skillsbench": twice,
        "h100-gsm8k": twice[::-1],
        "h100-pi-pilot": twice,
        "h100-pi-scale": twice[::-1],
        "h100-pi-stabilization": twice[::-1],
    }


@pytest.mark.parametrize(("run", "page", "arms"), BY_TASK_AND_ARM)
def test_published_tables_of_four_tasks_are_as_printed(run, page, arms):
    printed = {
        (task, arm, cell)
        for task, line in CELLS[run].items()
        for arm, cell in zip(cells(arms), cells(line), strict=True)
    }
    held = table(run, page)["rows"]
    assert len(held) == 16 and {(row["task"], row["arm"], row["result"]) for row in held} == printed


def test_published_retest_is_as_printed_on_both_pages():
    for page in (LPC, RC):
        held = table("a100-retest", page)["rows"]
        assert [(row["task"], row["arm"], row["result"]) for row in held] == RETEST
        assert [row["arm"] for row in held if row.get("is_best_of_several")] == ["Best learned prefix"] * 2
        assert [row["arm"] for row in held if row.get("kind") == "baseline"] == ["No skill"] * 3


def test_published_seed_sweep_is_as_printed():
    found = {}
    for row in table("a100-retest", LPC, 1)["rows"]:
        family, start = row["arm"].split(", ")
        assert row["task"] == XLSX and row["objective"] == "kl"
        assert row["induction"] == FAMILIES[family.removesuffix(" + KL")]
        seed = row.get("initializer_seed")
        assert (row["initializer"], seed) in (("sci", seed), ("strided_rope", None))
        assert start == ("strided-RoPE" if seed is None else f"SCI seed {seed}")
        found[family, start] = row["result"]
    starts = ("SCI seed 0", "SCI seed 1", "SCI seed 2", "strided-RoPE")
    printed = {
        (family, start): cell
        for family, line in SEED_SWEEP.items()
        for start, cell in zip(starts, cells(line), strict=True)
    }
    assert found == printed


@pytest.mark.parametrize(("run", "page"), WITH_TOKENS)
def test_published_tables_with_tokens_are_as_printed(run, page):
    held = table(run, page)["rows"]
    cells = [(row["task"], row["arm"], row["result"], row["request_tokens"], row["prefix_tokens"]) for row in held]
    assert cells == WITH_TOKENS[run, page]


@pytest.mark.parametrize("page", SCALE)
def test_published_scale_run_is_as_printed(page):
    held = table("h100-pi-scale", page)["rows"]
    assert [(row["arm"], row["result"]) for row in held] == [
        (name, f"0 / {total}") for name, _, total in (cell.rpartition(" ") for cell in cells(SCALE[page]))
    ]
    assert all(row["induction"] == FAMILIES[row["arm"].removesuffix(" + KL")] for row in held if "induction" in row)
    assert {row["task"] for row in held} == {"public strata"}


def test_published_longhealth_is_as_printed():
    held = table("a100-longhealth", LPC)
    printed, found = [], []
    for patient, tokens, first, sci, delta, verdict in lines(LONGHEALTH):
        source = int(tokens.replace(",", ""))
        printed += [(patient, source, "first_k", first), (patient, source, "sci", sci)]
        assert (held["delta"][patient], held["verdict"][patient]) == (int(delta), verdict)
    for row in held["rows"]:
        assert row["prefix_tokens"] == 2048 and row["is_best_of_several"] is True
        found.append((row["task"], row["source_tokens"], row["initializer"], row["result"]))
    assert found == printed


def test_published_convergence_is_as_printed_on_both_pages():
    printed = {
        name: ([None if step == "—" else int(step) for step in steps], best)
        for name, *steps, best in lines(CONVERGENCE)
    }
    held = table("a100-convergence", LPC, kind="curves")["rows"]
    qualities = ["12 / 19", "13 / 19", "15 / 19"]
    assert all(list(row["reached"]) == qualities for row in held)
    assert {row["arm"]: (list(row["reached"].values()), row["best"]) for row in held} == printed
    fastest = {name: ({quality: int(step)}, best) for name, step, quality, best in lines(FASTEST)}
    again = table("a100-convergence", RC, kind="curves")["rows"]
    assert {row["arm"]: (row["reached"], row["best"]) for row in again} == fastest
    for row in (*held, *again):
        family, start = row["arm"].split(", ")
        seed = int(start[-1]) if start.startswith("SCI") else None
        initializer = {"first-k": "first_k", "strided-RoPE": "strided_rope"}.get(start, "sci")
        recipe = (row["induction"], row["initializer"], row.get("initializer_seed"))
        assert recipe == (FAMILIES[family], initializer, seed)


def test_published_sizes_of_the_xlsx_cartridge_are_as_printed(rows):
    [sized] = [row for row in rows if row.run == "cartridge-skillsbench" and row.prefix_bytes]
    assert (sized.task, sized.name, sized.source_tokens, sized.num_tokens, sized.prefix_bytes) == (
        *(XLSX, "Cartridge 50%"),
        *(2702, 1351, 354_193_931),
    )


def test_published_cells_become_scores_and_nothing_else_does(rows):
    """Invalid stays invalid and has no count; an unlabelled 0 / 1 keeps its count and has no score; all else is a score."""
    assert len(rows) == 77
    invalid = {(row.task, row.name) for row in rows if row.status == "invalid"}
    assert invalid == {(XLSX, f"{family}, SCI seed 0") for family in ("SS-PI + KL", "AR-TS + KL", "BO-PI + KL")} | {
        (XLSX, "BO-PI + KL, strided-RoPE")
    }
    [unknown] = [row for row in rows if row.status == "unknown"]
    assert (unknown.run, unknown.task, unknown.name) == ("cartridge-skillsbench", XLSX, "Full skill")
    assert (unknown.passed, unknown.total, unknown.score) == (0, 1, None)
    for row in rows:
        if row.status == "invalid":
            assert (row.passed, row.total, row.score, row.uncounted_verdicts) == (None, None, None, {"invalid": 1})
        elif row is not unknown:
            assert row.status == "reported" and row.score == row.passed / row.total
    totals = {PPT: {8}, LIFT: {11}, XLSX: {19}, GDP: {27}, SYZ: {7}, "gsm8k": {24}, "public strata": {16, 48}}
    patients = {f"patient_{number}": {20} for number in ("05", "06", "12", "18")}
    found = {}
    for row in rows:
        if row.score is not None:
            found.setdefault(row.task, set()).add(row.total)
    assert found == totals | patients


def test_published_placeholders_are_counted_where_the_pages_say_so(rows):
    conventions = {row.run: set() for row in rows}
    for row in rows:
        conventions[row.run].add(row.placeholders_counted)
    known = {"h100-pi-pilot": {"yes"}, "h100-gsm8k": {"no"}}
    assert conventions == {run: known.get(run, {"unknown"}) for run in conventions}


def test_published_arms_are_baselines_where_nothing_was_trained(rows):
    names = {row.name for row in rows if row.kind == "baseline"}
    assert names == {"No skill", "Full skill", "Truncated skill", "Text prefill", "No cache"}


def test_published_families_and_objectives_are_those_of_the_labels(rows):
    labels = {
        **{"Raw skill NTP": ("raw", "ntp"), "Fixed self-study KL": ("ss", "kl")},
        **{"AR-PI skill KL": ("ar", "kl"), "R-PI KL": ("r", "kl")},
    }
    for row, (label, recipe) in product(rows, labels.items()):
        if row.run == "h100-pi-pilot" and row.name == label:
            assert (row.induction, row.objective) == recipe
    for row in rows:
        if row.run == "h100-pi-stabilization" and row.kind == "arm":
            assert (row.induction, row.objective) == (FAMILIES[row.name], "kl")
        if row.run == "h100-gsm8k" and row.kind == "arm":
            assert (row.induction, row.objective) == ("curated", "ntp")
