//! A pool's authority: it signs the certificates of members, and gives out tokens with which new members join (docs/design/0700).
//!
//! A token is a text that is shown once, good for one member and a short time. It tells the fingerprint of the authority's certificate,
//! so that the new member knows whom it talks to before it has keys, what the member may become, and a secret, which is proven and never
//! sent. The secret is made of what the token is for and of the authority's key. So a token is written down nowhere, and every manager that
//! has the key knows it; that it is used once is in the manager's store, which all of them share.
//!
//! ```text
//! AUTHORITY/key.pem           the authority's private key: who has it can be everybody
//! AUTHORITY/certificate.pem   its certificate
//! AUTHORITY/revoked           members whose keys are accepted no more, one a line
//! ```

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use minicbor::{Decode, Encode};
use parking_lot::Mutex;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use stdchk_model::message::handshake::{
    Grant, HOST_NAME_BYTES_MAX, Join, JoinKey, Joined, MemberId, Role, TokenId,
};
use stdchk_model::{ErrorCode, Failure, PoolId, User, cbor};
use tokio::io::BufReader;
use tokio::time::timeout;

use crate::connection::say;
use crate::eyeballs;
use crate::keys::{self, KeysError, Member, Parts, Pinned, name_of, name_of_user, pem, pool_of, server_name};
use crate::machine;
use crate::managers::Managers;
use crate::patience::{PATIENCE, Patient};
use crate::retry::Retry;
use crate::transport;

const KEY_FILE: &str = "key.pem";
const CERTIFICATE_FILE: &str = "certificate.pem";
/// What the secrets of tokens are made for.
const SECRETS: &str = "stdchk token 1";
/// Time for one try to join: the manager makes it durable before it answers.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Time in which a host tries to join again when it gets no answer.
const JOIN_TIME: Duration = Duration::from_secs(10);
/// Shortest and longest pause between two tries.
const JOIN_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// What a token begins with.
const PREFIX: &str = "stdchk1-";

/// What signs the certificates of a pool.
pub struct Authority {
    folder: PathBuf,
    pool: PoolId,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    /// Held while a member is revoked: that reads and then writes.
    changing: Mutex<()>,
}

/// A host that has shown a token, and the certificate that it is to have once the use of the token is on record.
pub struct Admission {
    /// The token.
    pub grant: Grant,
    /// The hash of the request for the certificate: the same host may ask again, should the answer be lost.
    pub request: [u8; 32],
    /// The new member.
    pub id: MemberId,
    /// What its host calls itself.
    pub host: String,
    /// Its certificate (DER).
    pub certificate: Vec<u8>,
}

/// A token as a text has it.
#[derive(Clone, PartialEq, Eq, Encode, Decode)]
struct Told {
    #[n(0)]
    pool: PoolId,
    #[cbor(n(1), with = "minicbor::bytes")]
    fingerprint: [u8; 32],
    #[n(2)]
    grant: Grant,
    #[cbor(n(3), with = "minicbor::bytes")]
    secret: [u8; 16],
}

impl Authority {
    /// The authority in `folder`; a new one for `pool` if there is none.
    ///
    /// # Errors
    /// It can't be read or made, or belongs to another pool.
    pub fn open_or_create(folder: &Path, pool: PoolId) -> Result<Self, KeysError> {
        // One without its key is not begun anew: no member would know the new one.
        let has_begun = folder.join(CERTIFICATE_FILE).try_exists();
        if !has_begun.map_err(|cause| KeysError::io("look for", folder, cause))? {
            return Self::create(folder, pool);
        }
        let authority = Self::open(folder)?;
        if authority.pool != pool {
            let cause = format!("it is the authority of pool {}, not of {pool}", authority.pool);
            return Err(KeysError::unusable(folder, cause));
        }
        Ok(authority)
    }

