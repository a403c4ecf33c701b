"""What the settings say of a cluster, and what is refused before anything is started."""

import socket

import pytest

from switchyard import addresses
from switchyard.addresses import addresses_here, answers_outside
from switchyard.app import SettingsError, read_settings
from switchyard.cluster import wanted as module
from switchyard.cluster.machine import environment, environment_of_machine, own_address, ray_start
from switchyard.cluster.wanted import There, changes, version_of, wanted

CLUSTER = '[cluster]\nhead = "10.0.0.1"\nnetwork = "10.0.0.0/24"\n'
MODEL = '[[models]]\nname = "llama"\nmodel = "/models/llama"\nat = ["cluster"]\n'
HEAD = 'link = "socket"\nengine_key_file = "/key"\n'


@pytest.fixture
def read(tmp_path, monkeypatch):
    def read(model="", cluster="", text=None):
        whole = HEAD + MODEL + model + "\n" + CLUSTER + cluster if text is None else text
        (tmp_path / "switchyard.toml").write_text(whole)
        return read_settings()

    monkeypatch.chdir(tmp_path)
    return read


@pytest.mark.parametrize(
    ("model", "cluster", "message"),
    [
        ("engines = 0", "", "engines in switchyard.toml: 0 must be at least 1"),
        ("engines = true", "", "engines in switchyard.toml: .*valid dictionary"),
        ("engines = { min = 3, max = 2, jobs = 1 }", "", "engines in .*: min 3 is above max 2"),
        ("engines = { min = 1, max = 2 }", "", "engines in .*: jobs is missing"),
        ("engines = { min = 1, max = 2, jobs = 0 }", "", "engines.jobs in .*than or equal to 1"),
        ("engines = { min = 0, max = 2, jobs = 1 }", "", "engines.min in .*than or equal to 1"),
        ("gpus_each = -1", "", "gpus_each in .*than or equal to 0"),
        ("gpus = [0]", "", "llama: gpus can't be set, because Ray chooses the GPUs"),
        ('nodes = ["a b"]', "", "nodes in .*'a b' must be a label"),
        ("", 'ports = "7000-6999"', "ports in .*7000-6999 must be FIRST-LAST"),
        ("", 'ports = "7000"', "ports in .*7000 must be FIRST-LAST"),
        ("", 'ports = "1000-1100"', "ports in .*must be FIRST-LAST, from 1024"),
        ("", 'ports = "10000-10099"', "ports in .*10000-10099 includes 10001, which is one of Ray"),
        ("", 'ports = "6300-6400"', "ports in .*6300-6400 includes 6379"),
        ("", 'ports = "20050-20150"', "ports in .*20050-20150 includes 20050"),
        ("", 'state_dir = "here"', "state_dir in .*'here' must be an absolute path"),
        ("", f'state_dir = "/{"x" * 40}"', "state_dir in .*41 characters; the limit is 40"),
        ("", "cell = 4", "cell in .*is not a setting of cluster"),
    ],
)
def test_a_wrong_value_is_named(read, model, cluster, message):
    with pytest.raises(SettingsError, match=message):
        read(model, cluster)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + MODEL, r'llama: at = \["cluster"\] needs a \[cluster\] table'),
        (HEAD + 'at = ["cluster"]\n' + CLUSTER, r"at in .*\"cluster\" needs \[\[models\]\] tables"),
        (
            HEAD + MODEL.replace('["cluster"]', '["cluster", "10.0.0.2:7000"]') + CLUSTER,
            r'llama: at = \["cluster"\] must be the only address',
        ),
        *(
            (
                HEAD + MODEL.replace("cluster", "10.0.0.2:7000") + f"{line}\n" + CLUSTER,
                rf"llama: {line.split()[0]} needs at = \[\"cluster\"\], but at is .*10.0.0.2:7000",
            )
            for line in ("engines = 2", "gpus_each = 1", 'nodes = ["a"]')
        ),
        (
            HEAD + MODEL + CLUSTER.replace("10.0.0", "8.8.8"),
            r"network 8.8.8.0/24 is public, .*allow_public = true",
        ),
        (HEAD + MODEL + CLUSTER.replace("0.1", "1.1"), "head 10.0.1.1 is not in network"),
        (HEAD + MODEL + CLUSTER.replace("10.0.0.1", "fd00::1"), "head in .*IPv4 address"),
    ],
)
def test_settings_that_do_not_fit_together_are_both_named(read, text, message):
    with pytest.raises(SettingsError, match=message):
        read(text=text)


def test_a_public_network_may_be_allowed(read):
    text = HEAD + MODEL + CLUSTER.replace("10.0.0", "8.8.8") + "allow_public = true\n"
    assert str(read(text=text).cluster.network) == "8.8.8.0/24"


def test_servers_read_the_engines_from_a_file(read):
    [served] = read("", 'run_dir = "/r/"').served()
    assert served.config.at == ("file:/r/llama.at",)
    inherited = HEAD + 'at = ["cluster"]\n' + MODEL.replace('at = ["cluster"]\n', "") + CLUSTER
    [one] = read(text=inherited.replace('"llama"', '"a/b"')).in_cluster()
    assert one.at == ["file:/run/switchyard/a%2Fb.at"]


