"""The published tables, replayed: their raw rows give their frontier and their verdicts, and a changed row changes them."""

import copy
import json
from fractions import Fraction
from pathlib import Path

import pytest

from lpc_ray.errors import DataError
from lpc_ray.report.results.read import parse_results, read_results
from lpc_ray.report.significance import NOISE_P_VALUE, unpaired
from lpc_ray.report.statistics.initializer_duels import per_document
from lpc_ray.report.statistics.over_tasks import by_arm
from lpc_ray.report.statistics.pareto import pareto, shared_axes
from lpc_ray.report.statistics.seed_spread import spreads
from lpc_ray.report.statistics.steps_to_quality import steps_to_quality

FOLDER = Path(__file__).parents[2] / "data" / "published"
XLSX = "xlsx-recover-data"


def content(run: str) -> dict:
    return json.loads((FOLDER / f"{run}.json").read_text())


def parsed(top: dict):
    (found,) = parse_results(top, top["run"])
    return found


def run(name: str):
    return parsed(content(name))


def changed(name: str, arm: str, **fields) -> dict:
    """The file with the rows of one arm changed, in every table that prints it."""
    top = copy.deepcopy(content(name))
    tables = [*top.get("tables", []), *top.get("curves", [])]
    touched = [row for table in tables for row in table["rows"] if row["arm"] in (arm, f"{arm} + KL")]
    assert touched
    for row in touched:
        row.update(fields)
    return top


def frontier(rows) -> dict[str, str]:
    return {place.name: place.dominated_by for place in pareto(rows, shared_axes(rows))}


def best(rows) -> str:
    return max((row for row in rows if row.score is not None), key=lambda row: row.score).name


def test_published_files_hold_every_run_and_agree_with_themselves():
    runs = read_results(sorted(FOLDER.glob("*.json")))
    assert {found.run: len(found.rows) for found in runs} == {
        "a100-convergence": 0,
        "a100-longhealth": 8,
        "a100-retest": 21,
        "cartridge-skillsbench": 16,
        "h100-gsm8k": 4,
        "h100-pi-pilot": 16,
        "h100-pi-scale": 8,
        "h100-pi-stabilization": 4,
    }
    assert {found.ignored for found in runs} == {()}


def test_published_tables_that_disagree_are_refused():
    top = content("h100-pi-stabilization")
    top["tables"][1]["rows"][0]["result"] = "16 / 19"
    with pytest.raises(DataError, match="got passed 17 and 16 for BO-PI on xlsx-recover-data"):
        parsed(top)


def test_published_stabilization_frontier_has_bo_best_and_no_skill_cheapest():
    """17, 14, 12 and 8 of 19 at 4,072, 3,641, 3,505 and 1,732 tokens: each lower score is cheaper, so none is dominated."""
    rows = run("h100-pi-stabilization").rows
    assert [(row.name, row.passed, row.total, row.request_tokens) for row in rows] == [
        ("BO-PI", 17, 19, 4072),
        ("CSB-PI", 14, 19, 3641),
        ("SS-PI", 12, 19, 3505),
        ("No skill", 8, 19, 1732),
    ]
    assert shared_axes(rows) == ("score", "request_tokens", "prefix_tokens")
    assert frontier(rows) == {"BO-PI": "", "CSB-PI": "", "SS-PI": "", "No skill": ""}
    assert best(rows) == "BO-PI"
    assert min(rows, key=lambda row: row.request_tokens).name == "No skill"


def test_published_stabilization_verdict_follows_its_rows():
    worse = parsed(changed("h100-pi-stabilization", "BO-PI", result="13 / 19")).rows
    assert best(worse) == "CSB-PI"
    assert frontier(worse)["BO-PI"] == "CSB-PI"
    dearer = parsed(changed("h100-pi-stabilization", "SS-PI", request_tokens=3700)).rows
    assert frontier(dearer)["SS-PI"] == "CSB-PI"
    cheaper = parsed(changed("h100-pi-stabilization", "No skill", result="17 / 19")).rows
    assert frontier(cheaper) == {"BO-PI": "No skill", "CSB-PI": "No skill", "SS-PI": "No skill", "No skill": ""}


def test_published_stabilization_is_not_ranked_where_placeholders_are_counted_differently():
    mixed = parsed(changed("h100-pi-stabilization", "SS-PI", request_tokens=3700, placeholders_counted="yes")).rows
    assert frontier(mixed)["SS-PI"] == ""


