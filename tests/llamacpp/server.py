"""llama-server's arguments to this server's settings, and gunicorn in this process's place.

An argument that nothing here stands for ends it, with a line that names it: a test that needs it
fails soon.
"""

import argparse
import hashlib
import json
import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent.parent.parent
MODEL = ROOT / ".venv" / "llamacpp" / "model"
PAGE = 256
# Whose text is a matter of chance here as there.
STAND_INS = ("ggml-org/test-model-stories260K", "ggml-org/stories15M_MOE")
# About the device, or about what is always as it would be with it.
TAKEN = {
    **dict.fromkeys(("--threads", "--n-gpu-layers", "--ubatch-size", "-fa", "-ctk", "-ctv"), 1),
    **dict.fromkeys(("--temp", "--seed"), 1),  # the plugin writes them into the requests
    **dict.fromkeys(("--offline", "--cont-batching", "--slots", "--no-slots", "--metrics"), 0),
    **dict.fromkeys(("--jinja", "--no-jinja", "--no-ui", "--no-mmproj", "--verbose"), 0),
    **dict.fromkeys(("--swa-full", "--no-cache-idle-slots", "--backend_sampling"), 0),
}


def parse(arguments):
    parser = argparse.ArgumentParser(prog="llama-server", allow_abbrev=False)
    for name, count in TAKEN.items():
        extra = {} if count else {"action": "store_true"}
        parser.add_argument(name, dest="taken", **extra)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--hf-repo")
    parser.add_argument("--alias", default="")
    parser.add_argument("--ctx-size", type=int, default=4096)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--kv-unified", action="store_true")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--n-predict", type=int)
    parser.add_argument("--api-key")
    parser.add_argument("--chat-template", type=template)
    parser.add_argument("--chat-template-file", type=template_of, dest="chat_template")
    parser.add_argument("--reasoning-format", choices=["deepseek"])
    parser.add_argument("--reasoning", choices=["auto"])
    return parser.parse_args(arguments)


def template(text):
    """One of llama-server's own names, or the template itself."""
    if text in ("chatml", "llama3"):
        return None  # the model's
    if " " not in text:
        raise argparse.ArgumentTypeError(f"there is no template {text} here")
    return text


def template_of(path):
    return pathlib.Path(path).read_text()


def with_template(directory, text):
    """A copy of the model, of hard links except for what says its chat template."""
    path = directory / "model"
    path.mkdir()
    for file in MODEL.iterdir():
        (path / file.name).hardlink_to(file)
    config = json.loads((MODEL / "tokenizer_config.json").read_text())
    config["chat_template"] = text
    (path / "tokenizer_config.json").unlink()
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def settings(args, directory):
    names = [name.strip() for name in args.alias.split(",") if name.strip()] or ["model"]
    slots = max(1, args.parallel)
    context = args.ctx_size if args.kv_unified else args.ctx_size // slots
    context = max(PAGE, context)
    pages = -(-context // PAGE) * (1 if args.kv_unified else slots)
    found = {
        "bind": f"{args.host}:{args.port}",
        "model": MODEL,
        "name": names[0],
        "model_aliases": json.dumps(dict.fromkeys([*names[1:], "*"], names[0])),
        "max_seq_len": context,
        "cache_tokens": pages * PAGE,
        "max_batch_size": slots,
        "link": "thread",
        "device": "cpu",
        "grace": 0,
    }
    if args.batch_size:
        found["max_chunk_size"] = args.batch_size
    if args.n_predict and args.n_predict > 0:
        found["default_max_tokens"] = args.n_predict
    if args.chat_template:
        found["model"] = with_template(directory, args.chat_template)
    if args.api_key:
        keys = directory / "keys.toml"
        digest = hashlib.sha256(args.api_key.encode()).hexdigest()
        keys.write_text(f'[[keys]]\nname = "test"\nhash = "sha256:{digest}"\n')
        keys.chmod(0o600)
        found["keys_file"] = keys
    return found


def main():
    args = parse(sys.argv[1:])
    if args.hf_repo is None or not args.hf_repo.startswith(STAND_INS):
        sys.exit(f"llama-server: nothing stands in for the model {args.hf_repo}")
    directory = pathlib.Path(tempfile.mkdtemp(prefix="llamacpp-", dir=os.environ["LLAMA_TMP"]))
    for name, value in settings(args, directory).items():
        os.environ[f"SWITCHYARD_{name.upper()}"] = str(value)
    os.chdir(directory)  # where no switchyard.toml lies
    gunicorn = ["-m", "gunicorn", "-c", str(ROOT / "gunicorn.conf.py")]
    os.execv(sys.executable, [sys.executable, *gunicorn])


if __name__ == "__main__":
    main()
