"""guidellm and aiperf measure the server: each request is answered, its tokens are told."""

import json
import re

import pytest
import requests

from tests.clients.conftest import TOKENIZER

pytestmark = pytest.mark.clients

NUM_REQUESTS, NEW_TOKENS = 6, 16


def num_answered(server):
    text = requests.get(f"{server.url}/metrics", timeout=10).text
    found = re.findall(r"^vllm:request_success_total\{.*\} (.+)", text, re.MULTILINE)
    return sum(map(float, found))


def test_guidellm_finishes(run, server):
    command = ["-m", "guidellm", "run", "--disable-console-interactive"]
    command += ["--backend", f"kind=openai_http,target={server.url}"]
    command += ["--profile", "kind=concurrent,streams=2"]
    command += ["--constraint", f"kind=max_requests,count={NUM_REQUESTS}"]
    command += ["--tokenizer", f"kind=hf_auto,model={TOKENIZER}"]
    command += ["--data", f"kind=synthetic_text,prompt_tokens=64,output_tokens={NEW_TOKENS}"]
    before = num_answered(server)
    directory, _ = run(*command, "--output", "kind=json,path=report.json")
    assert num_answered(server) - before == NUM_REQUESTS
    [benchmark] = json.loads((directory / "report.json").read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert totals["errored"] == totals["incomplete"] == 0
    # guidellm ends before it has counted the last, at times.
    assert totals["successful"] >= NUM_REQUESTS - 1
    for request in benchmark["requests"]["successful"]:
        assert request["prompt_tokens"] > 64  # the chat template's too: the server's count
        assert request["output_tokens"] == NEW_TOKENS


def test_aiperf_finishes(run, server):
    command = ["-m", "aiperf", "profile", "--ui", "none"]
    command += ["--url", server.url, "--model", "demo", "--tokenizer", TOKENIZER]
    command += ["--endpoint-type", "chat", "--streaming", "--use-server-token-count"]
    command += ["--concurrency", "2", "--request-count", str(NUM_REQUESTS)]
    command += ["--synthetic-input-tokens-mean", "64", "--output-tokens-mean", str(NEW_TOKENS)]
    command += ["--extra-inputs", "ignore_eos:true"]
    directory, output = run(*command, "--artifact-dir", "report")
    report = json.loads((directory / "report" / "profile_export_aiperf.json").read_text())
    assert report["request_count"]["avg"] == NUM_REQUESTS, output
    assert "error_request_count" not in report and not report["error_summary"], output
    assert report["input_sequence_length"]["min"] > 64  # the chat template's too
    assert report["output_sequence_length"]["min"] == NEW_TOKENS
    assert report["output_sequence_length"]["max"] == NEW_TOKENS