def test_published_gsm8k_best_row_is_inside_the_noise_of_no_cache():
    rows = {row.name: row for row in run("h100-gsm8k").rows}
    assert list(rows) == ["ReasonCACHE NTP-p512", "ReasonCACHE NTP-p256", "Text prefill", "No cache"]
    assert [row.passed for row in rows.values()] == [20, 19, 19, 17]
    assert frontier(list(rows.values())) == {
        "ReasonCACHE NTP-p512": "",
        "ReasonCACHE NTP-p256": "",
        "Text prefill": "ReasonCACHE NTP-p256",
        "No cache": "",
    }
    best_row, bare = rows["ReasonCACHE NTP-p512"], rows["No cache"]
    assert unpaired((best_row.passed, best_row.total), (bare.passed, bare.total)) > NOISE_P_VALUE
    assert rows["ReasonCACHE NTP-p256"].passed == rows["Text prefill"].passed


def test_published_gsm8k_verdicts_follow_their_rows():
    top = content("h100-gsm8k")
    for table in top["tables"]:
        table["rows"][0]["result"] = "24 / 24"
    rows = {row.name: row for row in parsed(top).rows}
    best_row, bare = rows["ReasonCACHE NTP-p512"], rows["No cache"]
    assert unpaired((best_row.passed, best_row.total), (bare.passed, bare.total)) < NOISE_P_VALUE
    dearer = parsed(changed("h100-gsm8k", "Text prefill", request_tokens=230.0)).rows
    assert frontier(dearer)["Text prefill"] == "" and frontier(dearer)["ReasonCACHE NTP-p256"] == "Text prefill"


def test_published_gsm8k_request_tokens_cannot_hold_the_prefix():
    """Which is why its rows say that placeholders are not counted."""
    trained = [row for row in run("h100-gsm8k").rows if row.kind == "arm"]
    assert all(row.request_tokens < row.prefix_tokens for row in trained)
    assert {row.placeholders_counted for row in trained} == {"no"}
    assert {row.placeholders_counted for row in run("h100-pi-stabilization").rows} == {"unknown"}


def test_published_pilot_sums_over_its_four_tasks():
    sums = {found.row.name: (found.row.passed, found.row.total) for found in by_arm(run("h100-pi-pilot").rows)}
    assert sums == {
        "Raw skill NTP": (11, 65),
        "AR-PI skill KL": (18, 65),
        "Fixed self-study KL": (22, 65),
        "R-PI KL": (31, 65),
    }


def test_published_pilot_reasoning_beats_self_study_on_two_tasks_and_ties_on_two():
    scores = {(row.task, row.name): row.passed for row in run("h100-pi-pilot").rows}
    gains = {
        task: scores[task, "R-PI KL"] - scores[task, "Fixed self-study KL"]
        for task in dict.fromkeys(t for t, _ in scores)
    }
    assert gains == {
        "exceltable-in-ppt": 7,
        "powerlifting-coef-calc": 0,
        XLSX: 2,
        "weighted-gdp-calc": 0,
    }
    flat = [task for task in gains if len({scored for (one, _), scored in scores.items() if one == task}) == 1]
    assert flat == ["powerlifting-coef-calc", "weighted-gdp-calc"]
    sums = [found.row for found in by_arm(run("h100-pi-pilot").rows)]
    assert best(sums) == "R-PI KL"
    weaker = content("h100-pi-pilot")
    for table in weaker["tables"]:
        table["rows"][11]["result"] = "11 / 19"
    assert best([row for row in parsed(weaker).rows if row.task == XLSX]) == "Fixed self-study KL"


def test_published_pilot_sum_is_withheld_where_a_task_has_no_score():
    top = content("h100-pi-pilot")
    for table in top["tables"]:
        table["rows"][11]["result"] = "0 / 1 invalid"
    aggregate = next(found for found in by_arm(parsed(top).rows) if found.row.name == "R-PI KL")
    assert (aggregate.row.passed, aggregate.row.total, aggregate.row.score) == (17, 46, None)
    assert aggregate.uncounted_tasks == (XLSX,)


def test_published_scale_run_scored_zero_in_every_family():
    rows = run("h100-pi-scale").rows
    assert [(row.passed, row.total) for row in rows] == [(0, 16)] * 6 + [(0, 48)] * 2


def test_published_scale_verdict_follows_its_rows():
    rows = parsed(changed("h100-pi-scale", "CSB-PI", result="1 / 48")).rows
    assert best(rows) == "CSB-PI" and [row.name for row in rows if row.passed] == ["CSB-PI"]


def test_published_retest_helps_on_no_check_of_excel_and_on_one_of_syzkaller():
    scores = {(row.task, row.name): row.passed for row in run("a100-retest").rows}
    for task, gain in (("exceltable-in-ppt", 0), ("syzkaller-ppdev-syzlang", 1)):
        assert scores[task, "Best learned prefix"] - scores[task, "No skill"] == gain


