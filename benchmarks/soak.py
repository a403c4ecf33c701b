#!/usr/bin/env python3
"""Does anything get lost, wrong, stuck or leak under clients that leave, attacks and faults?

    python benchmarks/soak.py [--minutes 60] [--model MODEL_DIR] [--models 3]

Starts a server with the SWITCHYARD_* settings of this environment. Its forward passes fail now and
then. Many clients at once send requests of fourteen kinds. In 30 % of the requests the client
leaves, 5 % are an attack of `siege.py`. Half of the others are greedy, and must repeat the idle
server's text. The server's memory, threads and files are sampled meanwhile.

With `--models N` there are N models, loaded on demand, and room for all but one. All but the first
have random weights and the first one's shape, so that memory doesn't depend on which are loaded.

With `--attackers` the rows of `siege.py` that go by keys, addresses, files and model directories
run all the while, each from its own process, and clients have a key. It takes half an hour on
a quiet machine; in a few minutes memory still grows to its level, and the exit status is 1:

    python benchmarks/soak.py --minutes 30 --attackers

Exit status 1 if a request got no clear end or a wrong text. Also if memory, threads or files of the
last tenth are more than 3 % above those of the second tenth.
"""

import argparse
import collections
import contextlib
import http.client
import itertools
import json
import os
import pathlib
import random
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import siege  # noqa: E402
from benchmarks.intruders import ADMIN, GOOD, OTHER, authorized  # noqa: E402
from benchmarks.kinds import KINDS, read  # noqa: E402
from benchmarks.report import header  # noqa: E402
from switchyard.cli.serve import TUNABLES  # noqa: E402
from switchyard.engine.backends import make_backend as make_real_backend  # noqa: E402

CLIENTS = 32
LEAVING, ATTACKING, FAULTS = 0.30, 0.05, 0.002  # shares: requests, requests, forward passes
LASTING = 0.2  # share of the faults that last for two or three passes, so that a retry fails
FAILED = ("batch_failed", "job_failed")  # error codes of jobs in failed passes
SAMPLES = 200  # samples of memory, threads and files
DRIFT = 0.03  # highest growth of a median, from the second tenth to the last
ATTACKS = (
    *("quotes", "blank lines", "regexes", "anyOf of 25000", "enum of objects", "tools", "messages"),
    *("stop strings", "texts of 4 MB", "prompts of 4 MB", "a million tokens", "deep lists"),
)
HELD = {  # attacks that hold connections, for a second or two
    "silent": b"",
    "slow heads": siege.SLOW_HEAD,
    "slow bodies": siege.head(siege.COMPLETIONS, 1000),
    "silent WebSockets": siege.UPGRADE,
}
QUESTIONS = (
    "Tell me a story about a {w}.",
    "Repeat this code exactly: {w}{n}",
    "What is {n} + {n}?",
    "Count from 1 to {n}.",
    "Spell the word {w}.",
    "What is the capital of France? {w} {w} {w}",
)
WORDS = ("fox", "river", "lantern", "king", "window", "robot", "apple", "storm", "bridge", "piano")
ATTACKERS = (  # with `--attackers`
    *("wrong keys", "addresses of a /64", "negative prompts", "a budget at once"),
    *("keys_file: all", "strangers' directories", "the ledger removed", "identical keys"),
)
NAMELESS = ("kobold, streamed",)  # kinds of requests without a model name: the first model answers
SHAPE = {
    "--hidden-size": "hidden_size",
    "--intermediate-size": "intermediate_size",
    "--num-layers": "num_hidden_layers",
    "--num-heads": "num_attention_heads",
    "--num-kv-heads": "num_key_value_heads",
    "--vocab-size": "vocab_size",
    "--max-positions": "max_position_embeddings",
}


CLIENT, OPERATOR, ATTACKER = {}, {}, {}  # headers; filled with `--attackers`


# For the faults of all models: else each load would repeat the faults of the last one.
_rng = random.Random(0)


def make_backend(config, *more):
    """The real backend, whose forward passes fail now and then."""
    backend = make_real_backend(config, *more)
    backend._load = _faulty(backend._load)
    return backend


