"""A bijection for every length, as random as a shuffle, and computed where it is asked.

The statistical tests use fixed keys, so their outcome is fixed too: a p-value below `ALPHA` is a
fault, and no bad luck.
"""

import itertools
import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from seedcursor import KeyedPermutation

ALPHA = 1e-4
AROUND = [n + d for n in (2**12, 2**13, 2**14, 2**15, 2**16, 2**17) for d in (-1, 0, 1, 2)]
HUGE = [10**12, 2**62, 2**62 + 1, 2**63 - 1]


def is_bijection(order):
    return (np.sort(order[:]) == np.arange(len(order))).all()


@pytest.mark.parametrize("seed", [0, 2**128 - 1])
def test_every_short_length(seed):
    for n in range(301):
        order = KeyedPermutation(n, seed, epoch=n)
        items = list(order)
        assert len(order) == n
        assert sorted(items) == list(range(n))
        assert [order[k] for k in range(n)] == items
        assert order[:].tolist() == items
        assert [order.inverse(item) for item in items] == list(range(n))


@pytest.mark.parametrize("n", AROUND)
def test_lengths_around_powers_of_two(n):
    for seed in range(3):
        order = KeyedPermutation(n, seed)
        assert is_bijection(order)
        for k in (0, 1, n // 2, n - 1):
            assert order.inverse(order[k]) == k


lengths = st.integers(1, 20_000) | st.integers(4090, 4100) | st.sampled_from(AROUND)


@settings(deadline=None, max_examples=300)
@given(lengths, st.integers(0, 2**128 - 1), st.integers(0, 2**32 - 1), st.data())
def test_any_length(n, seed, epoch, data):
    order = KeyedPermutation(n, seed, epoch)
    assert is_bijection(order)
    k = data.draw(st.integers(0, n - 1))
    assert order.inverse(order[k]) == k
    assert order[order.inverse(k)] == k


ends = st.none() | st.integers(-6000, 6000)
steps = st.none() | st.integers(-5000, 5000).filter(bool)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from([0, 1, 7, 300, 4096, 4097, 5000]), ends, ends, steps)
def test_slices_are_those_of_a_list(n, start, stop, step):
    order = KeyedPermutation(n, seed=3)
    part = order[start:stop:step]
    assert isinstance(part, np.ndarray)
    assert part.dtype == np.int64
    assert part.tolist() == list(order)[start:stop:step]


@pytest.mark.parametrize("n", [7, 4096, 5000, 2**14, 2**14 + 1, 2**15 + 3])
def test_one_place_a_slice_and_the_iteration_agree(n):
    order = KeyedPermutation(n, 3, 2)
    items = list(order)
    assert all(type(item) is int for item in items)
    assert order[:].tolist() == items
    for k in {0, 1, n // 2, n - 1, 16383, 16384, 16385} & set(range(n)):
        assert (order[k], type(order[k])) == (items[k], int)
        assert order[k - n] == items[k]


# Left alone, Hypothesis rarely draws numbers that are nearly as large as they may be.
places = st.integers(0, 1000) | st.integers(0, 2**63 - 1) | st.integers(2**62, 2**63 - 1)
strides = st.integers(1, 10) | st.integers(0, 62).map(lambda power: 2**power)
strides |= st.integers(2**58, 2**62)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(HUGE), st.integers(0, 2**128 - 1), places)
def test_random_access_to_huge_lengths(n, seed, place):
    order = KeyedPermutation(n, seed)
    place %= n
    assert 0 <= order[place] < n
    assert order[place - n] == order[place]
    assert order.inverse(order[place]) == place
    assert order[order.inverse(place)] == place


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(HUGE), places, st.integers(0, 4), strides, st.booleans())
def test_slices_of_huge_lengths(n, start, count, step, backwards):
    order = KeyedPermutation(n, seed=3)
    start %= n
    bound = start + (-step if backwards else step) * count + (-1 if backwards else 1)
    stop = None if bound < 0 else min(bound, n)
    cut = slice(start, stop, -step if backwards else step)
    expected = [order[k] for k in range(*cut.indices(n))]
    assert order[cut].tolist() == expected


