"""What the FALCON paper (Islam, Bagchi, Eigenmann, Journal of Grid Computing 2014) measured, transcribed with its section or table.

The points of its plots are not in its text, so of its figures only what the text says is here. MB are the paper's own.
"""

TABLE_1 = {"mcf": (1677, 241, 85.63), "TIGR-I": (946, 201, 78.75), "TIGR-II": (500, 153, 69.4), "TIGR-III": (170, 129, 24.12)}
"""Table 1: MB of a checkpoint, compressed, and by how many percent it shrinks."""

TABLE_3 = {
    "mcf": (1677, 419.25, 241, (65, 64, 62, 62)),
    "TIGR-I": (946, 236.5, 201, (83, 49, 36, 34)),
    "TIGR-II": (500, 125, 153, (40, 40, 39, 34)),
}
"""Table 3: MB to compress by one thread and by each of four, MB to code by one thread and by each of four."""

TABLE_2 = {"jobs": 116, "mean": 1.3130, "deviation": 0.2172, "range": (1.0298, 2.3931)}
"""Table 2: evictions of a job in an hour."""

FIGURE_3 = [
    ("makespan", "11 to 44 % better than with a dedicated server, local or remote"),
    ("evictions of a job in an hour", f"{TABLE_2['mean']}, deviation {TABLE_2['deviation']}, of {TABLE_2['jobs']} jobs"),
]
FIGURES_4_5 = [
    ("storing", "the larger the image, the more a dedicated server (a remote one) takes beyond FALCON: disk and network"),
    ("recovering", "the same; decompression is the largest part of FALCON's time"),
]
FIGURE_6 = [
    ("data sent for 500 MB", "5 x 153 / 3 = 255 MB"),
    ("more clients", "a dedicated server suffers more than FALCON"),
    ("hosts by chance", "more than FALCON: the host behind DSL was chosen 8 % of the time, by FALCON never"),
]
FIGURE_7 = [
    ("choosing again by history and bandwidth", "no worse than by chance"),
    ("pessimistic", "large overhead: bandwidth is measured before each store"),
]
FIGURE_8 = [("load on one of five hosts", "matters from 80 % on; with load balancing that host is passed over")]
FIGURE_9 = [
    ("sequentially", "waits for every loaded host among the three"),
    ("in parallel", "done with the first three of five; with up to two slow hosts not impacted at all (6.3.4)"),
]
FIGURE_10 = [
    ("compression", "the largest contribution to recovery"),
    ("parallel against sequential transfer", "comparable, since fragments are small"),
    ("hosts with 100 % I/O load", "comparable for recovery, for the same reason"),
]
FIGURES_11_13 = [
    ("threads", "compression levels off with the number of cores; half of eight were used"),
    ("compression by four threads", "up to 67 % less time"),
    ("coding", "less than half of the bytes for each thread, and less time"),
    ("decompression", "the larger the image, the less is gained: all threads write one file"),
]
