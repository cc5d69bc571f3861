//! What other benefactors may ask of this one: copies of those chunks, and fragments of those encodings, for which they show a permit of the
//! manager.
//!
//! The key of permits comes with the registration, and the next one with an answer to a heartbeat. Those of the last two hold. So a
//! permit ends when the manager has changed the key twice, or the benefactor registers anew; this machine's clock has no part in
//! it. While the manager is away, what it permitted last stays permitted.

use parking_lot::Mutex;
use stdchk_model::message::benefactor::BenefactorRequest;
use stdchk_model::message::handshake::MemberId;
use stdchk_model::{BlockId, ErrorCode, Failure, Permit, PermitKey};

/// The keys: none before the first registration.
#[derive(Debug, Default)]
pub(crate) struct Permits(Mutex<(Option<PermitKey>, Option<PermitKey>)>);

impl Permits {
    /// Takes the key of a new registration: no permit of before holds any more.
    pub(crate) fn begin(&self, key: PermitKey) {
        *self.0.lock() = (Some(key), None);
    }

    /// Takes the next key; the one before still holds.
    pub(crate) fn go_on(&self, key: PermitKey) {
        let mut keys = self.0.lock();
        *keys = (Some(key), keys.0.take());
    }

    /// Refuses what another benefactor, this member of the pool, asks for without a permit for each block, in order.
    pub(crate) fn check(
        &self,
        request: &BenefactorRequest,
        permits: &[Permit],
        member: Option<MemberId>,
    ) -> Result<(), Failure> {
        let blocks: &[BlockId] = match request {
            BenefactorRequest::Put { block, .. }
            | BenefactorRequest::Get { block }
            | BenefactorRequest::Prove { block, .. } => std::slice::from_ref(block),
            BenefactorRequest::Sync { blocks, .. } | BenefactorRequest::Verify { blocks } => blocks,
            // Tells of no block; or is refused to all benefactors.
            BenefactorRequest::Status
            | BenefactorRequest::Journal { .. }
            | BenefactorRequest::PutNear { .. }
            | BenefactorRequest::HasNear { .. }
            | BenefactorRequest::GetNear { .. } => &[],
        };
        let keys = self.0.lock().clone();
        let holds = |(block, permit): (&BlockId, &Permit)| {
            let holds = |key| permit.holds(key, &block.chunk, block.encoding, member);
            [&keys.0, &keys.1].into_iter().flatten().any(holds)
        };
        match blocks.len() == permits.len() && blocks.iter().zip(permits).all(holds) || blocks.is_empty() {
            true => Ok(()),
            false => {
                let message = "a benefactor may ask another one for what the manager permits, and shows no permit that holds";
                Err(Failure::new(ErrorCode::Denied, message).then("the manager orders the copy anew"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use stdchk_model::{ChunkId, Code, EncodingId, Maker, ReceiptKey};

    use super::*;

    fn key(number: u64) -> PermitKey {
        PermitKey::new(&ReceiptKey([1; 32]), 1, 1, number)
    }

    fn block(number: u8) -> BlockId {
        BlockId::plain(ChunkId([number; 32]))
    }

    #[test]
    fn a_permit_to_put_copies_of_a_chunk_is_none_to_put_fragments_of_it() {
        let permits = Permits::default();
        permits.begin(key(0));
        let code = Code::erasure(2, 1).unwrap();
        let ordered = EncodingId { code, tag: [3; 16], maker: Maker([4; 8]) };
        let made_up = EncodingId { tag: [5; 16], ..ordered };
        let compressed = EncodingId { tag: [6; 16], ..EncodingId::PLAIN };
        let get = |encoding| BenefactorRequest::Get { block: BlockId { encoding, ..block(1) } };
        let permit = |encoding| Permit::new(&key(0), &block(1).chunk, encoding, None);
        let is_let = |asked, shown| permits.check(&get(asked), &[permit(shown)], None).is_ok();
        assert!(is_let(ordered, ordered) && is_let(compressed, EncodingId::PLAIN));
        assert!(!is_let(made_up, ordered) && !is_let(made_up, EncodingId::PLAIN));
        assert!(!is_let(EncodingId::PLAIN, ordered));
    }

    #[test]
    fn each_block_needs_a_permit_of_one_of_the_last_two_keys_for_this_member() {
        let (permits, member) = (Permits::default(), Some(MemberId([7; 16])));
        let permit =
            |key: &PermitKey, number| Permit::new(key, &block(number).chunk, EncodingId::PLAIN, member);
        let get = |number| BenefactorRequest::Get { block: block(number) };
        let first = permit(&key(0), 1);
        assert!(permits.check(&get(1), &[first], member).is_err(), "no manager has said anything yet");
        permits.begin(key(0));
        assert_eq!(permits.check(&get(1), &[first], member), Ok(()));
        assert!(permits.check(&get(1), &[], member).is_err());
        assert!(permits.check(&get(2), &[first], member).is_err());
        assert!(permits.check(&get(1), &[first], Some(MemberId([8; 16]))).is_err());
        assert!(permits.check(&get(1), &[first], None).is_err());
        let sync = BenefactorRequest::Sync { blocks: vec![block(1), block(2)], tell: true };
        assert!(permits.check(&sync, &[first], member).is_err(), "one permit is not enough for two chunks");
        assert!(permits.check(&sync, &[first, first], member).is_err());
        assert_eq!(permits.check(&sync, &[first, permit(&key(0), 2)], member), Ok(()));
        assert_eq!(permits.check(&BenefactorRequest::Status, &[], member), Ok(()));
        permits.go_on(key(1));
        assert_eq!(permits.check(&get(1), &[first], member), Ok(()), "it was given before");
        assert_eq!(permits.check(&get(1), &[permit(&key(1), 1)], member), Ok(()));
        permits.go_on(key(2));
        assert!(permits.check(&get(1), &[first], member).is_err(), "it is over");
        permits.begin(key(3));
        assert!(permits.check(&get(1), &[permit(&key(2), 1)], member).is_err(), "of another registration");
    }
}
