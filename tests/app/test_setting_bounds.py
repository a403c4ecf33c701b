"""What each setting may be at the least and at the most."""

import math

import pytest

from switchyard.app import SettingsError, read_settings

DAY = 86_400
A_HAIR = 1e-9

# (name, the least, the most); None: no most, but finite
UP_TO_A_DAY = ("bind_wait", "resume_timeout", "idempotency_timeout", "grace", "load_wait", "drain")
UNBOUNDED = (
    *("max_body_bytes", "queue_timeout", "first_token_timeout", "total_timeout", "idle_timeout"),
    *("max_stored_bytes", "websocket_timeout", "ledger_days", "max_loaded", "max_priority"),
)
BOUNDS = [
    *((name, 0, DAY) for name in UP_TO_A_DAY),
    *((name, 0, None) for name in UNBOUNDED),
    ("heartbeat", A_HAIR, None),
    ("store_timeout", 0, 30 * DAY),
    ("body_timeout", 0.1, DAY),
    ("send_timeout", 0.1, DAY),
    ("reserve_threads", 1, None),
    ("max_websockets", 0, 4096),
    ("max_viewers", 1, 4096),
    ("replicas", 1, 64),
    ("max_batch_size", 1, 4096),
]
OF_TABLES = ("idle_timeout", "drain")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def read(name, value):
    if name in OF_TABLES:
        return getattr(read_settings(models=[{"model": "/m/one", name: value}]).models[0], name)
    return getattr(read_settings(**{name: value}), name)


@pytest.mark.parametrize(("name", "least", "most"), BOUNDS)
def test_a_setting_may_be_its_least_and_its_most_and_beyond_is_named(name, least, most):
    for value in (least, 1_000_000 if most is None else most):
        assert read(name, value) == value
    below = {A_HAIR: 0, 0.1: 0.099}.get(least, least - 1)
    above = math.inf if most is None else most + 1
    for value in (above, math.nan) if name == "max_batch_size" else (below, above, math.nan):
        with pytest.raises(SettingsError, match=name):
            read(name, value)


def test_the_scaling_of_a_lora_is_finite():
    for scaling in (math.inf, math.nan):
        with pytest.raises(SettingsError, match=r"loras\.0\.scaling: .*finite"):
            read_settings(loras=[{"path": "x", "scaling": scaling}])
