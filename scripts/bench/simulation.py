"""A small simulation in numpy whose images are taken: run as `simulation.py SIDE SEED`, until it is killed.

The idea is the mixture of a real code's memory: a mesh that never changes, a field that changes where something happens,
and a history that grows slowly.
"""

import sys

import numpy

SOURCES = 8  # places where heat enters; each moves a cell now and then
REACH = 64  # cells around a source that a step touches
HISTORY_EVERY = 200  # steps from one line of the history to the next


def step(field, mesh, place):
    """Lets the field diffuse in a square around `place`."""
    row, column = place
    square = (slice(row - REACH, row + REACH), slice(column - REACH, column + REACH))
    part = field[square]
    inner = part[1:-1, 1:-1]
    around = part[:-2, 1:-1] + part[2:, 1:-1] + part[1:-1, :-2] + part[1:-1, 2:]
    inner += 0.2 * mesh[square][1:-1, 1:-1] * (around - 4 * inner)
    part[REACH, REACH] += 1.0


def main():
    side, seed = map(int, sys.argv[1:3])
    draw = numpy.random.default_rng(seed)
    if side <= 2 * REACH:
        sys.exit(f"simulation.py: a side of more than {2 * REACH} cells is needed, not {side}")
    mesh = draw.uniform(0.5, 1.0, (side, side))
    start = draw.normal(300.0, 1.0, (side, side))
    field = start.copy()
    places = draw.integers(REACH, side - REACH, (SOURCES, 2))
    history, steps = [], 0
    while True:
        for place in places:
            step(field, mesh, place)
        if steps % HISTORY_EVERY == 0:
            places = numpy.clip(places + draw.integers(-8, 9, places.shape), REACH, side - REACH - 1)
            history.append(field[places[:, 0], places[:, 1]].copy())
        steps += 1


if __name__ == "__main__":
    main()
