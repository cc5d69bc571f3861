//! The limits that both ends of the protocol and the stored formats rely on, each with its reason.

/// Largest plain chunk, bytes. Bounds every buffer that holds a chunk; larger chunks gain nothing in bandwidth.
pub const CHUNK_BYTES_MAX: usize = 4 << 20;
/// Smallest configurable chunk, bytes. Below it the metadata of a chunk outweighs its content.
pub const CHUNK_BYTES_MIN: usize = 4 << 10;
/// Space that a block takes beside its bytes at a benefactor, at most, bytes: its record's head, what is added to whole units, the head of
/// a new segment.
pub const BESIDE_BLOCK_BYTES_MAX: u64 = 12 << 10;
/// Chunk size of a new folder (paper, section V: 1 MB), bytes.
pub const CHUNK_BYTES_DEFAULT: usize = 1 << 20;
/// Largest chunk that is stored without a question whether the pool has it, if it is all of a new file, bytes. Sending so much takes less
/// time than the question on the networks that this is for, and little space is wasted where the same content is stored twice. It is
/// also what a new file gets reserved.
pub const SMALL_BYTES: usize = 64 << 10;
/// Largest stored block, bytes: a chunk that no codec shrank, plus room for an encryption's tag and nonce.
pub const BLOCK_BYTES_MAX: usize = CHUNK_BYTES_MAX + 4096;
/// Most blocks of an erasure code, m + k: so many hosts with a fragment each fail together rarely enough, and the hashes of all
/// blocks, which stand in the record of each, fit into its first unit.
pub const CODE_BLOCKS_MAX: usize = 32;
/// Least length of a fragment, bytes: a unit of a benefactor's disk. Smaller ones would cost more than copies do.
pub const FRAGMENT_BYTES_MIN: u32 = 4096;
/// Least length of encoded bytes for each data fragment from which on a chunk is coded, bytes. Smaller chunks are replicated
/// k + 1 times: they survive as many losses, and a request costs more than the bytes that coding saves.
pub const CODED_BYTES_PER_FRAGMENT_MIN: u32 = 16 << 10;
/// Largest body of a message, bytes. Lists longer than this are sent in parts.
pub const BODY_BYTES_MAX: usize = 16 << 20;
/// Most entries in one list of a message (chunks, blocks, directory entries): keeps bodies below [`BODY_BYTES_MAX`].
pub const LIST_ENTRIES_MAX: usize = 65_536;
/// Requests that one connection may have in flight; a peer that sends more waits.
pub const REQUESTS_IN_FLIGHT_MAX: usize = 64;

/// Longest name of a directory entry, bytes (Linux `NAME_MAX`).
pub const NAME_BYTES_MAX: usize = 255;
/// Longest text in which a process tells others of its pool what its machine refused, bytes.
pub const CAUSE_BYTES_MAX: usize = 200;
/// Longest path and symbolic link, bytes (Linux `PATH_MAX`, less its NUL).
pub const PATH_BYTES_MAX: usize = 4095;

/// A chunk map up to this size is kept at the manager with the version; a larger one is stored in the pool, bytes.
pub const MAP_INLINE_BYTES_MAX: usize = 512;
/// What a version that lies in a container takes at the manager, bytes: the root of a container of 100 GB at the least, and
/// little beside the versions themselves.
pub const IN_CONTAINER_BYTES_MAX: usize = 4096;
/// Largest encoded chunk map that is read, bytes: 2^32 MiB-chunks would need far more memory than a reader has.
pub const MAP_BYTES_MAX: u64 = 1 << 30;
/// Largest file, bytes: offsets must fit the kernel's signed 64 bits.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Time without a sign of life after which a client's sessions expire and its reservations return, milliseconds.
/// Covers a manager restart and a stalled machine; short enough that a dead mount's space is back within a minute.
pub const CLIENT_LEASE_MS: u64 = 30_000;
/// Interval of a client's signs of life, milliseconds: several fit into a lease.
pub const CLIENT_KEEPALIVE_MS: u64 = 5_000;
/// Interval of a benefactor's heartbeats, unless the manager of a large pool asks for a longer one, milliseconds.
pub const HEARTBEAT_MS: u64 = 500;
/// Time without a heartbeat after which a benefactor gets no new chunks and counts as off-line, milliseconds.
pub const BENEFACTOR_LEASE_MS: u64 = 5_000;
/// Time without a heartbeat after which a benefactor's blocks count as lost and are copied elsewhere, milliseconds.
/// Longer than a reboot would waste less copying; shorter leaves less time with fewer replicas.
pub const BENEFACTOR_LOST_MS: u64 = 30_000;

/// Most benefactors that one member of a pool registers: a machine has fewer disks, and a pool takes 65536 of all. Those in memory that are lost
/// are none of them.
pub const BENEFACTORS_OF_MEMBER_MAX: usize = 64;
/// Most benefactors of which a client tells at a time what it sent there; the others come with its next sign of life.
pub const SENT_ENTRIES_MAX: usize = 256;
/// Most other benefactors of which one says at a time that it can't send to them: it looks at each of them every few seconds. One that reaches none
/// says that beside.
pub const UNREACHED_MAX: usize = 64;
/// Most labels of a benefactor: they stand in its record and in each answer that names it.
pub const LABELS_MAX: usize = 8;
/// Longest name and longest value of a label, bytes.
pub const LABEL_BYTES_MAX: usize = 64;
/// How often the key is changed with which the manager permits copies at a benefactor, milliseconds. A permit holds for as long, and for
/// twice as long at most; the copy for which it is given up is given up after a minute.
pub const PERMITS_MS: u64 = 300_000;

/// Most addresses at which a pool's managers serve: each is tried by all members whenever none answers.
pub const MANAGERS_MAX: usize = 16;
/// Longest address of one, bytes: the longest name in the domain name system, and a port.
pub const MANAGER_ADDRESS_BYTES_MAX: usize = 262;

/// Copies of a chunk in a new folder.
pub const REPLICAS_DEFAULT: u8 = 2;
/// Most copies of a chunk.
pub const REPLICAS_MAX: u8 = 16;
/// Benefactors that one file is striped over unless the folder says otherwise.
pub const STRIPE_WIDTH_DEFAULT: u16 = 8;
/// Most benefactors that one file is striped over.
pub const STRIPE_WIDTH_MAX: u16 = 256;
/// Memory that a client process holds for writes in flight unless told otherwise, bytes.
pub const WINDOW_BYTES_DEFAULT: u64 = 64 << 20;
/// Size of a temporary file of an incremental write unless told otherwise, bytes.
pub const SEGMENT_BYTES_DEFAULT: u64 = 64 << 20;
/// Smallest window, bytes: below a few chunks nothing overlaps any more.
pub const WINDOW_BYTES_MIN: u64 = 4 << 20;