def test_a_slice_whose_count_does_not_fit_a_float():
    order = KeyedPermutation(2**63 - 1)
    part = order[0 : 2**62 + 1 : 2**61]
    assert part.tolist() == [order[0], order[2**61], order[2**62]]


@pytest.mark.parametrize("n", HUGE)
def test_a_huge_block_has_no_item_twice(n):
    order = KeyedPermutation(n, 5)
    block = order[n - 50_000 :]
    assert len(np.unique(block)) == 50_000
    assert block.min() >= 0
    assert block.max() < n
    assert list(itertools.islice(order, 20)) == order[:20].tolist()


@pytest.mark.parametrize("n", [10**6, *HUGE])
def test_memory_does_not_grow_with_the_length(n):
    KeyedPermutation(n)[:10]
    tracemalloc.start()
    try:
        order = KeyedPermutation(n)
        order[5], order[:10], order.inverse(7), next(iter(order))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000
    assert len(pickle.dumps(order)) < 2000


@pytest.mark.parametrize("n", [0, 1, 5, 4096, 4097, 10**12, 2**63 - 1])
def test_places_and_items_out_of_range(n):
    order = KeyedPermutation(n)
    for k in (n, n + 1, -n - 1, 2**63, -(2**63) - 1, 2**70, -(2**70)):
        with pytest.raises(IndexError, match=rf"position must be in .*got {k}$"):
            order[k]
    for item in (n, -1, -n, 2**63, 2**70, -(2**70)):
        with pytest.raises(IndexError, match=rf"index must be in .*got {item}$"):
            order.inverse(item)


@pytest.mark.parametrize("k", [1.0, "1", None, (1,), 1j, float("nan")])
def test_places_and_items_of_another_type(k):
    order = KeyedPermutation(10)
    with pytest.raises(TypeError, match="position must be an integer"):
        order[k]
    with pytest.raises(TypeError, match="index must be an integer"):
        order.inverse(k)


@pytest.mark.parametrize("n", [10, 5000])
def test_whatever_is_an_integer_is_a_place(n):
    order = KeyedPermutation(np.int64(n), torch.tensor(3), np.array(2))
    assert [type(value) for value in (order.n, order.seed, order.epoch)] == [int] * 3
    assert list(order) == list(KeyedPermutation(n, 3, 2))
    for k in (np.int64(7), np.uint8(7), torch.tensor(7), np.array(7)):
        assert order[k] == order[7]
        assert order.inverse(k) == order.inverse(7)


@pytest.mark.parametrize("n", [10, 5000])
def test_an_order_is_a_function_of_its_arguments(n):
    order = KeyedPermutation(n, 3, 2)
    assert list(order) == list(order) == list(KeyedPermutation(n, 3, 2))
    assert list(pickle.loads(pickle.dumps(order))) == list(order)
    assert repr(order) == f"KeyedPermutation(n={n}, seed=3, epoch=2)"


@pytest.mark.parametrize("n", [10, 5000])
def test_what_it_hands_out_is_not_its_own(n):
    order = KeyedPermutation(n, 3)
    items = list(order)
    order[:][:] = 0
    order[:5][:] = 0
    assert list(order) == items


@pytest.mark.parametrize("n", [50, 5000, 10**12])
def test_every_key_has_an_order_of_its_own(n):
    seeds = [0, 1, 2, 5, 2**32, 2**32 + 5, 2**64, 5 + 7 * 2**32]
    epochs = [0, 1, 2, 5, 7]
    keys = list(itertools.product(seeds, epochs))
    starts = {tuple(KeyedPermutation(n, *key)[:12].tolist()) for key in keys}
    assert len(starts) == len(keys)


# From here on: as good as a shuffle.


def chi_square(counts, expected=None):
    return stats.chisquare(counts, expected).pvalue


def association(rows, columns, bins):
    """The p-value that two binned sequences have nothing to do with each other."""
    table = np.bincount(rows * bins + columns, minlength=bins * bins).reshape(bins, bins)
    return stats.chi2_contingency(table).pvalue