def test_what_is_wanted(read):
    [one] = wanted(read('engines = { min = 2, max = 4, jobs = 8 }\nnodes = ["big"]'))
    assert (one.name, one.least, one.most, one.jobs) == ("llama", 2, 4, 8)
    assert (one.gpus_each, one.nodes) == (1, ("big",))
    [one] = wanted(read("engines = 3\ngpus_each = 0"))
    assert (one.least, one.most, one.jobs, one.gpus_each) == (3, 3, None, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + MODEL.replace("cluster", "10.0.0.2:7000"), r"no \[cluster\] table"),
        (
            HEAD + MODEL.replace("cluster", "10.0.0.2:7000") + CLUSTER,
            r'no model has at = \["cluster"\]',
        ),
    ],
)
def test_settings_without_a_cluster_are_refused(read, text, message):
    with pytest.raises(SettingsError, match=message):
        wanted(read(text=text))


def test_the_version_follows_what_an_engine_reads_and_nothing_else(read, monkeypatch):
    def version(*given):
        [one] = read(*given).in_cluster()
        return version_of(one)

    before = version("engines = 1")
    assert before == version("engines = 5\ngpus_each = 2", 'run_dir = "/elsewhere"')
    assert before != version("max_batch_size = 7")
    monkeypatch.setattr(module, "__version__", "9.9")
    assert before != version("engines = 1")


@pytest.mark.parametrize(
    ("engines", "there", "lines"),
    [
        ("2", {}, ["llama: starts 2 engines"]),
        ("2", {"llama": (2, "")}, []),
        ("3", {"llama": (2, "")}, ["llama: from 2 to 3 engines"]),
        ("{ min = 1, max = 4, jobs = 9 }", {"llama": (3, "")}, []),
        ("{ min = 1, max = 2, jobs = 9 }", {"llama": (3, "")}, ["llama: from 3 to 2 engines"]),
        ("2", {"llama": (2, "x")}, ["llama: replaces 2 engines, as their version has changed"]),
        (
            "1",
            {"llama": (1, "x"), "old": (1, "")},
            [
                "llama: replaces 1 engine, as their version has changed; requests wait while the"
                " only one loads",
                "old: ends 1 engine",
            ],
        ),
    ],
)
def test_what_apply_changes(read, engines, there, lines):
    found = wanted(read(f"engines = {engines}"))
    version = found[0].version
    assert changes(found, {n: There(i, v or version) for n, (i, v) in there.items()}) == lines


@pytest.mark.parametrize(
    ("here", "given", "found"),
    [
        (["127.0.0.1", "10.0.0.2"], None, "10.0.0.2"),
        (["10.0.0.2", "10.0.0.3"], "10.0.0.3", "10.0.0.3"),
        (["127.0.0.1", "10.0.1.2"], "10.0.1.2", "10.0.1.2"),
        (["127.0.0.1", "10.0.1.2"], None, "no address .* in 10.0.0.0/24: .* 127.0.0.1, 10.0.1.2"),
        (["10.0.0.2", "10.0.0.3"], None, "has 10.0.0.2, 10.0.0.3 in 10.0.0.0/24: choose one"),
        (["10.0.0.2"], "10.0.0.9", "--address 10.0.0.9: this machine has 10.0.0.2"),
    ],
)
def test_a_machine_finds_its_address_or_lists_all(read, here, given, found):
    cluster = read().cluster
    if found[0].isdigit():
        assert own_address(cluster, here, given) == found
    else:
        with pytest.raises(SettingsError, match=found):
            own_address(cluster, here, given)


def test_this_machine_has_the_loopback():
    assert "127.0.0.1" in addresses_here()


def test_ray_gets_a_token_from_the_key_and_never_the_key(read):
    cluster = read().cluster
    first, second = (environment(cluster, key)["RAY_AUTH_TOKEN"] for key in (b"1" * 32, b"2" * 32))
    assert first != second and len(first) == 64 and "1" * 32 not in first
    assert environment(cluster, b"1" * 32)["RAY_AUTH_MODE"] == "token"


def test_machines_outlive_any_absence_of_the_head_and_commands_do_not(read):
    """After this time without a head Ray ends, and with it all engines of the machine."""
    name = "RAY_gcs_rpc_server_reconnect_timeout_s"
    assert int(environment_of_machine(read().cluster, b"1" * 32)[name]) >= 30 * 86400
    assert name not in environment(read().cluster, b"1" * 32)  # Ray's own: a minute


def test_a_head_has_no_engine_unless_it_is_asked_for(read):
    cluster = read().cluster
    head = ray_start(cluster, "10.0.0.1", True, 0)
    assert "--num-gpus=0" in head and '--resources={"engine": 0}' in head
    node = ray_start(cluster, "10.0.0.2", False, 2, "big")
    assert "--num-gpus=0" not in node and "--address=10.0.0.1:6379" in node
    assert "--labels=switchyard=big" in node and "--head" not in node
    assert "--num-gpus=0" not in ray_start(cluster, "10.0.0.2", False, 0)  # it keeps its GPUs


def test_ports_that_answer_outside_of_the_network_are_found(read, monkeypatch):
    cluster = read("", 'ports = "7000-7001"').cluster
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert addresses._answers("127.0.0.1", port)
    assert not addresses._answers("127.0.0.1", port)
    open_ones = {("192.168.1.5", 6379), ("192.168.1.5", 7001), ("192.168.1.5", 80)}
    monkeypatch.setattr(addresses, "_answers", lambda *at: at in open_ones or "10." in at[0])
    here = ["127.0.0.1", "10.0.0.2", "192.168.1.5", "192.168.2.5"]
    assert answers_outside(cluster, here) == {"192.168.1.5": [6379, 7001]}
