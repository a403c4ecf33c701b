"""What each setting may be at the least and at the most."""

import math

import pytest

from switchyard.app import SettingsError, read_settings

DAY = 86_400
A_HAIR = 1e-9

# (name, the least, the most); None: no most, but finite
BOUNDS = [
    ("bind_wait", 0, DAY),
    ("max_body_bytes", 0, None),
    ("heartbeat", A_HAIR, None),
    ("queue_timeout", 0, None),
    ("first_token_timeout", 0, None),
    ("total_timeout", 0, None),
    ("resume_timeout", 0, DAY),
    ("idempotency_timeout", 0, DAY),
    ("store_timeout", 0, 30 * DAY),
    ("max_stored_bytes", 0, None),
    ("body_timeout", 0.1, DAY),
    ("send_timeout", 0.1, DAY),
    ("reserve_threads", 1, None),
    ("max_websockets", 0, 4096),
    ("websocket_timeout", 0, None),
    ("grace", 0, DAY),
    ("max_viewers", 1, 4096),
    ("ledger_days", 0, None),
    ("max_loaded", 0, None),
    ("load_wait", 0, DAY),
    ("replicas", 1, 64),
    ("max_batch_size", 1, 4096),
    ("max_priority", 0, None),
    ("idle_timeout", 0, None),
    ("drain", 0, DAY),
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
