"""What happens to engines under load. Each scenario ends with three engines that serve."""

import signal


def kill(cluster):
    cluster.engines[3].process.kill()
    cluster.wait_until_told(3)
    cluster.engines[3].process.wait(20)
    cluster.replace_engine(3)


def freeze(cluster):
    cluster.engines[3].process.send_signal(signal.SIGSTOP)
    cluster.wait_until_told(3)
    cluster.engines[3].process.send_signal(signal.SIGCONT)


def cut(cluster):
    cluster.boxes[3].cut()
    cluster.wait_until_told(3)
    cluster.boxes[3].heal()


def lose_sources(cluster):
    """They name nobody, then they are gone."""
    cluster.spoil_sources(lambda: cluster.source.write_text(""), [])
    cluster.spoil_sources(cluster.source.unlink, None)
    assert cluster.are_served(1, 2, 3)
    cluster.name(1, 2, 3)


def roll(cluster):
    """One engine after the other is told to end, and another starts."""
    for number in cluster.engines:
        assert cluster.end_engine(number) == 0, cluster.engines[number].output
        cluster.replace_engine(number)
        cluster.wait_until_served(*cluster.engines)


def scale(cluster):
    """From three engines to two, and back."""
    cluster.name(1, 2)
    cluster.wait_until_served(1, 2)
    assert cluster.end_engine(3) == 0, cluster.engines[3].output
    cluster.replace_engine(3)
    cluster.name(1, 2, 3)


SCENARIOS = {  # and whether streams of engine 3 may end with an error
    kill: True,
    freeze: True,
    cut: True,
    lose_sources: False,
    roll: False,
    scale: False,
}
