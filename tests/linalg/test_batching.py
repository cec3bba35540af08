from hypothesis import given
from hypothesis import strategies as st

from tilewise.linalg.batching import MOST_ELEMENTS, MOST_MATRICES, batch_shape, shared_panel

COUNT = st.integers(1, 10**7)
SIZE = st.integers(1, 10**4)


@given(COUNT, COUNT, COUNT, SIZE, SIZE)
def test_batches_keep_within_the_panel_the_vendors_limit_and_memory(panel, matrices, right_hand_sides, n, p):
    count, width = batch_shape(panel, matrices, right_hand_sides, n, p)
    assert 1 <= count <= matrices
    assert 1 <= width <= right_hand_sides
    assert count * width <= panel
    assert count <= MOST_MATRICES < 32_000
    assert count == 1 or count * n * p <= MOST_ELEMENTS


@given(SIZE, SIZE)
def test_panels_of_a_shared_matrix_are_multiples_of_64_within_bounds(n, p):
    panel = shared_panel(n, p)
    assert panel % 64 == 0
    assert 64 <= panel <= 4096
    assert panel == 64 or panel * (n + 2 * p) <= 2 * MOST_ELEMENTS
