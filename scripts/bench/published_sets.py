"""What the mcrEngine paper (Islam et al., SC 2012) measured, transcribed with its section or table, and what is compared.

The points of its plots are not in its text, so of its figures only what the text says is here.
"""

APPLICATIONS = ("", "ALE3D", "Cactus", "Cosmology", "Implosion")
TABLE_3 = [
    ("checkpoints", 32, 32, 128, 64),
    ("total GB", 4.8, 2.41, 1.1, 0.013),
    ("average MB of a file", 154.2, 77.15, 8.4, 0.2),
    ("variables", 56820, 284800, 33562, 9996),
    ("double precision %", 88.8, 33.94, 24.3, 0),
    ("single precision %", 2e-5, 0, 67.2, 74.1),
    ("other %", 11.2, 66.06, 8.5, 25.9),
]
TABLE_4 = [
    ("ALE3D", "best", "27.72 %", "12.7 %"),
    ("ALE3D", "worst", "6.6 %", "6.6 %"),
    ("Cactus", "best", "11.85 %", "115 %"),
    ("Cactus", "worst", "10.69 %", "98 %"),
    ("Cosmology", "best", "20.59 %", "21.14 %"),
    ("Cosmology", "worst", "20.13 %", "20.59 %"),
    ("Implosion", "best", "38.43 %", "38.83 %"),
    ("Implosion", "worst", "36.26 %", "36.26 %"),
]
FIGURES_12_13 = [
    ("checkpoint, ALE3D against no aggregation and no compression", "up to 87 % less"),
    ("checkpoint, Cactus against aggregation without compression", "up to 32 % less"),
    ("restart, ALE3D against no aggregation and no compression", "more than 62 % less"),
    ("restart against compression of single files", "more than 80 % less"),
]
COMPARED = ("Aware-Block: the paper's coders", "Aware: the paper's coders", "stdchk pack, fastest", "stdchk pack, default", "stdchk pack, smallest")
SHOWN = ("Agnostic: gzip -6", "Aware: the paper's coders", "stdchk pack, default", "stdchk pack, smallest")