    /// The authority in `folder`.
    ///
    /// # Errors
    /// There is none, or it can't be used.
    pub fn open(folder: &Path) -> Result<Self, KeysError> {
        let path = folder.join(CERTIFICATE_FILE);
        let certificate = keys::read_certificate(&path)?;
        let pool = pool_of(&certificate).ok_or_else(|| KeysError::unusable(&path, "it is of no pool"))?;
        let path = folder.join(KEY_FILE);
        let key = keys::read_key(&path).map_err(|error| match error {
            KeysError::Io { cause, .. } if cause.kind() == ErrorKind::NotFound => {
                KeysError::unusable(&path, "the key of the authority is gone; put it back from a backup")
            }
            error => error,
        })?;
        let key = KeyPair::try_from(&key).map_err(|error| KeysError::unusable(&path, error))?;
        let issuer = Issuer::from_ca_cert_der(&certificate, key)
            .map_err(|error| KeysError::unusable(folder, error))?;
        Ok(Self { folder: folder.to_owned(), pool, issuer, certificate, changing: Mutex::default() })
    }

    fn create(folder: &Path, pool: PoolId) -> Result<Self, KeysError> {
        // A key without a certificate was begun with, or has lost it: members know the key.
        let path = folder.join(KEY_FILE);
        let key = match keys::read_key(&path) {
            Err(KeysError::Io { cause, .. }) if cause.kind() == ErrorKind::NotFound => {
                KeyPair::generate().map_err(KeysError::make)?
            }
            key => KeyPair::try_from(&key?).map_err(|error| KeysError::unusable(&path, error))?,
        };
        let mut params = params(pool, &[], None)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, format!("authority of stdchk pool {pool}"));
        let certificate = params.self_signed(&key).map_err(KeysError::make)?;
        keys::make_folder(folder)?;
        // The certificate comes last: without it there is no authority.
        keys::write(&folder.join(KEY_FILE), &pem("PRIVATE KEY", &key.serialize_der()))?;
        keys::write(&folder.join(CERTIFICATE_FILE), &pem("CERTIFICATE", certificate.der()))?;
        Self::open(folder)
    }

    /// Its pool.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// New keys of a member with these roles.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn keys(&self, roles: &[Role]) -> Result<Parts, KeysError> {
        self.new_keys(roles, None)
    }

    /// New keys of a client that acts for this user alone.
    ///
    /// # Errors
    /// The user is in more groups than a certificate can name, or the system gives no random numbers.
    pub fn user_keys(&self, user: &User) -> Result<Parts, KeysError> {
        self.new_keys(&[Role::Client], Some(user))
    }

    fn new_keys(&self, roles: &[Role], user: Option<&User>) -> Result<Parts, KeysError> {
        let key = KeyPair::generate().map_err(KeysError::make)?;
        let certificate =
            member_params(self.pool, roles, user)?.signed_by(&key, &self.issuer).map_err(KeysError::make)?;
        Ok(Parts {
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            certificate: certificate.der().clone(),
            authority: self.certificate.clone(),
        })
    }

    /// A key of its own for something else, made of the authority's.
    #[must_use]
    pub fn derive(&self, context: &str) -> [u8; 32] {
        blake3::derive_key(context, &self.issuer.key().serialize_der())
    }

    /// A token for one member with these roles, good for so long. A client acts as whom it says.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn make_token(&self, roles: &[Role], lifetime: Duration) -> Result<String, KeysError> {
        self.give(roles, None, lifetime)
    }

    /// A token for one client that acts for this user alone, good for so long.
    ///
    /// # Errors
    /// The user is in more groups than a certificate can name, or the system gives no random numbers.
    pub fn make_user_token(&self, user: User, lifetime: Duration) -> Result<String, KeysError> {
        name_of_user(&user, self.pool)?;
        self.give(&[Role::Client], Some(user), lifetime)
    }

    fn give(&self, roles: &[Role], user: Option<User>, lifetime: Duration) -> Result<String, KeysError> {
        let mut id = [0; 8];
        getrandom::fill(&mut id).map_err(KeysError::make)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_err(KeysError::make)?;
        let (made, end) = (now.as_secs(), now.saturating_add(lifetime).as_secs());
        let grant = Grant { token: TokenId(id), roles: roles.to_vec(), made, end, user };
        let fingerprint = *blake3::hash(&self.certificate).as_bytes();
        let (pool, secret) = (self.pool, self.secret(&grant));
        let told = Told { pool, fingerprint, grant, secret };
        Ok(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(cbor::encode(&told))))
    }

    /// The secret of a token, which nobody without the authority's key can tell.
    fn secret(&self, grant: &Grant) -> [u8; 16] {
        let key = self.derive(SECRETS);
        let hash = blake3::keyed_hash(&key, &cbor::encode(grant));
        let (secret, _) =
            hash.as_bytes().split_first_chunk().unwrap_or_else(|| unreachable!("a hash has 32 bytes"));
        *secret
    }

    /// The admission of a host that shows a token. `channel`: what its connection was bound to. It comes into force once the manager's
    /// store says that the token is used: whoever asks for it again with another request gets nothing.
    ///
    /// # Errors
    /// The token is none of this authority, or is not proven; it is no request for a certificate.
    pub fn admit(&self, join: &Join, channel: &[u8; 32]) -> Result<Admission, Failure> {
        let grant = join.grant.clone();
        if !join.is_proven(&JoinKey::of(&self.secret(&grant)), channel) {
            return Err(Failure::new(ErrorCode::Denied, "the token is wrong")
                .then("ask for a new one: `stdchk pool token`, at the manager's machine"));
        }
        if join.host.len() > HOST_NAME_BYTES_MAX {
            let message = format!("the host's name has {} bytes", join.host.len());
            return Err(Failure::new(ErrorCode::Malformed, message));
        }
        let certificate = self.sign(&join.request, &grant.roles, grant.user.as_ref())?;
        let member = Member::of(&CertificateDer::from(&certificate[..]), self.pool).map_err(internal)?;
        let (request, host) = (*blake3::hash(&join.request).as_bytes(), join.host.clone());
        Ok(Admission { grant, request, id: member.id, host, certificate })
    }

    fn sign(&self, request: &[u8], roles: &[Role], user: Option<&User>) -> Result<Vec<u8>, Failure> {
        let malformed = |error: rcgen::Error| {
            Failure::new(ErrorCode::Malformed, format!("no request for a certificate: {error}"))
        };
        let request = CertificateSigningRequestDer::from(request.to_vec());
        let mut request = CertificateSigningRequestParams::from_der(&request).map_err(malformed)?;
        // Of what is asked for only the key counts.
        request.params = member_params(self.pool, roles, user)
            .map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))?;
        let certificate = request.signed_by(&self.issuer).map_err(malformed)?;
        Ok(certificate.der().to_vec())
    }

    /// Writes down that the keys of these members are accepted no more, whether they joined here or at another manager of the pool.
    ///
    /// # Errors
    /// It can't be written down.
    pub fn shut_out(&self, ids: &[MemberId]) -> Result<(), KeysError> {
        let _one = self.changing.lock();
        keys::add_revoked(&self.folder, ids).map(drop)
    }

    /// The members whose keys are accepted no more.
    ///
    /// # Errors
    /// What is written down can't be read.
    pub fn revoked(&self) -> Result<BTreeSet<MemberId>, KeysError> {
        keys::revoked_in(&self.folder)
    }
}

