"""A real Prometheus, Debian's, reads the numbers of a server with keys under traffic."""

import contextlib
import json
import re
import subprocess
import threading

import pytest
import requests
import yaml

from tests.conftest import wait_for
from tests.live.conftest import GUNICORN, ROOT, Server, free_port, unpack
from tests.operations.conftest import KEYS, KeysFile, bearer, entry

pytestmark = pytest.mark.hardship  # it downloads a package

WINDOW = "10s"
NAME = '{model_name="demo"}'


def quantiles(name):
    return [
        f"histogram_quantile({share}, sum by(le) (rate({name}_bucket{NAME}[{WINDOW}])))"
        for share in (0.5, 0.9, 0.95, 0.99)
    ]


def rate(name):
    return f"rate({name}{NAME}[{WINDOW}])"


TIMES = ("e2e_request_latency", "inter_token_latency", "time_to_first_token")
RATES = """
prompt_tokens_total generation_tokens_total prefix_cache_queries_total prefix_cache_hits_total
request_queue_time_seconds_sum request_prefill_time_seconds_sum request_decode_time_seconds_sum
request_inference_time_seconds_sum request_max_num_generation_tokens_sum num_preemptions_total
"""
VALUES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
BUCKETS = "request_prompt_tokens request_generation_tokens request_params_n iteration_tokens_total"
# What vLLM's dashboards ask, of all that has a meaning here.
QUERIES = [
    *(query for name in TIMES for query in quantiles(f"vllm:{name}_seconds")),
    *(f"{rate(f'vllm:{n}_seconds_sum')} / {rate(f'vllm:{n}_seconds_count')}" for n in TIMES),
    *(rate(f"vllm:{name}") for name in RATES.split()),
    *(f"vllm:{name}{NAME}" for name in VALUES),
    *(f"sum by(le) (increase(vllm:{n}_bucket{NAME}[{WINDOW}]))" for n in BUCKETS.split()),
    f"sum by(finished_reason) (increase(vllm:request_success_total{NAME}[{WINDOW}]))",
    "count by(model_name) (vllm:generation_tokens_total)",
]
OWN = [
    'switchyard_model_state{state="ready"} == 1',
    f"sum by(route, status) (rate(switchyard_http_requests_total[{WINDOW}]))",
    f'sum by(key) (rate(switchyard_tokens_total{{kind="completion"}}[{WINDOW}]))',
    "switchyard_last_iteration_age_seconds < 30",
    "sum(switchyard_pages) by (state)",
    'process_resident_memory_bytes{job="switchyard"}',
]
DEPLOY = ROOT / "deploy"
VARIABLES = {"$__rate_interval": WINDOW, "$model": ".*", "$key": ".*"}
SELDOM = {"Refusals", "GPU memory"}  # for which a healthy server without a GPU has no value


def board():
    """Title and query of all that the panels show."""
    panels = json.loads((DEPLOY / "grafana" / "switchyard.json").read_text())["panels"]
    for panel in panels:
        for target in panel.get("targets", []):
            query = target["expr"]
            for name, value in VARIABLES.items():
                query = query.replace(name, value)
            assert "$" not in query
            yield panel["title"], query


def rules():
    for group in yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    """Its directory, with the programs of Debian's package in it."""
    return unpack(tmp_path_factory.mktemp("prometheus"), "prometheus")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("keyed")
    budget = {"budget_tokens": 10**9, "budget_period": "total"}
    entries = [entry(name, **(budget if name == "ann" else {})) for name in KEYS]
    keys = KeysFile(directory / "keys.toml").write(*entries)
    server = Server(GUNICORN, directory, keys_file=keys.path, ledger=directory / "usage.db")
    yield server.wait_until_ready()
    assert server.stop() == 0, server.output


@contextlib.contextmanager
def traffic(server):
    """A request after the other, until the end."""
    is_over = threading.Event()

    def ask():
        while not is_over.is_set():
            body = {"prompt": "Count:", "max_tokens": 8, "n": 2}
            server.post("/v1/completions", body, headers=bearer("ann"))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@pytest.fixture(scope="module")
def ask(prometheus, server):
    """The value of a query, as the API has it, once there were ten seconds of traffic."""
    port = free_port()
    key = prometheus / "key"
    key.write_text(KEYS["prom"])
    (prometheus / "prometheus.yml").write_text(
        f"""\
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: switchyard
    authorization: {{credentials_file: {key}}}
    static_configs: [{{targets: ["127.0.0.1:{server.port}"]}}]
"""
    )
    command = [
        prometheus / "usr" / "bin" / "prometheus",
        f"--config.file={prometheus / 'prometheus.yml'}",
        f"--storage.tsdb.path={prometheus / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (prometheus / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def ask(query):
        url = f"http://127.0.0.1:{port}/api/v1/query"
        answer = requests.get(url, params={"query": query}, timeout=10).json()
        assert answer["status"] == "success", (query, answer)
        return answer["data"]["result"]

    def is_scraped():
        with contextlib.suppress(requests.RequestException, LookupError):  # it starts
            return int(ask("count_over_time(up[60s])")[0]["value"][1]) >= 10

    try:
        with traffic(server):
            wait_for(is_scraped, says=(prometheus / "log").read_text)
            yield ask
    finally:
        process.terminate()
        process.wait()


@pytest.mark.parametrize("query", [*QUERIES, *OWN])
def test_a_query_has_a_value(ask, query):
    values = [float(row["value"][1]) for row in ask(query)]
    assert values and all(value >= 0 for value in values), query  # NaN is not


@pytest.mark.parametrize(("title", "query"), list(board()))
def test_a_panel_of_the_board_shows_something(ask, title, query):
    rows = ask(query)
    assert rows or title in SELDOM
    assert all(float(row["value"][1]) >= 0 for row in rows), rows  # NaN is not


@pytest.mark.parametrize("query", list(rules()))
def test_an_alarm_can_be_asked_and_is_silent(ask, query):
    assert ask(query) == []


def test_the_names_that_the_alarms_ask_for_are_there(ask):
    seldom = {"switchyard_rejections_total"}  # has no series before the first
    names = set(re.findall(r"\b(?:switchyard|vllm:)\w+(?=[{[ )])", " ".join(rules()))) - seldom
    assert len(names) > 4
    assert [name for name in names if not ask(name)] == []


def test_promtool_finds_no_fault_in_configurations_and_alarms(prometheus, tmp_path):
    places = [DEPLOY / name / "prometheus.yml" for name in ("prometheus", "container")]
    (tmp_path / "rules.yml").write_text((DEPLOY / "prometheus" / "rules.yml").read_text())
    (tmp_path / "key").write_text("")
    for place in places:
        config = tmp_path / "prometheus.yml"
        config.write_text(re.sub(r"(credentials_file: )[\w/.]+", r"\1key", place.read_text()))
        command = [prometheus / "usr" / "bin" / "promtool", "check", "config", config]
        checked = subprocess.run(command, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr
        assert f"{len([*rules()])} rules found" in checked.stdout


def test_promtool_finds_nothing_but_vllms_colon(prometheus, server):
    text = server.get("/metrics", headers=bearer("prom")).text
    command = [prometheus / "usr" / "bin" / "promtool", "check", "metrics"]
    checked = subprocess.run(command, input=text, capture_output=True, text=True)
    told = (checked.stdout + checked.stderr).splitlines()
    vllms = "':'|^vllm:iteration_tokens_total non-counter"  # names as they are
    assert [line for line in told if not re.search(vllms, line)] == []
