"""Codex and Claude Code: a file that the model asks for is read by the client's own tool, and what
is in it is in the next request, most of which the cache has.
"""

import pytest
import requests

from tests.agents.conftest import PROGRAMS, needs

pytestmark = pytest.mark.agents

ASK = "What is the secret word in notes.txt?"
CODEX = """\
model = "agent"
model_provider = "switchyard"
model_catalog_json = "{home}/models.json"

[model_providers.switchyard]
name = "Switchyard"
base_url = "{url}/v1"
wire_api = "responses"
"""


def check(lines, output):
    """Two turns, as the access log has them; those behind them are of the client's own accord."""
    assert "heliotrope" in output and "To the end." in output
    assert {line["status"] for line in lines} == {200}
    first, second = sorted(lines, key=lambda line: line["prompt_tokens"])[-2:]
    assert second["prompt_tokens"] > first["prompt_tokens"] > 1000
    assert second["cached_tokens"] > 0.9 * second["prompt_tokens"]


@needs(PROGRAMS["codex"])
def test_codex_reads_a_file(server, run, requests_of):
    (run.home / ".codex").mkdir()
    (run.home / ".codex" / "config.toml").write_text(CODEX.format(home=run.home, url=server.url))
    (run.home / "models.json").write_text(requests.get(f"{server.url}/v1/models").text)
    output = run(
        "codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", ASK
    )
    check(requests_of("/v1/responses"), output)


@needs(PROGRAMS["claude"])
def test_claude_code_reads_a_file(server, run, requests_of):
    output = run(
        *("claude", "-p", ASK, "--model", "agent"),
        ANTHROPIC_BASE_URL=server.url,
        ANTHROPIC_AUTH_TOKEN="none",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        DISABLE_TELEMETRY="1",
    )
    check(requests_of("/v1/messages"), output)