def _faulty(load):
    left = 0

    def load_faulty(*args):
        loaded = load(*args)
        forward = loaded.model.forward_chunk

        def forward_chunk(*args, **kwargs):
            nonlocal left
            if left == 0 and _rng.random() < FAULTS:
                left = _rng.randint(2, 3) if _rng.random() < LASTING else 1
            if left:
                left -= 1
                raise RuntimeError("a fault that the soak test asked for")
            return forward(*args, **kwargs)

        loaded.model.forward_chunk = forward_chunk
        return loaded

    return load_faulty


class Lost(Exception):
    """A request that did not get exactly one clear end."""


class Wrong(Exception):
    """A greedy answer that differs from the idle server's."""


def greedy_requests(models, limits):
    """(model, kind's name, question, limit) of the requests with known answers. `models`: names."""
    rng = random.Random(1)
    for model, name, limit in itertools.product(models, KINDS, limits):
        text = rng.choice(QUESTIONS).format(w=rng.choice(WORDS), n=rng.randint(1, 40))
        filler = [rng.choice(WORDS) for _ in range(rng.choice([0, 0, 20, 300]))]
        if model == models[0] or name not in NAMELESS:
            yield model, name, " ".join([*filler, text]), limit


def post(port, model, name, question, limit, temperature, leaves=None):
    """Returns status and data of the answer, and its Retry-After; None if the client left."""
    kind = KINDS[name]
    named = {} if name in NAMELESS else {"model": model}
    body = {**kind.body(question, limit), **named, "temperature": temperature}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        headers = {"Content-Type": "application/json", **CLIENT}
        connection.request("POST", kind.path, json.dumps(body), headers)
        if leaves is not None:
            leave(connection, leaves)
            return None
        response = connection.getresponse()
        return response.status, response.read(), response.headers.get("Retry-After")
    except (OSError, http.client.HTTPException) as error:
        raise Lost(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()


def leave(connection, rng):
    """Leave at a random moment: in the queue, in prefill, in decode, after the end; by a close or a
    reset.
    """
    sock = connection.sock
    sock.settimeout(rng.choice([0.001, 0.02, 0.1, 0.5, 2.0]))
    try:
        for _ in range(rng.choice([0, 1, 1, 5, 30])):
            if not sock.recv(4096):
                break
    except TimeoutError:
        pass
    if rng.random() < 0.5:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def outcome_of(name, answer):
    """Returns the text of a complete answer, else None; and a name of the outcome to count."""
    if answer is None:
        return None, "left"
    status, data, retry_after = answer
    if status != 200:
        error = json.loads(data)["error"]
        if status not in (429, 500, 503, 529):
            raise Lost(f"{name}: status {status}: {error}")
        if status != 500 and not retry_after:
            raise Lost(f"{name}: {status} without Retry-After")
        return None, f"status {status}, {error.get('code') or error.get('type')}"
    try:
        text, end = read(KINDS[name], data)
    except ValueError as error:
        raise Lost(f"{name}: {error}") from error
    if text is None:
        return None, f"error event, {end.get('code') or end.get('type')}"
    return text, f"complete: {name}"


def attack(port, rng):
    """One request, or connection, of an attack: refused, answered, or closed."""
    name = rng.choice([*ATTACKS, *HELD])
    if name in HELD:
        with socket.create_connection(("127.0.0.1", port)) as sock:
            with contextlib.suppress(ConnectionError):  # closed, as the oldest of too many
                sock.sendall(HELD[name])
            time.sleep(rng.random() * 2)
        return f"attack: {name}"
    flood = siege.ATTACKS[name]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        body, headers = flood.make_body(rng.randrange(10**6)), flood.headers | ATTACKER
        connection.request("POST", flood.path, body, headers)
        response = connection.getresponse()
        status, data = response.status, response.read()
    except (OSError, http.client.HTTPException):
        return f"attack: {name}, cut off"
    finally:
        connection.close()
    if status < 500 or status in (503, 529):
        return f"attack: {name}, {status}"
    error = json.loads(data)["error"]
    if error.get("code") not in FAILED:
        raise Lost(f"status {status} for {name}: {error}")
    return f"attack: {name}, {status}, {error['code']}"


class Soak:
    def __init__(self, port, known, deadline):
        self.port = port
        self.known = list(known.items())
        self.deadline = deadline
        self.outcomes = collections.Counter()
        self.lost = []
        self.num_checked = 0
        self.states = []
        self._numbers = iter(range(10**9))
        self._lock = threading.Lock()

    def run(self, seconds):
        threads = [threading.Thread(target=self._client) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        while time.monotonic() < self.deadline:
            self.states.append(state(self.port))
            time.sleep(seconds / SAMPLES)
        for thread in threads:
            thread.join()

    def _client(self):
        while time.monotonic() < self.deadline:
            with self._lock:
                number = next(self._numbers)
            try:
                outcome = self._ask(random.Random(number))
            except Exception as error:
                with self._lock:
                    self.lost.append(f"request {number}: {type(error).__name__}: {error}")
                continue
            with self._lock:
                self.outcomes[outcome] += 1

    def _ask(self, rng):
        if rng.random() < ATTACKING:
            return attack(self.port, rng)
        (model, name, question, limit), expected = rng.choice(self.known)
        is_greedy = rng.random() < 0.5
        leaves = rng if rng.random() < LEAVING else None
        temperature = 0 if is_greedy else 0.8
        answer = post(self.port, model, name, question, limit, temperature, leaves)
        text, outcome = outcome_of(name, answer)
        if is_greedy and text is not None:
            with self._lock:
                self.num_checked += 1
            if text != expected:
                raise Wrong(
                    f"{model}, {name}, {question[-40:]!r}, {limit}: {text!r}, not {expected!r}"
                )
        return outcome


def get(port, path):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=OPERATOR)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def state(port):
    return get(port, "/soak")


def settled(port, models):
    """The server's state once every job has ended, within a minute."""
    wait_until(lambda: not state(port)["jobs"], 60)
    free = all(all_pages_are_free(port, model) for model in models)
    wait_until(lambda: not state(port)["jobs"], 20)
    time.sleep(6)  # keep-alive connections close after 5 s
    return {**state(port), "all_pages_free": free}


def all_pages_are_free(port, model):
    """Whether no job holds a page, by the engine's own count after a request."""
    time.sleep(3)  # it counts every two seconds
    post(port, model, "completion", "x", 1, 0)  # loads the model

    def is_free():
        models = get(port, "/v1/status")["models"]
        return [one["pages"]["referenced"] for one in models if one["id"] == model] == [0]

    return wait_until(is_free, 20)


def wait_until(is_so, seconds):
    deadline = time.monotonic() + seconds
    while not (found := is_so()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def names_of(args):
    return ["demo", *(f"random{i}" for i in range(1, args.models))]


def shape_of(model):
    """Options of scripts/make_model.py for a model of the same size."""
    config = json.loads(pathlib.Path(model, "config.json").read_text())
    return [part for option, key in SHAPE.items() for part in (option, str(config[key]))]


def configure(args, directory):
    """Writes a settings file for several models."""
    lines = [f"max_loaded = {args.models - 1}"]
    for seed, name in enumerate(names_of(args)):
        path = args.model if not seed else os.path.join(directory, name)
        if seed:
            make = [sys.executable, ROOT / "scripts" / "make_model.py", path, "--seed", str(seed)]
            subprocess.run([*make, *shape_of(args.model)], check=True)
        lines += ["[[models]]", f'name = "{name}"', f'model = "{path}"', 'load = "demand"']
    path = os.path.join(directory, "several.toml")
    pathlib.Path(path).write_text("\n".join(lines) + "\n")
    return path


def start_server(args, directory):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environment = os.environ | {
        "SWITCHYARD_BIND": f"127.0.0.1:{port}",
        "SWITCHYARD_LOG_LEVEL": "ERROR",
        "GLIBC_TUNABLES": TUNABLES,  # as in `switchyard serve`
        "PYTHONPATH": str(ROOT),
    }
    if args.attackers:
        CLIENT.update(authorized(GOOD))
        OPERATOR.update(authorized(ADMIN))
        ATTACKER.update(authorized(OTHER))
        for name in ATTACKERS:
            prepare = getattr(siege.ATTACKS[name], "prepare", lambda _: {})
            settings = prepare(directory)
            environment |= {f"SWITCHYARD_{k.upper()}": v for k, v in settings.items()}
    if args.models > 1:
        environment["SWITCHYARD_CONFIG"] = configure(args, directory)
    else:
        environment |= {"SWITCHYARD_MODEL": args.model, "SWITCHYARD_NAME": "demo"}
    command = [sys.executable, "-m", "gunicorn", "-c", str(ROOT / "benchmarks" / "soak_conf.py")]
    with open(os.path.join(directory, "server.log"), "wb") as log:
        process = subprocess.Popen(command, cwd=directory, env=environment, stdout=log, stderr=log)
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5)
            return process, port
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.2)
    sys.exit(pathlib.Path(directory, "server.log").read_text())


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--model", default=str(ROOT / "models" / "demo"))
    parser.add_argument("--models", type=int, default=1)
    parser.add_argument("--limits", default="4,16,48,96", help="max_tokens, each as often")
    parser.add_argument("--attackers", action="store_true", help="all the while, all at once")
    args = parser.parse_args()
    header()
    with tempfile.TemporaryDirectory() as directory:
        process, port = start_server(args, directory)
        try:
            models = names_of(args)
            limits = [int(limit) for limit in args.limits.split(",")]
            answers = known_answers(port, models, limits)
            soak = Soak(port, answers, time.monotonic() + args.minutes * 60)
            with attacking(args, port, directory):
                soak.run(args.minutes * 60)
            sys.exit(0 if report(soak, settled(port, models), args.minutes) else 1)
        except Exception:
            print(pathlib.Path(directory, "server.log").read_text()[-10_000:])
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            print(f"server's exit status {process.wait(120)}")