def test_published_best_of_several_arms_is_not_summed_over_tasks():
    """It may be another arm on every task."""
    names = {found.row.name for found in by_arm(run("a100-retest").rows)}
    assert "Best learned prefix" not in names and "No skill" in names
    assert by_arm(run("a100-longhealth").rows) == []


def test_published_sampled_chunks_are_level_with_the_strided_start_in_one_family_of_four():
    rows = [row for row in run("a100-retest").rows if row.task == XLSX]
    bests = {}
    for row in rows:
        if row.score is not None and row.induction:
            found = bests.setdefault(row.induction, {"sci": 0, "strided_rope": 0})
            found[row.initializer] = max(found[row.initializer], row.passed)
    assert bests == {
        "ar_ta": {"sci": 13, "strided_rope": 15},
        "ss": {"sci": 13, "strided_rope": 13},
        "ar_ts": {"sci": 13, "strided_rope": 1},
        "bo": {"sci": 13, "strided_rope": 0},
    }


def test_published_retest_best_row_is_active_reading_with_strided_rope():
    rows = [row for row in run("a100-retest").rows if row.task == XLSX]
    assert best(rows) == "AR-TA + KL, strided-RoPE"
    assert max(row.passed for row in rows if row.score is not None) == 15
    assert next(row.passed for row in rows if row.name == "No skill") == 6
    weaker = parsed(changed("a100-retest", "AR-TA + KL, strided-RoPE", result="12 / 19")).rows
    assert best([row for row in weaker if row.task == XLSX]) == "SS-PI + KL, SCI seed 1"


def test_published_seed_sweep_keeps_invalid_rows_out_of_mean_and_spread():
    found = {spread.recipe: spread for spread in spreads(run("a100-retest").rows) if spread.recipe.endswith("sci")}
    scores = {recipe: [round(19 * score) for score in spread.scores] for recipe, spread in found.items()}
    assert scores == {
        "ss, kl, sci": [13, 13],
        "ar_ta, kl, sci": [1, 13, 3],
        "ar_ts, kl, sci": [13, 13],
        "bo, kl, sci": [13, 11],
    }
    assert [spread.unscored for spread in found.values()] == [1, 0, 1, 1]
    invalid = found["ss, kl, sci"].rows[0]
    assert (invalid.status, invalid.score, invalid.passed, invalid.uncounted_verdicts) == (
        "invalid",
        None,
        None,
        {"invalid": 1},
    )


def test_published_unlabelled_count_stays_as_it_is_with_unknown_status():
    rows = run("cartridge-skillsbench").rows
    full = next(row for row in rows if row.task == XLSX and row.name == "Full skill")
    assert (full.passed, full.total, full.score, full.status, full.uncounted_verdicts) == (0, 1, None, "unknown", None)
    sums = {found.row.name: found.row.score for found in by_arm(rows)}
    assert sums == {"Full skill": None, "Truncated skill": 15 / 65, "No skill": 14 / 65, "Cartridge 50%": 27 / 65}
    whole = changed("cartridge-skillsbench", "Full skill", result="0 / 19")
    for table in whole["tables"]:
        for row, result in zip(table["rows"][::4], ("0 / 8", "9 / 11", "0 / 19", "1 / 27"), strict=True):
            row["result"] = result
    found = {found.row.name: found.row.score for found in by_arm(parsed(whole).rows)}
    assert found["Full skill"] == 10 / 65


def test_published_no_skill_scores_differ_between_runs_so_runs_are_never_pooled():
    runs = read_results(sorted(FOLDER.glob("*.json")))
    rows = [row for found in runs for row in found.rows]
    without = {row.run: row.passed for row in rows if (row.task, row.name) == (XLSX, "No skill")}
    assert without == {"cartridge-skillsbench": 1, "h100-pi-stabilization": 8, "a100-retest": 6}
    assert {found.row.run: found.row.passed for found in by_arm(rows) if found.row.name == "No skill"} == {
        "a100-retest": 6,
        "cartridge-skillsbench": 14,
        "h100-pi-scale": 0,
        "h100-pi-stabilization": 8,
    }
    assert {place.dominated_by for place in pareto([row for row in rows if row.name == "No skill"], ("score",))} == {""}


STEPS = {
    "AR-TA, first-k": (8, 8, 8),
    "AR-TA, SCI seed 0": (None, None, None),
    "AR-TA, SCI seed 1": (16, 16, None),
    "AR-TA, SCI seed 2": (None, None, None),
    "AR-TA, strided-RoPE": (4, 4, 4),
    "SS-PI, first-k": (2, None, None),
    "SS-PI, SCI seed 1": (16, 16, None),
    "SS-PI, SCI seed 2": (4, 4, None),
    "SS-PI, strided-RoPE": (8, 8, None),
}
BESTS = dict(zip(STEPS, (17, 8, 13, 8, 16, 12, 14, 14, 13), strict=True))


