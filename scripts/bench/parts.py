"""The parts of the report, in their order: what each shows, what it needs, and the command that measures that."""

import dataclasses
import typing

from bench import parts_falcon, parts_images, parts_sets, parts_writes
from bench.figures import median
from bench.markup import table


@dataclasses.dataclass
class Part:
    title: str
    what: str
    needs: tuple
    command: str
    show: typing.Callable


def bench(measure):
    return f"stdchk-bench --size full --only {measure}"


WITH_SETS = " --sets DIR, with a folder of checkpoint files for each set"
WITH_IMAGES = " --images DIR, after scripts/images blast numpy --into DIR"



def as_they_are(rows):
    """A table with a column for each key that a row has."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return table(keys, [[plain(row.get(key)) for key in keys] for row in rows])


def plain(value):
    """A value for a cell."""
    if isinstance(value, list):
        return median(value) if value and all(isinstance(one, (int, float)) for one in value) else len(value) or None
    return value


def placement(found):
    """A table of the policies for each trace."""
    headings = ["policy", "failures", "checkpoints lost, %", "95 % of them between", "makespan", "repairs per 100"]
    tables = []
    for report in found["placement"]["rows"]:
        rows = []
        for row in report["rows"]:
            lost = row["unrecoverable_percent"]
            between = f"[{lost['low']:.2f}, {lost['high']:.2f}]"
            rows.append([row["name"], row["failures"], lost["value"], between, row["makespan"]["value"],
                         row["repairs_per_hundred"]["value"]])  # fmt: skip
        tables.append(table(headings, rows, f"{report['trace']}: {report['hosts']} hosts"))
    return "\n".join(tables)


ALL = [
    Part(
        "Table 1: the cost of FUSE",
        "Time to write a file to the local disk, through a FUSE file system that passes it on, and to one "
        "that does nothing.",
        ("writes",),
        bench("writes"),
        parts_writes.table_1,
    ),
    Part(
        "What the machine itself can do",
        "What must be done with every byte, each by itself, and how near the mount comes to the sum of it. All "
        "parties share this machine's processors.",
        ("bounds",),
        bench("bounds"),
        lambda found: parts_writes.transfers(found["bounds"]["rows"]["rows"])
        + as_they_are(found["bounds"]["rows"]["sums"]),
    ),
    Part(
        "Figure 8: many machines",
        "Clients that begin one after the other and write file after file to a pool of many benefactors. Each machine is a network "
        "namespace with a link of its own, and all connections are encrypted; all share the processors of this machine.",
        ("machines",),
        bench("machines"),
        parts_writes.figure_8,
    ),
    Part(
        "Repair of a lost benefactor",
        "A benefactor is lost for good; the others make anew what it had, over their links.",
        ("repair",),
        bench("repair"),
        lambda found: as_they_are(found["repair"]["rows"]),
    ),
    Part(
        "The manager alone",
        "Small files that are made and committed, each durable, by several clients at once; and a pool of many simulated "
        "benefactors, whose manager is killed and started again, and which then loses one in twenty of them.",
        ("manager",),
        bench("manager"),
        lambda found: as_they_are(found["manager"]["rows"]["commits"])
        + as_they_are([found["manager"]["rows"]["large"]]),
    ),
    Part(
        "Figures 2 and 3: over the number of benefactors",
        "Rates that the application observes, and at which data become safe. Lines across: what the machine "
        "itself can.",
        ("stripe",),
        bench("stripe"),
        parts_writes.figures_2_3,
    ),
    Part(
        "Figures 4 and 5: over the window",
        "The paper found that a larger window lets the application go sooner and does not make the data safe "
        "sooner.",
        ("window",),
        bench("window"),
        parts_writes.figures_4_5,
    ),
    Part(
        "Figure 6: a window of 512 MiB over benefactors",
        "The paper's client had 10 Gbps, its benefactors 1 Gbps each. Here all are on one machine.",
        ("window",),
        bench("window"),
        parts_writes.figure_6,
    ),
    Part(
        "Table 2: the images",
        "What was dumped. The paper's traces are not public, so these are series of our own of the same and "
        "of another program.",
        ("similarity",),
        bench("similarity") + WITH_IMAGES,
        parts_images.table_2,
    ),
    Part(
        "Table 3: similarity and rate of the paper's cutters",
        "How much of an image is found in the one before it.",
        ("similarity",),
        bench("similarity") + WITH_IMAGES,
        parts_images.table_3,
    ),
    Part(
        "The default cutter",
        "The paper took FsCH because CbCH was slow. What content-defined cutting finds and costs today: "
        "stdchk's own cutter, beside the fastcdc crate (v2020) with the same limits and beside fixed pieces.",
        ("similarity",),
        bench("similarity") + WITH_IMAGES,
        parts_images.default_cutter,
    ),
    Part(
        "Table 4: CbCH no-overlap over m and k",
        "The trade-off between similarity, rate and size of pieces.",
        ("similarity",),
        bench("similarity") + WITH_IMAGES,
        parts_images.table_4,
    ),
    Part(
        "Figure 7: images through the mount",
        "Rates with images of which much is found again, beside data of which nothing is.",
        ("images",),
        bench("images") + WITH_IMAGES,
        parts_images.figure_7,
    ),
    Part(
        "Images end to end",
        "What each policy keeps of each series, and at which rate.",
        ("images",),
        bench("images") + WITH_IMAGES,
        parts_images.end_to_end,
    ),
    Part(
        "Table 5: blastn with checkpoints, whole runs",
        "The same program on the same input, checkpointed to the local disk and to stdchk.",
        ("blast",),
        "scripts/bench-blast",
        parts_images.table_5,
    ),
    Part(
        "Peers: successive images",
        "What a user would take instead to keep repeated images, in the same run.",
        ("peers-images",),
        "scripts/bench-peers images --images DIR",
        parts_images.peer_images,
    ),
    Part(
        "Peers: one file",
        "File systems over four servers, all on this machine, with one copy of the data.",
        ("peers-files",),
        "scripts/bench-peers files",
        parts_images.peer_files,
    ),
    Part(
        "Peers: an erasure code",
        "stdchk and GlusterFS's dispersed volume, both with three data fragments and two of redundancy over five servers on this machine; "
        "and what one server had, made anew.",
        ("peers-coded",),
        "scripts/bench-peers coded",
        parts_falcon.peers_coded,
    ),
    Part(
        "mcrEngine, Table III: the sets",
        "What was packed.",
        ("merging",),
        bench("merging") + WITH_SETS,
        parts_sets.table_3,
    ),
    Part(
        "mcrEngine, Figure 6: one and two passes of compression",
        "The paper's coders, and gzip as the second pass; gzip twice where variables are not known.",
        ("merging",),
        bench("merging") + WITH_SETS,
        parts_sets.figure_6,
    ),
    Part(
        "mcrEngine, Figure 7: over the size of groups",
        "The four merge schemes with the paper's coders; pieces of 64 KiB.",
        ("merging",),
        bench("merging") + WITH_SETS,
        parts_sets.figure_7,
    ),
    Part(
        "mcrEngine, Figure 8: over the length of pieces",
        "The two schemes that interleave.",
        ("merging",),
        bench("merging") + WITH_SETS,
        parts_sets.figure_8,
    ),
    Part(
        "mcrEngine, Figure 9 and Table IV: ratios",
        "The paper's schemes, general compressors and stdchk's levels on the same sets.",
        ("aggregate",),
        bench("aggregate") + WITH_SETS,
        lambda found: parts_sets.figure_9(found) + parts_sets.table_4(found),
    ),
    Part(
        "mcrEngine, Figures 12 and 13: checkpoint and restart end to end",
        "Through a slow file system, with and without packing.",
        ("aggregate",),
        bench("aggregate") + WITH_SETS,
        parts_sets.figures_12_13,
    ),
    Part(
        "Peers: compressors of numbers",
        "Sets of checkpoint files, packed by stdchk and by what knows numbers but no formats; of one core.",
        ("codecs",),
        "scripts/bench-codecs --sets DIR",
        parts_images.peer_codecs,
    ),
    Part(
        "Content that the pool has already",
        "What the same data cost a second time, and reading them back.",
        ("repeats",),
        bench("repeats"),
        parts_writes.repeats,
    ),
    Part(
        "Restores over versions",
        "Whether the newest version comes back as fast as the first.",
        ("versions",),
        bench("versions"),
        parts_writes.plain_rows("versions"),
    ),
    Part(
        "FALCON: which hosts to trust",
        "What each placement would have lost on made-up traces of machines that come and go. `stdchk-replay --trace DIR` does "
        "the same with traces of real ones.",
        ("placement",),
        bench("placement"),
        placement,
    ),
    Part(
        "FALCON, Figure 3: jobs that are evicted",
        "Real jobs whose checkpoints go to the pool or to a dedicated server beside their work, evicted as Table 2 says; time runs sixty times as fast, and "
        "images are as much smaller. Hours and seconds of the paper.",
        ("makespan",),
        bench("makespan"),
        parts_falcon.figure_3,
    ),
    Part(
        "FALCON, Figure 6: clients that store at once",
        "Network namespaces as hosts, whose links are shaped; all share this machine's processors and disk. Times of `stdchk put`, each a "
        "process of its own, beside a plain server of files over TCP.",
        ("testbed-clients",),
        bench("testbed-clients"),
        parts_falcon.figure_6,
    ),
    Part(
        "FALCON, Figure 7: unavailable hosts when something is stored",
        "Benefactors are killed when storing begins, or when half of it is done, or are stopped so that they accept and never answer.",
        ("testbed-hosts",),
        bench("testbed-hosts"),
        parts_falcon.figure_7,
    ),
    Part(
        "FALCON, Figure 8: a loaded host",
        "All hosts share one disk here, so the load is on the link of one host: what others leave of it.",
        ("testbed-hosts",),
        bench("testbed-hosts"),
        parts_falcon.figure_8,
    ),
    Part(
        "FALCON, Figure 9: recovery beside hosts that are ill",
        "What is left when hosts are dead, never answer or are slow; and what a reader would wait for that takes the loaded ones among only three. "
        "stdchk has no way to read fragments one after the other.",
        ("testbed-hosts",),
        bench("testbed-hosts"),
        parts_falcon.figure_9,
    ),
    Part(
        "FALCON, Figure 10: what each technique contributes",
        "The paper's image TIGR-I, stored and recovered with one technique less each time.",
        ("testbed-phases",),
        bench("testbed-phases"),
        parts_falcon.figure_10,
    ),
    Part(
        "FALCON, Table 1, Figures 4 and 5: phases",
        "Images of the paper's sizes (smaller at sizes below full), made up so that they shrink as the paper's do. Each phase alone by one thread; sending and "
        "fetching by the speed of the link; store and recover do all phases at once.",
        ("testbed-phases",),
        bench("testbed-phases"),
        parts_falcon.figures_4_5,
    ),
    Part(
        "Erasure code over links",
        "A store with (3,2) of bytes that don't shrink, as a share of what the client's link carries.",
        ("testbed-links",),
        bench("testbed-links"),
        parts_falcon.links,
    ),
    Part(
        "FALCON, Table 3, Figures 11 to 13: threads",
        "The client's own code for compressing and coding, by as many threads as there are processors. One data fragment of each chunk "
        "is lost when it is decoded.",
        ("coding",),
        bench("coding"),
        parts_falcon.figures_11_13,
    ),
    Part(
        "What an erasure code costs",
        "A pool of five benefactors on this machine.",
        ("coding",),
        bench("coding"),
        parts_falcon.coding,
    ),
    Part(
        "Memory",
        "The mount's peak while it takes a file much larger than its window.",
        ("memory",),
        bench("memory"),
        parts_writes.plain_rows("memory"),
    ),
]


def other(measure):
    """A part for a measure that has none of its own: its rows as they are, lists as their medians; a table for each kind
    of rows where it has several."""

    def show(found):
        rows = found[measure]["rows"]
        kinds = rows.values() if isinstance(rows, dict) else [rows]
        return "\n".join(map(as_they_are, kinds))

    return Part(f"Also measured: {measure}", "As it was measured; lists are shown by their medians.", (measure,),
                bench(measure), show)  # fmt: skip
