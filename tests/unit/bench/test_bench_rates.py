"""The rates are slopes between commits, the same for both sides."""

import pytest
from bench.rates import Sample, commits, rate_between_commits, rates


def _steps(*committed: int) -> list[Sample]:
    return [Sample(float(second), total) for second, total in enumerate(committed)]


def test_should_keep_only_the_samples_at_which_offsets_moved() -> None:
    assert commits(_steps(0, 0, 10, 10, 30)) == [Sample(2.0, 10), Sample(4.0, 30)]


def test_should_count_a_first_sample_that_already_has_commits() -> None:
    assert commits(_steps(10, 10, 30)) == [Sample(0.0, 10), Sample(2.0, 30)]


@pytest.mark.parametrize(
    ("second_commit", "warm_second", "steady_commits"),
    [
        (24, 5, 2),  # below a quarter: the next commit starts the steady part
        (25, 4, 3),
        (26, 4, 3),
    ],
)
def test_should_start_the_steady_rate_at_the_first_commit_after_a_quarter(
    second_commit: int, warm_second: int, steady_commits: int
) -> None:
    samples = _steps(0, 0, 0, 10, second_commit, 50, 80, 100)
    measured = rates(samples, 100, 1.0)
    assert measured.steady == (100 - samples[warm_second].committed) / (7 - warm_second)
    assert measured.steady_commits == steady_commits


def test_should_measure_warm_up_from_the_start_of_the_process() -> None:
    measured = rates(_steps(0, 0, 40, 60, 100, 100), 100, 1.0)
    assert measured.with_warm_up == 25.0
    assert measured.from_first_commit == 30.0
    assert measured.first_commit_seconds == 2.0
    assert measured.total_seconds == 4.0


def test_should_give_no_rate_when_there_is_one_commit() -> None:
    measured = rates(_steps(0, 0, 100), 100, 1.0)
    assert measured.steady is None
    assert measured.from_first_commit is None
    assert measured.with_warm_up == 50.0


@pytest.mark.parametrize("samples", [[], _steps(0, 0), _steps(0, 99)])
def test_should_refuse_a_run_that_did_not_finish(samples: list[Sample]) -> None:
    with pytest.raises(ValueError, match="of 100 events"):
        rates(samples, 100, 1.0)


@pytest.mark.parametrize(("shortest_s", "has_slope"), [(2.9, True), (3.0, True), (3.1, False)])
def test_should_give_no_rate_over_too_short_a_time(shortest_s: float, has_slope: bool) -> None:
    measured = rates(_steps(0, 30, 40, 60, 100), 100, shortest_s)
    assert (measured.steady is not None) == has_slope
    assert (measured.from_first_commit is not None) == has_slope


@pytest.mark.parametrize(
    ("committed", "rate"),
    [((0, 0, 10), None), ((5, 5, 5), None), ((5, 5, 15, 15, 35, 35), 10.0), ((0, 10, 40), 30.0)],
)
def test_should_measure_a_rate_between_commits(committed: tuple[int, ...], rate: float | None) -> None:
    assert rate_between_commits(_steps(*committed)) == rate