@contextlib.contextmanager
def attacking(args, port, directory):
    """All attackers at work, if they are asked for."""
    command = [sys.executable, siege.__file__, "--port", str(port), "--directory", directory]
    command += ["--key", OTHER, "--connections", "2", "--seconds", str(args.minutes * 60)]
    names = ATTACKERS if args.attackers else ()
    processes = [subprocess.Popen([*command, "--attacks", name]) for name in names]
    yield
    for name, process in zip(names, processes, strict=True):
        if status := process.wait(120):
            print(f"the attacker {name!r} ends with status {status}")


def known_answers(port, models, limits):
    """Texts of an idle server, by request. A request in a failed pass is repeated."""
    known = {}
    for request in greedy_requests(models, limits):
        for _ in range(20):
            text, _ = outcome_of(request[1], post(port, *request, temperature=0))
            if text is not None:
                known[request] = text
                break
            time.sleep(0.5)  # a lost model is loaded again automatically
    return known


def report(soak, end, minutes):
    num_requests = soak.outcomes.total() + len(soak.lost)
    print(f"{num_requests} requests in {minutes:g} minutes, {CLIENTS} at a time")
    for outcome, number in sorted(soak.outcomes.items()):
        print(f"  {number:6d}  {outcome}")
    print(f"  {len(soak.lost):6d}  lost or wrong; {soak.num_checked} greedy texts compared")
    for text in soak.lost[:20]:
        print(f"          {text}")
    tenths = [soak.states[i * len(soak.states) // 10 :] for i in range(10)]
    tenths = [tenth[: max(len(soak.states) // 10, 1)] for tenth in tenths]
    is_flat = True
    for name in ("rss_mb", "threads", "files"):
        medians = [statistics.median(s[name] for s in tenth) for tenth in tenths]
        drift = medians[-1] / medians[1] - 1
        is_flat &= drift <= DRIFT
        print(f"{name:8} by tenth: {' '.join(f'{m:.0f}' for m in medians)} ({drift:+.1%})")
    print(f"at the end: {end}")
    return not soak.lost and is_flat and end["all_pages_free"] and not end["jobs"]


if __name__ == "__main__":
    main()