fn internal(error: impl std::fmt::Display) -> Failure {
    Failure::new(ErrorCode::Internal, error.to_string())
}

fn params(pool: PoolId, roles: &[Role], user: Option<&User>) -> Result<CertificateParams, KeysError> {
    // Who acts for a user has that user's name in place of the role: whoever overlooked it would see no client at all.
    let roles = roles.iter().copied().filter(|role| user.is_none() || *role != Role::Client);
    let mut names: Vec<String> =
        std::iter::once(None).chain(roles.map(Some)).map(|role| name_of(role, pool)).collect();
    names.extend(user.map(|user| name_of_user(user, pool)).transpose()?);
    let mut params = CertificateParams::new(names).map_err(KeysError::make)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    Ok(params)
}

fn member_params(pool: PoolId, roles: &[Role], user: Option<&User>) -> Result<CertificateParams, KeysError> {
    let mut params = params(pool, roles, user)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.distinguished_name.push(DnType::CommonName, format!("member of stdchk pool {pool}"));
    Ok(params)
}

/// Joins the pool of the manager at this address in a role with a token; the new member's keys.
///
/// # Errors
/// [`ErrorCode::Invalid`]: it is no token, or one for another role, and was not shown to anybody. [`ErrorCode::Unavailable`]: the manager
/// isn't reached. [`ErrorCode::Denied`]: who answers is not the one that gave the token, or the token is used, or over.
pub async fn join(address: &str, token: &str, role: Role) -> Result<Parts, Failure> {
    let told = token.trim().strip_prefix(PREFIX).and_then(|digits| URL_SAFE_NO_PAD.decode(digits).ok());
    let told: Option<Told> = told.and_then(|bytes| cbor::decode(&bytes).ok());
    let told = told.ok_or_else(|| {
        let message = format!("this is no token: one begins with `{PREFIX}` and is one line");
        Failure::new(ErrorCode::Invalid, message).then("copy it whole from what `stdchk pool token` printed")
    })?;
    refuse_other_role(&told.grant, role)?;
    let failed = |error: rcgen::Error| Failure::new(ErrorCode::Internal, error.to_string());
    let unreachable =
        |cause: String| Failure::new(ErrorCode::Unavailable, format!("no connection to {address}: {cause}"));
    let managers = Managers::new(address);
    let addresses = managers.addresses();
    let mut addresses = addresses.iter().cycle();
    // One request for all tries: the token stays good for it when an answer is lost.
    let key = KeyPair::generate().map_err(failed)?;
    let request = CertificateParams::default().serialize_request(&key).map_err(failed)?.der().to_vec();
    let mut retry = Retry::new(JOIN_TIME, JOIN_PAUSES);
    loop {
        let Some(address) = addresses.next() else { unreachable!("there is always one more") };
        let cause = match timeout(JOIN_TIMEOUT, join_with(address, &told, &key, &request)).await {
            Ok(Ok(parts)) => return Ok(parts),
            Ok(Err(error)) => match error.downcast::<Failure>() {
                Ok(refused) if refused.code != ErrorCode::Unavailable => return Err(refused),
                Ok(busy) => busy.to_string(),
                // It is not the one that gave the token.
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    let message = format!("the token is not one of the pool that serves at {address}");
                    let next = "join at the address of the manager whose machine printed the token, or ask for a token there";
                    return Err(Failure::new(ErrorCode::Denied, message).then(next));
                }
                Err(error) => error.to_string(),
            },
            Err(_) => format!("no answer within {} s", JOIN_TIMEOUT.as_secs()),
        };
        if !retry.pause().await {
            return Err(unreachable(cause));
        }
    }
}

