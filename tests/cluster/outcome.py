"""What became of the streams beside a failure."""


def nothing_lost(result):
    assert result["wrong"] == result["lost"] == 0 and result["whole"], result


def pids(engines):
    return [one[1] for one in engines]


def some_lost(result, began, within, jobs, are_all_lost=False):
    """The `jobs` of an engine, at most: an error each, soon. All others are whole. There are some,
    as each engine has its share, unless all engines were lost.
    """
    assert result["wrong"] == 0 and 0 < result["lost"] <= jobs, (jobs, result)
    assert result["whole"] >= 10 or are_all_lost, result
    assert result["last_lost"] - began < within, result
