//! The first exchange on every connection: who calls, which protocol, which pool. And how a new member gets its keys.
//!
//! What a peer is was shown before: on a connection of the network by its certificate, at a socket of the machine by the kernel, which
//! says whose process it is.

use std::fmt;
use std::str::FromStr;

use minicbor::{Decode, Encode};

use crate::cbor;
use crate::id::PoolId;
use crate::maker::Maker;
use crate::message::manager::Era;
use crate::user::User;

/// Version of the protocol that this code speaks.
///
/// History: 1, the first.
pub const PROTOCOL: u16 = 1;

/// What a peer is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum Role {
    /// A mount, a command, a library user.
    #[n(0)]
    Client,
    /// A benefactor.
    #[n(1)]
    Benefactor,
    /// The manager.
    #[n(2)]
    Manager,
    /// Who runs the pool: a client that may also do what concerns all of it.
    #[n(3)]
    Operator,
}

impl Role {
    /// Its name in certificates and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Benefactor => "benefactor",
            Self::Manager => "manager",
            Self::Operator => "operator",
        }
    }
}

/// What shows who a member is, made once and for ever: the first 16 bytes of the BLAKE3 of its public key. Shown as 32 hexadecimal
/// digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
#[cbor(transparent)]
pub struct MemberId(#[cbor(n(0), with = "minicbor::bytes")] pub [u8; 16]);

impl fmt::Display for MemberId {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(to, "{byte:02x}"))
    }
}

impl FromStr for MemberId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = "a member is named by 32 hexadecimal digits";
        let is_right = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = is_right.then(|| u128::from_str_radix(text, 16)).ok_or(wrong)?;
        number.map(|number| Self(number.to_be_bytes())).map_err(|_| wrong)
    }
}

/// Longest name of a host, bytes: that of a name in the domain name system.
pub const HOST_NAME_BYTES_MAX: usize = 255;

/// Sent by the side that opened the connection.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Hello {
    /// [`PROTOCOL`] of the caller.
    #[n(0)]
    pub protocol: u16,
    /// What the caller is.
    #[n(1)]
    pub role: Role,
    /// The pool that the caller means, if it knows.
    #[n(2)]
    pub pool: Option<PoolId>,
    /// As whom the caller codes fragments, at a socket of the machine. On a connection of the network its certificate says it.
    #[n(3)]
    #[cbor(default)]
    pub maker: Maker,
}

/// The answer to [`Hello`]; a refusal is a [`crate::Failure`] instead.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum Greeted {
    /// The caller is let in.
    #[n(0)]
    Welcome(#[n(0)] Welcome),
    /// A manager that stands by lets nobody in, and says where to go. The server closes the connection.
    #[n(1)]
    StandsBy(#[n(0)] StandingBy),
}

/// The word of a manager that stands by on the one that leads. It may be a moment old, and the caller believes none of it: it tries these addresses as well.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct StandingBy {
    /// The pool.
    #[n(0)]
    pub pool: PoolId,
    /// The manager that leads; `None`: none does.
    #[n(1)]
    pub leader: Option<Leader>,
    /// Where the pool's managers serve, as the operator has set it; none: nobody has said.
    #[n(2)]
    pub managers: Vec<String>,
    /// That of the pool's state.
    #[n(3)]
    pub era: Era,
}

/// A manager that leads.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Leader {
    /// Where it listens.
    #[n(0)]
    pub addresses: Vec<String>,
    /// See [`Welcome::leadership`].
    #[n(1)]
    pub leadership: u64,
}

/// A server's description of itself to a caller that it lets in.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Welcome {
    /// What the server is.
    #[n(0)]
    pub role: Role,
    /// The pool that it serves.
    #[n(1)]
    pub pool: PoolId,
    /// Of a manager: where the pool's managers serve, `host:port`; none: nobody has said.
    #[n(2)]
    pub managers: Vec<String>,
    /// Of a manager: that of the state that it has.
    #[n(3)]
    pub era: Option<Era>,
    /// Of a manager that others stand by for: which time of leading it is, of all that the pool has seen. Two addresses with the same one lead to one manager.
    #[n(4)]
    pub leadership: Option<u64>,
}

