"""The documentation is true: its snippets run, what it shows is what comes out, its links lead somewhere.

Every page gets an empty folder with small images (`make_files`), which is where a reader's own files would be. Python
blocks of a page share one namespace. Lines of `sh` blocks that start with `inverseflow` are run, with training cut
short; `# exit code 2` behind one says how it must end. A `yaml` block with a title is written to a file of that name.
A `text` block after a snippet is its output: the lines must appear, in order, where `...` stands for anything.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
import yaml
from typer.testing import CliRunner

import inverseflow as ivf
from conftest import ROOT
from inverseflow import generator, imaging, recipe
from inverseflow.cells import denoiser as cell_denoiser
from inverseflow.cli import app
from inverseflow.methods import InverseConsistency
from inverseflow.nets import NetSpec, count_parameters
from inverseflow.optimizer import RATES
from inverseflow.tiling import TILE_OVERLAP

DOCS = ROOT / "docs"
PAGES = sorted(page.name for page in DOCS.glob("*.md") if page.name != "architecture.md")
TRUTH = ivf.PoissonGaussian(gain=2.0, sigma=3.0, offset=100.0)
CORRELATED = ivf.CorrelatedGaussian.cosine(12.0, a=1.0)
LOOKS = 5.0
INSTALLING = (
    "pip install .",
    "pip install '.[zarr]'",
    "pip install '.[bioio]'",
)


@dataclass(frozen=True)
class Block:
    language: str
    title: str
    code: str
    line: int


def blocks(text: str) -> list[Block]:
    found = []
    for match in re.finditer(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', text, flags=re.DOTALL | re.MULTILINE):
        line = text[: match.start(3)].count("\n")
        found.append(Block(match[1], match[2] or "", match[3], line))
    return found


def page_text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


# --- what a reader's folder would hold


def scene(*shape: int) -> np.ndarray:
    y, x = np.mgrid[: shape[-2], : shape[-1]]
    return np.broadcast_to(600 + 400 * np.sin(x / 9) * np.cos(y / 11), shape).astype(np.float32)


def noisy(clean: np.ndarray, seed: int, noise: ivf.Noise = TRUTH) -> np.ndarray:
    batch = torch.from_numpy(clean.copy()).reshape(-1, 1, *clean.shape[-2:])
    x1 = noise.sample(batch, generator=torch.Generator().manual_seed(seed))
    return x1.numpy().reshape(clean.shape).round().clip(0, 65535).astype(np.uint16)


def make_files() -> None:
    sizes = {"PhysicalSizeX": 0.1, "PhysicalSizeXUnit": "µm", "PhysicalSizeY": 0.1, "PhysicalSizeYUnit": "µm"}
    depth = {"PhysicalSizeZ": 0.9, "PhysicalSizeZUnit": "µm"}
    names = {"Channel": {"Name": ["DAPI", "GFP"]}}
    tifffile.imwrite("cells.ome.tif", noisy(scene(256, 240), 0), ome=True, metadata={"axes": "YX", **sizes})
    embryo = noisy(scene(2, 2, 3, 40, 36), 1)
    tifffile.imwrite("embryo.ome.tif", embryo, ome=True, metadata={"axes": "TCZYX", **sizes, **depth, **names})
    tifffile.imwrite("stack.tif", noisy(scene(12, 64, 60), 2))  # says nothing of its axes
    volume = noisy(scene(9, 24, 20), 3)
    calibrated: Any = {"resolution": (1.0, 1.0), "metadata": {"axes": "ZYX", "spacing": 2.0, "unit": "um"}}
    tifffile.imwrite("volume.tif", volume, imagej=True, **calibrated)
    for day in (1, 2):
        Path(f"day{day}").mkdir()
        for number in range(2):
            tifffile.imwrite(f"day{day}/{number}.tif", noisy(scene(40, 36 + number), number))
    series: Any = {"ome": True, "metadata": {"axes": "TYX"}}
    tifffile.imwrite("dark.tif", noisy(np.full((8, 128, 128), 100, np.float32), 4), **series)
    tifffile.imwrite("repeats.tif", noisy(scene(2, 512, 512), 5), **series)
    tifffile.imwrite("widefield.tif", noisy(scene(2, 512, 512), 6, CORRELATED), **series)
    flat = np.full((256, 256), 5000, np.float32)
    tifffile.imwrite("speckle_flat.tif", noisy(flat, 7, ivf.Gamma(LOOKS)), ome=True, metadata={"axes": "YX"})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # images so small are slower with more
    monkeypatch.chdir(tmp_path)
    short = {name: replace(settings, steps=2, batch_size=2) for name, settings in recipe.PRESETS.items()}
    monkeypatch.setattr(recipe, "PRESETS", short)
    monkeypatch.setattr(generator, "PRESETS", short)
    monkeypatch.setattr(cell_denoiser, "CELLS", replace(cell_denoiser.CELLS, steps=2))
    make_files()
    yield tmp_path
    torch.set_num_threads(threads)


# --- running a page


def run_page(name: str) -> dict[str, Any]:
    """Every snippet of the page in order; gives the names that its Python blocks made."""
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    output = ""
    for block in blocks(page_text(name)):
        where = f"{name}, line {block.line}"
        if block.language == "python":
            output = run_python(block, name, namespace)
        elif block.language == "sh":
            output = "".join(run_line(line, where) for line in block.code.splitlines() if line.strip())
        elif block.language == "yaml":
            Path(block.title).write_text(block.code, encoding="utf-8")
            output = ""
        elif output:
            shown_in(output, block.code, where)
            output = ""
    return namespace


def run_python(block: Block, name: str, namespace: dict[str, Any]) -> str:
    printed = io.StringIO()
    code = compile("\n" * block.line + block.code, str(DOCS / name), "exec")  # so that errors name the page's line
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    return printed.getvalue()


def run_line(line: str, where: str) -> str:
    words = shlex.split(line, comments=True)
    if words[0] != "inverseflow":
        assert shlex.join(words) in [shlex.join(shlex.split(known)) for known in INSTALLING], f"{where}: {line}"
        return ""
    wanted = re.search(r"# exit code (\d+)", line)
    quick = ["--steps", "2", "--device", "cpu"] if words[1] in ("train", "denoise") else []
    quick += ["--no-audit"] if words[1] == "denoise" else []  # two steps teach nothing, and the audit would say so
    result = CliRunner().invoke(app, [*words[1:], *quick])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == int(wanted[1] if wanted else 0), f"{where}: {line}\n{result.output}"
    return result.output


def shown_in(output: str, shown: str, where: str) -> None:
    rest = output
    for line in (line.rstrip() for line in shown.splitlines()):
        if not line or line == "...":
            continue
        pattern = r"^" + ".*".join(re.escape(part) for part in line.split("...")) + r"\s*?$"
        match = re.search(pattern, rest, flags=re.MULTILINE)
        assert match, f"{where}: the page shows\n{line}\nwhich does not come out here:\n{rest}"
        rest = rest[match.end() :]


@pytest.mark.parametrize("name", [page for page in PAGES if page != "noise.md"])
def test_snippets_run(name: str, folder: Path) -> None:
    run_page(name)


def test_measuring_noise_gives_the_truth(folder: Path) -> None:
    """The page that says how to measure noise: what its snippets find is what the files were made with."""
    found = run_page("noise.md")
    assert found["offset"] == pytest.approx(TRUTH.offset, abs=0.1)
    assert found["sigma"] == pytest.approx(TRUTH.sigma, rel=0.03)
    assert found["gain"] == pytest.approx(TRUTH.gain, rel=0.03)
    signal = torch.linspace(250, 1000, 10)[:, None]
    assert torch.allclose(found["same"].std(signal), TRUTH.std(signal), rtol=0.02)
    assert abs(found["along_x"]) < 0.02
    assert abs(found["along_y"]) < 0.02
    measured, true = found["correlated"], CORRELATED
    assert measured.sigma == pytest.approx(true.sigma, rel=0.02)
    assert float((measured.autocovariance(4) - true.autocovariance(4)).abs().max()) < 0.03
    assert found["k"] == pytest.approx(LOOKS, rel=0.03)


# --- links, navigation, figures, the site


def configuration() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    return loaded


def anchors(name: str) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", page_text(name), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def test_every_page_is_in_the_navigation() -> None:
    listed = [next(iter(entry.values())) for entry in configuration()["nav"]]
    assert sorted(listed) == sorted(page.name for page in DOCS.glob("*.md"))


@pytest.mark.parametrize("name", PAGES)
def test_links_and_pictures_lead_somewhere(name: str) -> None:
    text = re.sub(r"^```.*?^```$", "", page_text(name), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert not target.startswith("http"), f"{name} depends on {target}"
        path, _, anchor = target.partition("#")
        assert not path or (DOCS / path).exists(), f"{name} links to {target}"
        assert not anchor or anchor in anchors(path or name), f"{name} links to {target}"


@pytest.mark.parametrize("name", PAGES)
def test_every_block_says_its_language(name: str) -> None:
    text = page_text(name)
    assert text.count("\n```") == 2 * len(blocks(text))
    for block in blocks(text):
        assert block.language in ("python", "sh", "yaml", "text"), f"{name}, line {block.line}"
        assert block.language != "yaml" or block.title, f"{name}, line {block.line}"


def test_reference_has_every_public_name() -> None:
    stub = (ROOT / "src/inverseflow/__init__.pyi").read_text()
    public = re.findall(r"^from \S+ import \w+ as (\w+)$", stub, flags=re.MULTILINE)
    described = re.findall(r"^::: inverseflow\.(\w+)$", page_text("python.md"), flags=re.MULTILINE)
    assert sorted(described) == sorted(public)


def test_presets_are_those_of_the_code() -> None:
    text = page_text("presets.md")
    for name, settings in recipe.PRESETS.items():
        steps = settings.steps
        assert f"| `{name}` | {steps} + {int(recipe.MEAN_SHARE[name] * steps)} | {settings.batch_size} |" in text
    assert f"learning rate is {RATES['muon']:g}, and {RATES['muon'] * InverseConsistency.pace:g} for the" in text
    assert f"have AdamW at {RATES['adamw']:g}." in text
    sizes = [
        count_parameters(NetSpec("UNet", channels=1, dims=dims, **net).build(0)) / 1e6
        for dims in (2, 3)
        for net in (recipe.SMALL_NET, {})
    ]
    assert [f"{size:.2g}" for size in sizes] == ["0.51", "7.7", "1.3", "21"]
    assert recipe.FEW_PIXELS == 4_000_000


def test_limits_are_those_of_the_code() -> None:
    text = " ".join(page_text("formats.md").split())
    assert f"fewer than {imaging.MIN_VOLUME} slices" in text
    assert f"more than {imaging.MAX_ANISOTROPY:.0f} pixels apart" in text
    assert f"overlap by {TILE_OVERLAP} pixels" in text
    assert f"more than {imaging.IN_MEMORY // 2**20} MB" in text
    assert f"about {imaging.TRAIN_PIXELS / 1e6:.0f} million values" in text


def test_figures_are_those_that_are_stored() -> None:
    results = {path.stem: json.loads(path.read_text()) for path in (ROOT / "benchmarks/results").glob("*.json")}
    demo, text = results["demo"], page_text("presets.md")
    row = f"| 2 CPU cores | {demo['seconds']:.0f} | {demo['input_psnr']:.2f} dB | {demo['output_psnr']:.2f} dB |"
    assert row in text
    rates = " ".join(page_text("audit.md").split())
    for kind in ("with", "alone"):
        share = results["audit_rates"][kind]
        assert f"{100 * share['false_alarms']:.1f} %" in rates
        assert f"{100 * share['misses']:.1f} %" in rates
    from benchmarks import audit_table, cells_table, posterior_table, scaling_table

    for line in (*audit_table.simulated(), *audit_table.real()):
        assert line in page_text("audit.md")
    soft = results["audit_real"]["WideField_BPAE_G"]
    for kind in ("estimated", "repeats"):
        assert f"{soft[kind]['psnr']:.2f} dB with th" in " ".join(page_text("noise.md").split())
    for run in results["presets"]["rows"]:
        steps = " + ".join(str(run["steps"][stage]) for stage in ("flow", "mean") if stage in run["steps"])
        assert f"| `{run['preset']}` | {run['end']} | {steps} | {run['flow']:.2f} dB | {run['mean']:.2f} dB |" in text
    for line in (*scaling_table.constants(), *scaling_table.petabyte()):
        assert line in page_text("scaling.md")
    for line in (*posterior_table.measured(), *posterior_table.blends()):
        assert line in page_text("uncertainty.md")
    for line in (*cells_table.by_set(), *cells_table.by_simulation(), *cells_table.by_spikes()):
        assert line in page_text("cells.md")
    kills, endurance = results["soak_kills"], results["soak_endurance"]
    counts = [kills[name] for name in ("corrupt_outputs", "lost_inputs", "failures_to_go_on")]
    row = "{} corrupt outputs, {} lost inputs, {} failures to go on".format(*counts)
    assert f"| {kills['kills']} kills over train" in page_text("reliability.md")
    assert row in page_text("reliability.md")
    ends = [endurance[name] for name in ("open_files", "system_threads")]
    row = "memory {:+.2f} %, open files {:g} to {:g}, threads {:g} to {:g}".format(
        100 * endurance["growth"], *ends[0], *ends[1]
    )
    assert row in page_text("reliability.md")
    fuzz, guided = (results[name] for name in ("soak_fuzz", "soak_guided"))
    bad = [fuzz["problems"][name] for name in ("traceback", "hang", "memory")]
    row = f"{fuzz['inputs']:,} damaged files of {len(fuzz['by_file'])} kinds | "
    assert row + "{} tracebacks, {} hangs, {} over a gigabyte".format(*bad) in page_text("reliability.md")
    assert fuzz["largest_memory_mb"] < 1024
    ended = all(kind["ended well"] for kind in guided["by_kind"].values())
    row = f"{guided['inputs']:,} files that a fuzzer made to reach new code | {'no' if ended else 'an'} exception"
    assert row in page_text("reliability.md")
    many = results["many_cells"]
    assert f"{many['seconds']:.0f} s and {many['peak_memory_gb']:.1f} GB" in page_text("cells.md")
    method = " ".join(page_text("method.md").split())
    assert f"{demo['flow_psnr']:.2f} dB and the mean {demo['output_psnr']:.2f} dB" in method
    for name in ("gaussian25", "correlated", "jacobi", "rgb", "gaussian25_icm"):
        score, seconds = results[name]["scores"]["bsds500"], results[name]["seconds"]["in_all"]
        scores = " | ".join(f"{score[key]['psnr']:.2f} dB" for key in ("input", "map", "mean"))
        assert f"| `{results[name]['preset']}` | {seconds:.0f} | {scores} |" in text, name


def test_site_builds_without_a_warning_and_needs_no_network(tmp_path: Path) -> None:
    for module in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(module, reason=f"the site needs {module}: pip install '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        html = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|link|img|iframe)[^>]*?(?:src|href)="([^"]+)"', html)
        assert not [url for url in loaded if re.match(r"(https?:)?//", url)], page