def rank(orders):
    """Each of many orders of 5 as a number below 120."""
    ranks = {order: k for k, order in enumerate(itertools.permutations(range(5)))}
    return np.bincount([ranks[tuple(order)] for order in orders], minlength=120)


MANY = 15_000


@pytest.fixture(scope="module")
def fives():
    by_seed = np.array([KeyedPermutation(5, seed, 0)[:] for seed in range(MANY)])
    by_epoch = np.array([KeyedPermutation(5, 0, epoch)[:] for epoch in range(MANY)])
    return {"seed": by_seed, "epoch": by_epoch}


@pytest.mark.parametrize("by", ["seed", "epoch"])
def test_all_orders_of_five_are_equally_likely(fives, by):
    assert chi_square(rank(fives[by].tolist())) > ALPHA


@pytest.mark.parametrize("by", ["seed", "epoch"])
@pytest.mark.parametrize("lag", [1, 2, 1024])
def test_orders_of_five_say_nothing_about_the_next(fives, by, lag):
    earlier, later = fives[by][:-lag], fives[by][lag:]
    # How one order is carried to the other is an order again, and all are equally likely.
    between = np.take_along_axis(later, np.argsort(earlier, axis=1), axis=1)
    assert chi_square(rank(between.tolist())) > ALPHA


@pytest.mark.parametrize("by", ["seed", "epoch"])
@pytest.mark.parametrize("n", [7, 64, 4096, 4097, 2**17 + 1, 10**12])
def test_first_and_last_items_are_uniform(n, by):
    keys = [(k, 0) if by == "seed" else (0, k) for k in range(2000)]
    pairs = np.array([KeyedPermutation(n, *key)[:: n - 1] for key in keys])
    bins = n if n <= 64 else 40
    first, last = pairs.T * bins // n
    assert chi_square(np.bincount(first, minlength=bins)) > ALPHA
    assert chi_square(np.bincount(last, minlength=bins)) > ALPHA
    assert stats.spearmanr(first[:-1], first[1:]).pvalue > ALPHA
    assert stats.spearmanr(last[:-1], first[1:]).pvalue > ALPHA


def test_every_item_is_as_likely_at_every_place_of_a_short_order():
    n, keys = 52, 3000
    orders = np.array([KeyedPermutation(n, seed)[:] for seed in range(keys)])
    places = np.broadcast_to(np.arange(n), orders.shape)
    counts = np.bincount((places * n + orders).ravel(), minlength=n * n)
    # Each order fills a row and a column exactly, so the statistic has (n-1)**2 degrees of freedom.
    statistic = ((counts - keys / n) ** 2).sum() / (keys / n) * (n - 1) / n
    assert ALPHA < stats.chi2.sf(statistic, (n - 1) ** 2) < 1 - ALPHA
    steps = (orders[:, 1:] - orders[:, :-1]) % n
    assert chi_square(np.bincount(steps.ravel(), minlength=n)[1:]) > ALPHA


LONG = [4096, 4097, 5000, 2**15, 2**17 + 1, 10**6]


def high_bits(values, n, bins=16):
    return values * bins // n


def low_bits(values, n, bins=16):
    return values % bins


@pytest.fixture(scope="module")
def long_orders():
    keys = [(0, 0), (0, 1), (1, 0), (2**64, 0)]
    return {n: [KeyedPermutation(n, *key)[:] for key in keys] for n in LONG}


