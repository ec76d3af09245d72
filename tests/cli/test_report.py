"""`numerics report`: the page that it writes, and what it says of the files."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from numerics.cli.report_files import KINDS
from numerics.cli.report_html import MINUS
from tests.cli.conftest import ENTRY, Command
from tests.cli.report_samples import SAMPLES, Page, is_finite, saved, trajectory, with_strings

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)></svg></style>&amp;"
EVERYTHING = tuple(SAMPLES)


def written(numerics: Command, folder: Path, *names: str, **content: Any) -> Page:
    """The page of these samples."""
    out = folder / "report.html"
    found = numerics("report", *saved(folder, *names, **content), "--out", out)
    assert (found.code, found.err) == (0, "")
    return Page(out.read_text(encoding="utf-8"))


def test_every_kind_has_a_sample() -> None:
    assert [kind.name for kind in KINDS] == list(SAMPLES)


# --- The page ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [(), *((name,) for name in SAMPLES), EVERYTHING])
def test_a_page_is_sound_whatever_it_is_made_from(numerics: Command, tmp_path: Path, names: tuple[str, ...]) -> None:
    page = written(numerics, tmp_path, *names)
    ids = list(page.having("id"))
    assert len(ids) == len(set(ids))
    assert {link.removeprefix("#") for link in page.having("href")} <= set(ids)
    labels = {name for value in page.having("aria-labelledby") for name in value.split()}
    assert labels <= set(ids)
    assert [tag for tag, _ in page.elements].count("h1") == 1
    assert {"header", "nav", "main", "title"} <= {tag for tag, _ in page.elements}


def test_a_page_fetches_and_runs_nothing(numerics: Command, tmp_path: Path) -> None:
    page = written(numerics, tmp_path, *EVERYTHING)
    assert not page.tags("script", "link", "img", "iframe", "object", "embed", "form", "base", "image", "use")
    assert not list(page.having("src"))
    assert all(link.startswith("#") for link in page.having("href"))
    assert not [name for _, found in page.elements for name in found if name.startswith("on") or name == "style"]
    (style,) = (text for tag, text in page.texts if tag == "style")
    assert not re.search(r"url\(|@import|http", style)
    (policy,) = (found["content"] or "" for found in page.tags("meta") if found.get("http-equiv"))
    assert policy.startswith("default-src 'none'; style-src 'sha256-")


@pytest.mark.parametrize("name", SAMPLES)
def test_markup_in_a_file_is_shown_and_does_not_act(numerics: Command, tmp_path: Path, name: str) -> None:
    tame = written(numerics, tmp_path, name)
    hostile = with_strings(SAMPLES[name](), lambda text: text + HOSTILE)
    page = written(numerics, tmp_path, **{name: hostile})
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in tame.elements} | {"h3", "ul", "li", "strong", "div"}
    assert not [name for _, found in page.elements for name in found if name.startswith("on")]
    assert HOSTILE in page.text


def test_markup_in_a_title_and_a_file_name_is_shown(numerics: Command, tmp_path: Path) -> None:
    (path,) = saved(tmp_path, "parity")
    path = path.rename(tmp_path / "<b>&.json")
    out = tmp_path / "report.html"
    assert numerics("report", path, "--out", out, "--title", "<i>Release</i>").code == 0
    page = Page(out.read_text(encoding="utf-8"))
    assert not page.tags("b", "i")
    assert "<i>Release</i>" in page.text
    assert "<b>&.json" in page.text


def test_a_lone_surrogate_is_written_all_the_same(numerics: Command, tmp_path: Path) -> None:
    found = with_strings(SAMPLES["parity"](), lambda text: text + "\ud800")
    assert "vllm_cuda?" in written(numerics, tmp_path, parity=found).text


# --- Charts and tables ------------------------------------------------------------------------------------------------


def test_each_chart_has_a_title_a_description_and_a_table(numerics: Command, tmp_path: Path) -> None:
    page = written(numerics, tmp_path, *EVERYTHING)
    charts = [found for found in page.tags("svg") if found.get("role") == "img"]
    assert len(charts) == 4  # speed, precision, trajectory, models
    ids = {found["id"]: tag for tag, found in page.elements if "id" in found}
    for chart in charts:
        assert [ids[name] for name in (chart["aria-labelledby"] or "").split()] == ["title", "desc"]
    words = [text for tag, text in page.texts if tag == "desc"]
    assert all(re.search(r"\d.*The table below holds the numbers\.$", text) for text in words)
    assert "2 bars from 0: " in words[0]
    assert "from 1.050 to 1.066; a line at 1.0 is the copy" in words[0]


def test_bars_begin_at_0_and_are_as_long_as_their_values(numerics: Command, tmp_path: Path) -> None:
    page = written(numerics, tmp_path, "bench")
    bars = [found for found in page.tags("rect") if "bar" in (found["class"] or "")]
    assert [bar["x"] for bar in bars] == ["0", "0"]
    lengths = [float((bar["width"] or "").removesuffix("%")) for bar in bars]
    assert lengths[1] / lengths[0] == pytest.approx(85.25 / 84, abs=1e-4)  # of three decimals in each
    (one,) = (found for found in page.tags("line") if found["class"] == "one")
    assert float((one["x1"] or "").removesuffix("%")) * 84 / 80 == pytest.approx(lengths[0], abs=1e-2)
    assert [bar["class"] for bar in bars] == ["bar open", "bar"]


def test_infinity_is_drawn_as_such_and_never_as_a_number(numerics: Command, tmp_path: Path) -> None:
    page = written(numerics, tmp_path, "trajectory")
    lines = {found["class"]: found["points"] or "" for found in page.tags("polyline")}
    heights = {float(point.split(",")[1]) for point in lines["line c0"].split()}
    assert len(heights) == 1  # vllm_cuda, equal in every step
    (band,) = (found for found in page.tags("rect") if found["class"] == "infinite")
    assert float(band["y"] or 0) < heights.pop() < float(band["y"] or 0) + float(band["height"] or 0)
    assert "(∞ in every step)" in page.text
    assert all(is_finite(place) for points in lines.values() for place in re.split("[ ,]", points))


@pytest.mark.parametrize("value", ["inf", "nan", "-inf", 0.0, 1e300, -5.0])
def test_a_chart_can_be_drawn_of_any_number(numerics: Command, tmp_path: Path, value: float | str) -> None:
    records = [each | ({"psnr_db": value} if each["kind"] == "step" else {}) for each in trajectory(1)]
    page = written(numerics, tmp_path, trajectory=records)
    for name in ("x", "y", "x1", "y1", "width", "height"):
        assert all(is_finite(place) for place in page.having(name))


def test_tables_have_captions_and_headings_and_numbers_at_the_right(numerics: Command, tmp_path: Path) -> None:
    page = written(numerics, tmp_path, *EVERYTHING)
    assert len(page.tags("table")) == len(page.tags("caption")) == len(page.tags("thead"))
    assert {found.get("scope") for found in page.tags("th")} == {"col", "row", "rowgroup"}
    boxes = [found for found in page.tags("div") if found.get("class") == "scroll"]
    assert len(boxes) == len(page.tags("table"))
    assert all(box["tabindex"] == "0" and box["role"] == "region" for box in boxes)
    assert [found for found in page.tags("td") if found.get("class") == "n"]


# --- What it says -----------------------------------------------------------------------------------------------------


def test_a_difference_is_said_in_words_at_the_top(numerics: Command, tmp_path: Path) -> None:
    (record,) = SAMPLES["parity"]()
    page = written(numerics, tmp_path, parity=[record | {"elements_differing": 12}])
    assert "wrong: 12 of 1,019,215,872 elements differ" in page.text
    assert "✗" in page.text


def test_what_verify_compared_stands_by_reference_and_says_what_proves_no_claim(
    numerics: Command, tmp_path: Path
) -> None:
    page = written(numerics, tmp_path, "verify")
    assert "golden, eager ✓ holds: 0 of 1,280" in page.text
    assert "eager, kernel kernel as its reference: no claim ✓ holds: 0 of 999" in page.text
    assert "vllm vllm is not installed vllm_cuda_128" in page.text
    assert "holds: 0 of 1,280 elements differ" in page.text
    assert "NVIDIA H200, torch 2.11.0+cu130" in page.text


def test_a_preset_that_failed_is_wrong_though_no_element_differs(numerics: Command, tmp_path: Path) -> None:
    (found,) = SAMPLES["verify"]()
    page = written(numerics, tmp_path, verify=[found | {"status": "differs", "errors": ["rms_norm: it broke"]}])
    assert "wrong: 0 of 1,280 elements differ, 1 preset of verify wrong" in page.text
    assert "vllm_cuda_128: rms_norm: it broke" in page.text


def test_first_differences_show_both_values_or_shapes(numerics: Command, tmp_path: Path) -> None:
    (found,) = SAMPLES["verify"]()
    first = {"op": "rms_norm", "case": "5x128", "output": "out", "index": [1, 2], "provider": 0.5, "computed": "nan"}
    page = written(numerics, tmp_path, verify=[found | {"status": "differs", "differing": 1, "differences": [first]}])
    assert "rms_norm 5x128 out [1, 2] 0.5 nan" in page.text.replace("'", "")


def test_an_op_that_ran_its_reference_proves_nothing(numerics: Command, tmp_path: Path) -> None:
    (record,) = SAMPLES["parity"]()
    page = written(numerics, tmp_path, parity=[record | {"unfused": ["no Triton"]}])
    assert "wrong: 0 of 1,019,215,872 elements differ, 1 comparison not fused" in page.text
    assert "so no kernel was tested: no Triton" in page.text


def test_an_exact_preset_that_differs_makes_speed_wrong(numerics: Command, tmp_path: Path) -> None:
    fast, exact = SAMPLES["bench"]()
    assert "wrong: 1 arm wrong" in written(numerics, tmp_path, bench=[fast, exact | {"elements_differing": 3}]).text


def test_a_chain_that_does_not_repeat_itself_makes_a_trajectory_wrong(numerics: Command, tmp_path: Path) -> None:
    records = [each | ({"elements_differing": 1} if each.get("preset") == "control" else {}) for each in trajectory()]
    page = written(numerics, tmp_path, trajectory=records)
    assert "wrong: control should be equal in every step and is not" in page.text
    assert "The chain run twice: ✗ wrong: differs from step 1 on" in page.text


def test_each_section_says_where_it_comes_from(numerics: Command, tmp_path: Path) -> None:
    page = written(numerics, tmp_path, "bench", "parity")
    said = "2026-11-30 21:34:22 UTC NVIDIA H200, torch 2.11.0+cu130, triton 3.6.0"
    assert re.search(rf"bench\.json [0-9a-f]{{12}} {re.escape(said)}", page.text)
    assert re.search(r"parity\.json [0-9a-f]{12} not recorded NVIDIA H200", page.text)
    assert "Several machines" not in page.text


def test_a_section_without_a_file_says_how_to_make_one(numerics: Command, tmp_path: Path) -> None:
    page = written(numerics, tmp_path, "parity")
    assert "No file was given. To make one: numerics bench --out bench.json" in page.text


def test_rows_of_several_machines_are_said_to_be_so(numerics: Command, tmp_path: Path) -> None:
    other = [each | {"gpu": "NVIDIA B200", "torch": "2.13.0"} for each in SAMPLES["bench"]()]
    page = written(numerics, tmp_path, "bench", later=other)
    assert "Several machines." in page.text
    assert "gpu: NVIDIA H200, NVIDIA B200 torch: 2.11.0+cu130, 2.13.0" in page.text
    assert len([found for found in page.tags("svg") if found.get("role") == "img"]) == 2


def test_a_setting_shows_who_set_it_and_what_it_shadows(numerics: Command, tmp_path: Path) -> None:
    page = written(numerics, tmp_path, "settings")
    assert "flux2 vllm_cuda user, my.toml: ops.fused_rms_norm fast (package) 0 vllm_c >=0.20,<0.34" in page.text
    assert "1 setting, 1 set by a user, the environment or a call" in page.text
    assert "on cuda:9" in page.text


def test_a_model_with_other_bytes_is_wrong_and_one_that_was_not_judged_is_not(
    numerics: Command, tmp_path: Path
) -> None:
    flux, z_image = SAMPLES["models"]()
    page = written(numerics, tmp_path, models=[flux | {"verdict": "bytes differ"}, z_image])
    assert "wrong: 1 case wrong; every byte equal in 0 of 1 case; 1 case not judged" in page.text
    page = written(numerics, tmp_path, models=[flux | {"verdict": "not judged on a CPU (bytes differ)"}, z_image])
    assert "● 2 cases not judged; fused 1.11 to 1.11 times as fast" in page.text
    assert "z_image, batch 1: no weights" in page.text


def test_precision_says_how_many_values_are_closer_to_the_truth(numerics: Command, tmp_path: Path) -> None:
    page = written(numerics, tmp_path, "precision")
    assert "vllm_cuda 1.2000e-03 1.20e-03 5.00e-01 -1.00e-06 1,000 10 980 10" in page.text.replace(MINUS, "-")
    assert "vllm_cuda and 1 equal preset" in page.text
    assert "quack : width 5376 is not 128" in page.text


def test_bisect_says_what_explains_the_difference(numerics: Command, tmp_path: Path) -> None:
    page = written(numerics, tmp_path, "bisect")
    assert "mine:norm: explained by rms_norm_reduction of fused_rms_norm (any other model)" in page.text
    assert "contraction crashed" in page.text


def test_a_search_without_a_verdict_is_not_finished(numerics: Command, tmp_path: Path) -> None:
    page = written(numerics, tmp_path, bisect=SAMPLES["bisect"]()[:-1])
    assert "mine:norm: not finished" in page.text


# --- The command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [(), EVERYTHING])
def test_neither_torch_nor_triton_is_imported(tmp_path: Path, names: tuple[str, ...]) -> None:
    arguments = ["report", *map(str, saved(tmp_path, *names)), "--out", str(tmp_path / "report.html")]
    code = f"import sys; sys.modules['torch'] = sys.modules['triton'] = None; sys.argv[1:] = {arguments!r}; {ENTRY}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_files_it_reports_the_settings_in_force_and_this_machine(numerics: Command, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    found = numerics("report", "--out", out, "--json", VLLM_OMNI_FUSED_RMS_NORM_NUMERICS="vllm_cuda")
    assert [each["kind"] for each in found.json["files"]] == ["settings", "environment"]
    text = Page(out.read_text(encoding="utf-8")).text
    assert "environment, VLLM_OMNI_FUSED_RMS_NORM_NUMERICS" in text
    assert "What the machine runs" in text


def test_json_says_what_was_found_in_which_file(numerics: Command, tmp_path: Path) -> None:
    paths = saved(tmp_path, "bench", "trajectory")
    found = numerics("report", *paths, "--out", tmp_path / "report.html", "--json").json
    bench, trajectory = found["files"]
    assert (bench["file"], bench["kind"], bench["records"]) == ("bench.json", "bench", 2)
    assert bench["machines"] == [{"gpu": "NVIDIA H200", "torch": "2.11.0+cu130", "triton": "3.6.0"}]
    assert bench["when"] == ["2026-11-30T21:34:22+00:00"]
    assert trajectory["kind"] == "trajectory"
    assert "parity" in [each["section"] for each in found["missing"]]


def test_measured_files_of_the_repository_make_a_page(numerics: Command, tmp_path: Path, root: Path) -> None:
    paths = sorted((root / "benchmarks" / "results").glob("*.json"))
    out = tmp_path / "report.html"
    assert numerics("report", *paths, "--out", out).code == 0
    page = Page(out.read_text(encoding="utf-8"))
    kinds = ("h200_parity.json", "h200_verify.json", "h200_verify_vllm.json")
    elements = sum(each["elements"] for name in kinds for each in json.loads((paths[0].parent / name).read_text()))
    assert f"0 of {elements:,} elements differ" in page.text


@pytest.mark.parametrize("name", ["report.json", "report"])
def test_a_page_is_written_to_no_other_kind_of_file(numerics: Command, tmp_path: Path, name: str) -> None:
    found = numerics("report", "--out", tmp_path / name)
    assert found.code == 2
    assert "legal endings: .html, .htm" in found.err
    assert not (tmp_path / name).exists()


def test_a_page_is_never_written_over_what_it_is_made_from(numerics: Command, tmp_path: Path) -> None:
    path = saved(tmp_path, "parity")[0].rename(tmp_path / "parity.html")
    before = path.read_bytes()
    found = numerics("report", path, "--out", path)
    assert (found.code, path.read_bytes()) == (2, before)
    assert "is among the files to read" in found.err


def test_a_page_that_cannot_be_written_is_a_message(numerics: Command, tmp_path: Path) -> None:
    found = numerics("report", *saved(tmp_path, "parity"), "--out", tmp_path / "nowhere" / "report.html")
    assert found.code == 2
    assert "cannot be written: no such file" in found.err