/// Refuses a token for another role before it is shown: so it stays good for whom it is.
fn refuse_other_role(grant: &Grant, role: Role) -> Result<(), Failure> {
    let may_be = |own: &Role| *own == role || *own == Role::Operator && role == Role::Client;
    if grant.roles.iter().any(may_be) {
        return Ok(());
    }
    let names: Vec<&str> = grant.roles.iter().map(|role| role.name()).collect();
    let message = format!(
        "the token is wrong here and was not used: it is for a {}, not for a {}",
        names.join(" and "),
        role.name()
    );
    Err(Failure::new(ErrorCode::Invalid, message)
        .then(format!("ask for another one, of `stdchk pool token --for {}`", role.name())))
}

async fn join_with(address: &str, told: &Told, key: &KeyPair, request: &[u8]) -> std::io::Result<Parts> {
    let config = Pinned::client(told.fingerprint).map_err(std::io::Error::other)?;
    let stream = eyeballs::connect(address, std::sync::Arc::new(config), server_name(told.pool)).await?;
    let (_, connection) = stream.get_ref();
    let channel = transport::channel_of(connection)?;
    let authority = connection.peer_certificates().and_then(|chain| {
        chain
            .iter()
            .find(|one| *blake3::hash(one).as_bytes() == told.fingerprint)
            .cloned()
            .map(CertificateDer::into_owned)
    });
    let authority = authority.ok_or(std::io::ErrorKind::InvalidData)?;
    let (reader, writer) = transport::of_tls(stream.into());
    let mut reader = Patient::new(BufReader::new(reader), PATIENCE);
    let mut writer = Patient::new(writer, PATIENCE);
    let mut host = machine::host();
    host.truncate(host.floor_char_boundary(HOST_NAME_BYTES_MAX));
    let join = Join::new(told.grant.clone(), request.to_vec(), host, &JoinKey::of(&told.secret), &channel);
    let Joined { certificate } = say(&mut reader, &mut writer, &join).await?;
    Ok(Parts {
        key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
        certificate: CertificateDer::from(certificate),
        authority,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_request_for_a_certificate_makes_it_panic_or_more_than_the_token_says() {
        let folder = tempfile::tempdir().unwrap();
        let pool = PoolId([1; 16]);
        let authority = Authority::open_or_create(folder.path(), pool).unwrap();
        let key = KeyPair::generate().unwrap();
        // One that asks for the name of a manager.
        let asked = CertificateParams::new(vec![name_of(Some(Role::Manager), pool)]).unwrap();
        let genuine = asked.serialize_request(&key).unwrap().der().to_vec();
        let (mut signed, mut seed) = (0, 1_u64);
        for turn in 0..600 {
            let token = authority.make_token(&[Role::Client], Duration::from_secs(60)).unwrap();
            let told = URL_SAFE_NO_PAD.decode(token.strip_prefix(PREFIX).unwrap()).unwrap();
            let told: Told = cbor::decode(&told).unwrap();
            let mut request = genuine.clone();
            for _ in 0..turn % 4 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = usize::try_from(seed >> 33).unwrap() % request.len();
                if let Some(byte) = request.get_mut(at) {
                    *byte ^= 1 << (seed % 8);
                }
            }
            request.truncate(if turn % 7 == 6 { turn % genuine.len() } else { genuine.len() });
            let channel = [9; 32];
            let key_of_token = JoinKey::of(&told.secret);
            let more = Grant { roles: vec![Role::Operator], ..told.grant.clone() };
            let greedy = Join::new(more, request.clone(), "lab-7".to_owned(), &key_of_token, &channel);
            assert!(authority.admit(&greedy, &channel).is_err(), "it asks for more than the token is for");
            let join = Join::new(told.grant, request, "lab-7".to_owned(), &key_of_token, &channel);
            assert!(authority.admit(&join, &[8; 32]).is_err(), "it was said on another connection");
            let Ok(admission) = authority.admit(&join, &channel) else { continue };
            signed += 1;
            let again = authority.admit(&join, &channel).map(|again| again.id);
            assert_eq!(again, Ok(admission.id), "the answer may have been lost");
            let certificate = CertificateDer::from(admission.certificate);
            let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
            let parts = Parts { key, certificate, authority: authority.certificate.clone() };
            if let Ok(keys) = parts.keys(folder.path()) {
                assert_eq!(keys.member().roles, [Role::Client]);
            }
        }
        assert!(signed >= 100, "{signed}");
    }
}