def fastest(lines, at):
    """The arms that reached threshold number `at` at the earliest known step."""
    steps = {line.arm: line.steps[at] for line in lines if isinstance(line.steps[at], int)}
    return [arm for arm, step in steps.items() if step == min(steps.values())]


def test_published_steps_to_quality_and_who_is_fastest():
    lines = steps_to_quality(run("a100-convergence").curves, ("12/19", "13/19", "15/19"))
    assert {line.arm: line.steps for line in lines} == STEPS
    active = [line for line in lines if line.arm.startswith("AR-TA")]
    study = [line for line in lines if line.arm.startswith("SS-PI")]
    assert [fastest(active, at) for at in range(3)] == [["AR-TA, strided-RoPE"]] * 3
    assert [fastest(study, at) for at in range(3)] == [["SS-PI, first-k"], ["SS-PI, SCI seed 2"], []]
    assert max(active, key=lambda line: line.best).arm == "AR-TA, first-k"
    assert {line.arm: int(19 * line.best) for line in lines} == BESTS
    assert {line.arm for line in study if line.best == Fraction(14, 19)} == {"SS-PI, SCI seed 1", "SS-PI, SCI seed 2"}


def test_published_steps_at_other_thresholds_are_known_only_where_a_table_tells_them():
    lines = {
        line.arm: line.steps for line in steps_to_quality(run("a100-convergence").curves, ("14/19", "16/19", "17/19"))
    }
    assert lines["AR-TA, first-k"] == (8, 8, 8)
    assert lines["AR-TA, strided-RoPE"] == (4, 4, None)
    assert lines["SS-PI, SCI seed 2"] == (4, None, None)
    assert lines["SS-PI, SCI seed 1"] == ("unknown", None, None)
    assert lines["AR-TA, SCI seed 0"] == (None, None, None)


def test_published_fastest_arm_follows_the_rows():
    slower = changed("a100-convergence", "AR-TA, strided-RoPE", reached={"12 / 19": 24, "13 / 19": 24, "15 / 19": 24})
    lines = steps_to_quality(parsed(slower).curves, ("15/19",))
    assert fastest(lines, 0) == ["AR-TA, first-k"]


def test_published_curve_that_contradicts_its_best_is_refused():
    with pytest.raises(DataError, match="AR-TA, first-k: got step 8 for 15/19, which its best, 14/19, denies"):
        parsed(changed("a100-convergence", "AR-TA, first-k", best="14 / 19"))


def test_published_longhealth_verdicts_are_tie_tie_first_k_sci():
    verdicts = per_document(run("a100-longhealth").rows)
    assert [verdict.task for verdict in verdicts] == ["patient_05", "patient_06", "patient_12", "patient_18"]
    assert [verdict.delta for verdict in verdicts] == [0, 0, -4, 2]
    [printed] = content("a100-longhealth")["tables"]
    assert {verdict.task: verdict.delta for verdict in verdicts} == printed["delta"]
    words = {"tie": "tie", "first": "first-k", "second": "SCI"}
    assert {verdict.task: words[verdict.by_best] for verdict in verdicts} == printed["verdict"]
    assert [verdict.by_best for verdict in verdicts] == ["tie", "tie", "first", "second"]
    assert [verdict.by_mean for verdict in verdicts] == [None] * 4
    assert sum(verdict.delta for verdict in verdicts) == -2
    assert all(verdict.bests is not None and verdict.bests.is_noise for verdict in verdicts)


def test_published_longhealth_verdict_follows_its_rows():
    top = content("a100-longhealth")
    top["tables"][0]["rows"][5]["result"] = "18 / 20"
    verdicts = per_document(parsed(top).rows)
    assert (verdicts[2].delta, verdicts[2].by_best) == (1, "second")
    top["tables"][0]["rows"][5]["result"] = "0 / 1 invalid"
    assert [verdict.task for verdict in per_document(parsed(top).rows)] == ["patient_05", "patient_06", "patient_18"]


def test_published_cartridge_takes_the_bytes_of_its_tokens():
    """354,193,931 bytes for 1,351 tokens of 64 layers: with 8 KV heads of 128 in 16 bits, 256 KiB a token and a header."""
    cartridge = next(row for row in run("cartridge-skillsbench").rows if row.prefix_bytes)
    tensors = cartridge.prefix_tokens * 64 * 8 * 128 * 2 * 2
    assert 0 < cartridge.prefix_bytes - tensors < 50_000