/// Which of the tokens that were given out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Encode, Decode)]
#[cbor(transparent)]
pub struct TokenId(#[cbor(n(0), with = "minicbor::bytes")] pub [u8; 8]);

/// Hosts that may join with one token at most: the manager's store keeps the keys of all of them, 16 bytes each, in one record.
pub const TOKEN_USES_MAX: u32 = 1000;

/// The roles that a token gives to hosts. It is part of the token, and nothing of it is kept anywhere: the authority makes the token's secret of
/// this and of its own key, so that each manager with that key knows its tokens.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Grant {
    /// Which token it is.
    #[n(0)]
    pub token: TokenId,
    /// What the new member may be.
    #[n(1)]
    pub roles: Vec<Role>,
    /// When it was given out, seconds since 1970.
    #[n(2)]
    pub made: u64,
    /// When it ends, seconds since 1970.
    #[n(3)]
    pub end: u64,
    /// For whom the new member acts as a client; `None`: as whom it says.
    #[n(4)]
    pub user: Option<User>,
    /// How many hosts may join with it, 1 to [`TOKEN_USES_MAX`].
    #[n(5)]
    pub uses: u32,
}

/// What the use of a token is proven with. Shows itself nowhere.
#[derive(Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(transparent)]
pub struct JoinKey(#[cbor(n(0), with = "minicbor::bytes")] [u8; 32]);

impl std::fmt::Debug for JoinKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("JoinKey(secret)")
    }
}

impl JoinKey {
    /// The key of a token with this secret.
    pub fn of(secret: &[u8]) -> Self {
        Self(blake3::derive_key("stdchk join 1", secret))
    }
}

/// Sent in place of [`Hello`] by who has no certificate yet.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Join {
    /// [`PROTOCOL`] of the caller.
    #[n(0)]
    pub protocol: u16,
    /// Which token it shows, and what that is for.
    #[n(1)]
    pub grant: Grant,
    /// A certificate signing request (PKCS #10, DER), of which only the public key counts.
    #[cbor(n(2), with = "minicbor::bytes")]
    pub request: Vec<u8>,
    /// See [`Join::is_proven`].
    #[cbor(n(3), with = "minicbor::bytes")]
    pub proof: [u8; 32],
    /// What the new member's host calls itself, for people.
    #[n(4)]
    pub host: String,
}

impl Join {
    /// A request that proves the use of the token with this key, on the connection that is bound to `channel` (RFC 9266).
    pub fn new(grant: Grant, request: Vec<u8>, host: String, key: &JoinKey, channel: &[u8; 32]) -> Self {
        let unproven = Self { protocol: PROTOCOL, grant, request, proof: [0; 32], host };
        Self { proof: unproven.proof(key, channel), ..unproven }
    }

    /// Whether the sender knows the token's secret, and sent this on this very connection.
    pub fn is_proven(&self, key: &JoinKey, channel: &[u8; 32]) -> bool {
        // The comparison of `blake3::Hash` takes the same time wherever the bytes differ.
        blake3::Hash::from_bytes(self.proof) == blake3::Hash::from_bytes(self.proof(key, channel))
    }

    fn proof(&self, key: &JoinKey, channel: &[u8; 32]) -> [u8; 32] {
        let said = cbor::encode(&Self { proof: [0; 32], ..self.clone() });
        *blake3::Hasher::new_keyed(&key.0).update(channel).update(&said).finalize().as_bytes()
    }
}

/// The answer to [`Join`]; a refusal is a [`crate::Failure`] instead.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Joined {
    /// The new member's certificate (X.509, DER).
    #[cbor(n(0), with = "minicbor::bytes")]
    pub certificate: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_one_token_one_request_and_one_connection() {
        let (key, channel) = (JoinKey::of(b"secret"), [1; 32]);
        let grant =
            Grant { token: TokenId([2; 8]), roles: vec![Role::Client], made: 5, end: 6, user: None, uses: 1 };
        let join = Join::new(grant.clone(), vec![3; 100], "lab-7".to_owned(), &key, &channel);
        assert!(join.is_proven(&key, &channel));
        assert!(!join.is_proven(&JoinKey::of(b"secreu"), &channel));
        assert!(!join.is_proven(&key, &[2; 32]));
        let other = Grant { uses: 2, ..grant };
        assert!(!Join { grant: other, ..join.clone() }.is_proven(&key, &channel));
        assert!(!Join { host: "lab-8".to_owned(), ..join.clone() }.is_proven(&key, &channel));
        assert!(!Join { request: vec![4; 100], ..join }.is_proven(&key, &channel));
    }

    #[test]
    fn a_member_is_named_by_its_digits_alone() {
        let member = MemberId([0xa5; 16]);
        assert_eq!(member.to_string().parse(), Ok(member));
        for wrong in ["", "a5", &"+".repeat(32), &"a5".repeat(17), &"é".repeat(16)] {
            assert!(wrong.parse::<MemberId>().is_err(), "{wrong}");
        }
    }
}
