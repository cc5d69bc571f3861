//! A manager that stands by reads the pool's own record in etcd, to tell callers where to go. It holds no lease that would have to be
//! renewed for that, and what it read may be old a moment later.

use serde_json::{Value, json};
use stdchk_model::limits::{MANAGER_ADDRESS_BYTES_MAX, MANAGERS_MAX};
use stdchk_model::message::handshake::{Leader, StandingBy};
use stdchk_model::message::manager::{Era, ManagerInfo};

use super::Etcd;
use super::election::ask;
use super::gateway::{AskError, bytes, list, number, range, text};
use super::store::{CONTEXT, PIECES_AT_ONCE, piece_key, record_key};
use crate::record::{POOL_KEY, PoolRecord, decode};
use crate::store::{Checker, Table};

/// The pool, as it is with this leader; `None`: there is none yet.
pub(super) async fn read(etcd: &Etcd, leader: Option<Leader>) -> Result<Option<StandingBy>, AskError> {
    let key = [&[Table::Pool as u8], POOL_KEY].concat();
    let Some(record) = read_record(etcd, &key).await? else { return Ok(None) };
    let record: PoolRecord =
        decode(&record, "the pool").map_err(|error| AskError::Refused(error.to_string()))?;
    let era = record.eras.last().copied().unwrap_or(Era::FIRST);
    Ok(Some(StandingBy { pool: record.pool, leader, managers: record.managers, era }))
}

/// The leader that has written this, as the key `leader` has it.
pub(super) fn leader(info: ManagerInfo, leadership: u64) -> Leader {
    let mut addresses = info.addresses;
    addresses.retain(|address| address.len() <= MANAGER_ADDRESS_BYTES_MAX);
    addresses.truncate(MANAGERS_MAX);
    Leader { addresses, leadership }
}

/// One record, at one of etcd's revisions.
async fn read_record(etcd: &Etcd, key: &[u8]) -> Result<Option<Vec<u8>>, AskError> {
    let damaged = || AskError::Refused("the record of the pool is damaged".to_owned());
    let checker = Checker::new(CONTEXT);
    let answer = ask(etcd, "kv/range", json!({"key": text(&record_key(etcd, key))})).await?;
    let [found] = list(&answer, "kvs") else { return Ok(None) };
    let value = bytes(found, "value")?;
    let (content, _) = checker.open(key, &value).ok_or_else(damaged)?;
    let pieces = match content.split_first() {
        Some((0, record)) => return Ok(Some(record.to_vec())),
        Some((1, pieces)) => u32::from_be_bytes(<[u8; 4]>::try_from(pieces).map_err(|_| damaged())?),
        _ => return Err(damaged()),
    };
    let revision = number(answer.get("header").unwrap_or(&Value::Null), "revision")?;
    let (mut record, mut next) = (Vec::new(), 0);
    while next < pieces {
        let (from, to) = (piece_key(etcd, key, next), piece_key(etcd, key, pieces));
        let answer = ask(etcd, "kv/range", range(&from, &to, PIECES_AT_ONCE, revision)).await?;
        let found = list(&answer, "kvs");
        if found.is_empty() {
            return Err(damaged());
        }
        for piece in found {
            let value = bytes(piece, "value")?;
            let (piece, _) = checker.open(&piece_key(etcd, key, next), &value).ok_or_else(damaged)?;
            record.extend(piece);
            next += 1;
        }
    }
    Ok(Some(record))
}
