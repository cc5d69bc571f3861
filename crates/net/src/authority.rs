//! A pool's authority: it signs the certificates of members, and gives out tokens with which new members join (docs/design/0700).
//!
//! A token is a text that is shown once, good for one member, or as many as it says, and a short time. It tells the fingerprint of the authority's certificate,
//! so that the new member knows whom it talks to before it has keys, what the member may become, and a secret, which is proven and never
//! sent. The secret is made of what the token is for and of the authority's key. So a token is written down nowhere, and every manager that
//! has the key knows it; by whom it was used is in the manager's store, which all of them share.
//!
//! ```text
//! AUTHORITY/key.pem           the authority's private key: who has it can be everybody
//! AUTHORITY/certificate.pem   its certificate
//! AUTHORITY/revoked           members whose keys are accepted no more, one a line
//! AUTHORITY/keepers           benefactors that keep the manager's journal, and where they served last, one a line: `3 HOST:PORT`
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
    Grant, HOST_NAME_BYTES_MAX, Join, JoinKey, MemberId, Role, TOKEN_USES_MAX, TokenId,
};
use stdchk_model::{BenefactorId, ErrorCode, Failure, PoolId, User, cbor};

use crate::keys::{self, KeysError, Member, Parts, name_of, name_of_user, pem, pool_of};
use crate::own;

const KEY_FILE: &str = "key.pem";
const CERTIFICATE_FILE: &str = "certificate.pem";
const KEEPERS_FILE: &str = "keepers";
/// What the secrets of tokens are made for.
const SECRETS: &str = "stdchk token 1";
/// What a token begins with.
pub(crate) const PREFIX: &str = "stdchk1-";

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
    /// The new member, by its key: the same host may ask again, should the answer be lost.
    pub id: MemberId,
    /// What its host calls itself.
    pub host: String,
    /// Its certificate (DER).
    pub certificate: Vec<u8>,
}

/// A token as a text has it.
#[derive(Clone, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Told {
    #[n(0)]
    pub(crate) pool: PoolId,
    #[cbor(n(1), with = "minicbor::bytes")]
    pub(crate) fingerprint: [u8; 32],
    #[n(2)]
    pub(crate) grant: Grant,
    #[cbor(n(3), with = "minicbor::bytes")]
    pub(crate) secret: [u8; 16],
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

    /// A token for so many members with these roles, good for so long. A client acts as whom it says.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn make_token(&self, roles: &[Role], uses: u32, lifetime: Duration) -> Result<String, KeysError> {
        self.give(roles, None, uses, lifetime)
    }

    /// A token for so many clients that act for this user alone, good for so long.
    ///
    /// # Errors
    /// The user is in more groups than a certificate can name, or the system gives no random numbers.
    pub fn make_user_token(&self, user: User, uses: u32, lifetime: Duration) -> Result<String, KeysError> {
        name_of_user(&user, self.pool)?;
        self.give(&[Role::Client], Some(user), uses, lifetime)
    }

    fn give(
        &self,
        roles: &[Role],
        user: Option<User>,
        uses: u32,
        lifetime: Duration,
    ) -> Result<String, KeysError> {
        assert!(
            (1..=TOKEN_USES_MAX).contains(&uses),
            "a token is for some hosts, and for as many as one may be"
        );
        let mut id = [0; 8];
        getrandom::fill(&mut id).map_err(KeysError::make)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_err(KeysError::make)?;
        let (made, end) = (now.as_secs(), now.saturating_add(lifetime).as_secs());
        let grant = Grant { token: TokenId(id), roles: roles.to_vec(), made, end, user, uses };
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
        Ok(Admission { grant, id: member.id, host: join.host.clone(), certificate })
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

    /// Writes down which benefactors keep the manager's journal, and where they serve.
    ///
    /// # Errors
    /// It can't be written down.
    pub fn note_keepers(&self, keepers: &[(BenefactorId, String)]) -> Result<(), KeysError> {
        let line = |(id, address): &(BenefactorId, String)| format!("{} {address}\n", id.0);
        keys::write(&self.folder.join(KEEPERS_FILE), &keepers.iter().map(line).collect::<String>())
    }

    /// The benefactors that kept the manager's journal when that was written down last, and where they served.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn keepers(&self) -> Result<Vec<(BenefactorId, String)>, KeysError> {
        let path = self.folder.join(KEEPERS_FILE);
        let text = match own::text(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            text => text.map_err(|cause| KeysError::io("read", &path, cause))?,
        };
        let keeper = |line: &str| {
            let (id, address) = line.split_once(' ')?;
            Some((BenefactorId(id.parse().ok()?), address.to_owned()))
        };
        let read =
            |line| keeper(line).ok_or_else(|| KeysError::unusable(&path, "a line names no benefactor"));
        text.lines().map(read).collect()
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
            let token = authority.make_token(&[Role::Client], 1, Duration::from_secs(60)).unwrap();
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
