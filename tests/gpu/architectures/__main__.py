"""All architectures, without pytest: python -m tests.gpu.architectures DIRECTORY [--only a,b].

Makes the models that aren't there, and compares each in its own process. Ends with 1 if any is
wrong. A second call goes on with what the first has left.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[3]
SERVED = {  # where what is computed depends on it: below and above windows and original contexts
    name: (512, 1024, 4096)
    for name in (
        *("llama-yarn", "llama-yarn-mscale", "qwen2-yarn", "phi3-longrope", "phi4-mini"),
        *("mistral-window", "qwen2-window", "starcoder2-window", "phi3-window", "gemma2"),
        *("gemma3", "cohere2", "cohere2-layers", "qwen2vl", "llama3"),
    )
}
EXPERTS = ("mixtral", "qwen3moe", "qwen3moe-128", "dbrx")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", help="names, with commas between them")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=8, help="models at once")
    parser.add_argument("--seconds", type=float, default=400.0, help="after which none is begun")
    parser.add_argument("--no-twins", action="store_true", help="no EXL2")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="2")
    if args.one:
        print(json.dumps(compare_one(args.directory, args.one, args.device)))
        return
    args.directory.mkdir(parents=True, exist_ok=True)
    names = _names(args.only, not args.no_twins)
    begun, wrong = time.monotonic(), []

    def child(name: str) -> tuple[str, dict[str, object]]:
        result = args.directory / f"{name}.result.json"
        if result.is_file():
            return name, json.loads(result.read_text())
        if time.monotonic() - begun > args.seconds:
            return name, {"wrong": ["not begun: no time left"]}
        command = [sys.executable, "-m", "tests.gpu.architectures", str(args.directory)]
        command += ["--one", name, "--device", args.device]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
        except subprocess.TimeoutExpired:
            return name, {"wrong": ["not done in 200 s"]}
        (args.directory / f"{name}.log").write_text(done.stdout + done.stderr)
        if done.returncode:
            return name, {"wrong": [f"ended with {done.returncode}: {done.stderr[-400:]}"]}
        found = json.loads(done.stdout.strip().splitlines()[-1])
        result.write_text(json.dumps(found))
        return name, found

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for name, found in pool.map(child, names):
            print(_line(name, found), flush=True)
            if found["wrong"]:
                wrong.append(name)
    took = time.monotonic() - begun
    print(f"{len(names)} models in {took:.0f} s, wrong: {' '.join(wrong) or 'none'}")
    sys.exit(bool(wrong))


def compare_one(directory: Path, name: str, device: str) -> dict[str, object]:
    """Makes the model where it isn't there."""
    if device == "cpu":
        from switchyard.engine.backends.exl2 import cpu

        cpu.install()
    from switchyard.engine.errors import ModelError
    from tests.gpu.architectures.compare import compare, faults
    from tests.gpu.architectures.make import TWIN, make, make_twin
    from tests.gpu.architectures.specs import SPECS

    plain = name.removesuffix(TWIN)
    own = directory / name / plain  # its own, though two processes make it
    if not own.is_dir():
        make(plain, own, ROOT / "models" / "demo")
    path = own
    if name != plain:
        path = directory / name / name
        if not path.is_dir():
            make_twin(own, path)
    spec = SPECS[plain]
    runs: list[dict[str, object]] = []
    wrong: list[str] = []
    for served in SERVED.get(name, (None,)):
        try:
            found = compare(path, device, served, served is not None, plain in EXPERTS)
        except ModelError as refusal:
            if spec.refusal is None or spec.refusal not in str(refusal):
                wrong.append(f"refused: {refusal}")
            return {"runs": runs, "refused": str(refusal), "wrong": wrong}
        wrong += [f"{found['served']}: {fault}" for fault in faults(found)]
        runs.append({**found, "gaps": {k: max(v, default=0) for k, v in found["gaps"].items()}})
    if spec.refusal is not None:
        wrong.append("was not refused")
    return {"runs": runs, "wrong": wrong}


def _names(only: str | None, has_twins: bool) -> list[str]:
    from tests.gpu.architectures.specs import SPECS

    if only:
        return only.split(",")
    twins = [f"{n}-exl2" for n, spec in SPECS.items() if spec.has_twin and spec.refusal is None]
    return [*SPECS, *(twins if has_twins else [])]


def _line(name: str, found: dict) -> str:
    verdict = "WRONG" if found["wrong"] else "refused" if "refused" in found else "ok"
    parts = [f"{name:22} {verdict:8}"]
    for one in found.get("runs", []):
        errors = [f"{one[key]:.4f}" for key in ("at 100", "at the end") if key in one]
        graphs = "graphs" if one["graphs"] else "no graphs"
        parts.append(
            f"{one['served']}: {' '.join(errors)} gap {max(one['gaps'].values())}"
            f" noise {one.get('noise', 0.0):.4f} {graphs}"
        )
    return "  ".join([*parts, *found["wrong"]])


if __name__ == "__main__":
    main()
