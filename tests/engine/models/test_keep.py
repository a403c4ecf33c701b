"""How long a model stays loaded, once a command has said so."""


def test_a_time_that_is_set_counts_from_then_on_until_it_is_taken_back(served):
    table = served(clock=lambda: table.now)
    models = table.start("a")
    table.use("a")
    assert models.status("a").idle_left is None
    table.now += 100
    models.keep("a", 60.0)
    assert models.status("a").idle_left == 60
    table.now += 50
    assert models.status("a").idle_left == 10
    with models.lease("a"):
        assert models.status("a").idle_left == 60  # for now
    models.keep("a", 0.0)
    table.now += 1000
    assert models.status("a").idle_left is None
    models.keep("a", 60.0)
    for seconds, expected in ((59, "ready"), (2, "unloaded")):
        table.now += seconds
        table.settle()
        assert models.status("a").state == expected
