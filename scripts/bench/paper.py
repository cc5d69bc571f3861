"""What the stdchk paper (Al Kiswany et al., ICDCS 2008) measured, transcribed with its section or table.

The points of its plots are not in its text, so of Figures 2 to 7 only what the text says is here. MB are the paper's own.
"""

TABLE_1 = {"Local I/O": (11.80, 0.16), "FUSE to local I/O": (12.00, 0.24), "/stdchk/null": (1.04, 0.03)}
"""Table 1: seconds to write a 1 GB file, mean and standard deviation."""

LOCAL_MB_S = 86.2
"""Section V.A: sustained writes to the local disk, MB/s."""

FIGURE_2 = [
    ("local disk (V.A)", "86.2 MB/s"),
    ("NFS on the same node (V.A)", "24.8 MB/s"),
    ("complete local write", "similar to FUSE local writes, about 85 MB/s"),
    ("sliding window and incremental writes", "around 110 MB/s; two benefactors saturate the client's 1 Gbps"),
]
FIGURE_3 = [
    ("complete local write", "worst, and improves only slightly with more benefactors"),
    ("sliding window", "best; saturates the Gigabit card with two benefactors"),
]
FIGURES_4_5 = [
    ("OAB", "increases with larger buffers, as the application returns while they drain"),
    ("ASB", "the size of the buffer has no significant impact"),
]
FIGURE_6 = [("OAB, four benefactors, 512 MB buffer, 10 Gbps", "325 MB/s"), ("ASB, the same", "225 MB/s")]
FIGURE_8 = [("20 benefactors, 7 clients, sustained peak", "about 280 MB/s, limited by the network of the testbed")]
FIGURE_7 = [
    ("with FsCH", "slightly slower, and 24 % less space and network effort"),
    ("256 MB buffer with FsCH", "OAB 25 % lower, ASB similar"),
]

TABLE_2 = [
    ("BMS", "application", "1", 100, 2.7),
    ("BLAST", "library (BLCR)", "5", 902, 279.6),
    ("BLAST", "library (BLCR)", "15", 654, 308.1),
    ("BLAST", "VM (Xen)", "5", 100, 1024.8),
    ("BLAST", "VM (Xen)", "15", 300, 1024.8),
]
"""Table 2: application, type of checkpoint, interval in minutes, number, average size in MB."""

TABLE_3 = {
    "FsCH 1 KB": ((0.0, 96), (25.0, 99), (9.0, 100)),
    "FsCH 256 KB": ((0.0, 102), (24.3, 110), (7.1, 112)),
    "FsCH 1 MB": ((0.0, 108), (23.4, 109), (6.3, 113)),
    "CbCH overlap": ((0.0, 1.5), (84.0, 1.1), (70.9, 1.1)),
    "CbCH no-overlap, m = 20 B, k = 14 b": ((0.0, 28.4), (82.0, 26.6), (70.0, 26.4)),
}
"""Table 3: similarity in % and MB/s, for BMS at 1 min, BLAST by BLCR at 5 min and at 15 min. Xen: low similarity."""

WINDOWS = (20, 32, 64, 128, 256)
TABLE_4 = {
    8: {
        "similarity": (30.0, 62.8, 62.4, 64.3, 64.5),
        "rate": (85.7, 86.8, 86.3, 86.0, 84.2),
        "average": (519.2, 522.4, 530.7, 547.3, 579.5),
        "shortest": (325.1, 275.6, 210.1, 350.2, 257.1),
        "longest": (614.3, 627.3, 668.9, 787.3, 967.9),
    },
    10: {
        "similarity": (38.6, 72.4, 66.3, 65.0, 64.7),
        "rate": (75.6, 78.2, 77.5, 74.6, 69.5),
        "average": (539.3, 552.5, 584.7, 654.8, 778.9),
        "shortest": (265.9, 283.9, 294.7, 409.2, 380.8),
        "longest": (893.9, 890.0, 1095.0, 1491.2, 2251.7),
    },
    12: {
        "similarity": (77.3, 73.4, 65.6, 63.0, 60.7),
        "rate": (47.0, 53.6, 50.2, 52.3, 53.6),
        "average": (626.3, 665.4, 812.5, 1076.3, 1544),
        "shortest": (239.8, 242.2, 269.5, 437.7, 456.2),
        "longest": (1683.8, 1807.8, 2632.5, 3812.7, 4510.4),
    },
    14: {
        "similarity": (82.4, 71.7, 61.3, 58.4, 57.1),
        "rate": (26.6, 32.7, 34.2, 40.6, 46.43),
        "average": (930.8, 1079.2, 1635.6, 2267.3, 2908.6),
        "shortest": (514.9, 232.0, 449.5, 528.8, 506.8),
        "longest": (3710.9, 3639.5, 4515.1, 4662.2, 4646.6),
    },
}
"""Table 4: for k bits, over the windows m in bytes: similarity in %, MB/s, and lengths of chunks in KB."""

TABLE_5 = {
    "Total execution time (s)": (462_141, 455_894, "1.3 %"),
    "Checkpointing time (s)": (22_733, 16_497, "27.0 %"),
    "Data size (TB)": (3.55, 1.14, "69.0 %"),
}
"""Table 5: local disk, stdchk, improvement."""