@pytest.mark.parametrize("n", LONG)
@pytest.mark.parametrize("bits", [high_bits, low_bits])
def test_places_and_neighbours_say_nothing_about_an_item(long_orders, n, bits):
    for order in long_orders[n]:
        items = bits(order, n)
        assert association(bits(np.arange(n), n), items, 16) > ALPHA
        assert association(items[:-1], items[1:], 16) > ALPHA
        assert association(items[:-2], items[2:], 16) > ALPHA
        assert association(items[: n // 2], items[n - n // 2 :], 16) > ALPHA


@pytest.mark.parametrize("n", LONG)
@pytest.mark.parametrize("bits", [high_bits, low_bits])
def test_other_seeds_and_epochs_say_nothing_about_an_item(long_orders, n, bits):
    for one, other in itertools.combinations(long_orders[n], 2):
        assert association(bits(one, n), bits(other, n), 16) > ALPHA
        assert stats.spearmanr(one[:50_000], other[:50_000]).pvalue > ALPHA


@pytest.mark.parametrize("n", LONG)
def test_steps_from_neighbour_to_neighbour_are_uniform(long_orders, n):
    for order in long_orders[n]:
        steps = np.diff(order) % n
        assert chi_square(np.bincount(steps * 64 // n, minlength=64)) > ALPHA
        # Which bits change from one item to the next; a short cycle in the rounds shows here.
        flips = order[:-1] ^ order[1:]
        assert chi_square(np.bincount(flips % 16, minlength=16)) > ALPHA


@pytest.mark.parametrize(("n", "keys"), [(5, 4000), (100, 4000), (4096, 1000), (5000, 1000)])
def test_fixed_points_are_as_many_as_chance_leaves(n, keys):
    places = np.arange(n)
    fixed = [int((KeyedPermutation(n, 11, k)[:] == places).sum()) for k in range(keys)]
    if n == 5:
        chance = np.array([44, 45, 20, 10, 1]) / 120  # four can't be, so five count as four
    else:
        chance = stats.poisson.pmf(range(4), 1)
        chance = np.append(chance, 1 - chance.sum())
    counts = np.bincount(np.minimum(fixed, 4), minlength=5)
    assert chi_square(counts, chance * keys) > ALPHA


@pytest.mark.parametrize(("n", "keys"), [(2**17 + 1, 40), (10**6, 12)])
def test_fixed_points_of_long_orders_are_as_many_as_chance_leaves(n, keys):
    places = np.arange(n)
    fixed = sum(int((KeyedPermutation(n, seed)[:] == places).sum()) for seed in range(keys))
    assert ALPHA < stats.poisson.cdf(fixed, keys) < 1 - ALPHA


@pytest.mark.parametrize(("n", "keys"), [(100, 2000), (5000, 500), (10**5, 40)])
def test_ascents_are_as_many_as_chance_leaves(n, keys):
    ascents = np.array([(np.diff(KeyedPermutation(n, seed)[:]) > 0).sum() for seed in range(keys)])
    # The Eulerian distribution: mean (n-1)/2, variance (n+1)/12.
    scores = (ascents - (n - 1) / 2) / np.sqrt((n + 1) / 12)
    assert abs(scores.mean()) * np.sqrt(keys) < stats.norm.isf(ALPHA / 2)
    assert ALPHA < stats.chi2.sf((scores**2).sum(), keys) < 1 - ALPHA


def cycles(order):
    seen = bytearray(len(order))
    count = 0
    for start in range(len(order)):
        if not seen[start]:
            count += 1
            k = start
            while not seen[k]:
                seen[k] = 1
                k = order[k]
    return count


@pytest.mark.parametrize(("n", "keys"), [(100, 1500), (5000, 150)])
def test_cycles_are_as_many_as_chance_leaves(n, keys):
    counts = [cycles(KeyedPermutation(n, seed)[:].tolist()) for seed in range(keys)]
    # A permutation has as many cycles as independent 1/k chances hit, k = 1 .. n.
    chances = 1 / np.arange(1, n + 1)
    mean, variance = chances.sum(), (chances * (1 - chances)).sum()
    score = (np.mean(counts) - mean) / np.sqrt(variance / keys)
    assert abs(score) < stats.norm.isf(ALPHA / 2)


@pytest.mark.parametrize("n", [10, 5_000])
def test_an_array_of_positions(n):
    order = KeyedPermutation(n, seed=3, epoch=1)
    places = np.array([7, 0, 7, n - 1])
    for some in (places, places.astype(np.uint16), places[:0]):
        assert order[some].tolist() == [order[int(place)] for place in some]
    with pytest.raises(IndexError, match=r"positions must be in \[0, \d+\), got 0 to \d+"):
        order[np.array([0, n])]
    for wrong in (np.array([0.5]), np.array([[1]]), np.array([True])):
        with pytest.raises(TypeError, match="positions must be integers in one dimension"):
            order[wrong]
