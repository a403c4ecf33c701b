"""What became of the streams beside a failure."""


def nothing_lost(result):
    assert result["wrong"] == result["lost"] == 0 and result["whole"], result


def pids(engines):
    return [one[1] for one in engines]


def some_lost(result, began, within, jobs):
    """The `jobs` of one engine, at most: an error each, soon. All others are whole, and there are
    some: each engine had its share.
    """
    assert result["wrong"] == 0 and 0 < result["lost"] <= jobs, (jobs, result)
    assert result["whole"] >= 10, result
    assert result["last_lost"] - began < within, result
