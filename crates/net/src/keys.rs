//! The keys of a member of a pool, and TLS with them (docs/design/0700).
//!
//! Each pool has an authority of its own ([`crate::authority`]). A member has a key and a certificate that the authority has signed; what
//! the member may be stands in it, as names `ROLE.POOL.stdchk`; of a client that acts for one user, `uUID.gGID….user.POOL.stdchk` is in place of its role. Both sides of a connection of the network show their certificates (TLS
//! 1.3, no other version), and each verifies that the other one's was signed by the same authority.
//!
//! ```text
//! KEYS/key.pem           the member's private key, readable by its owner only
//! KEYS/certificate.pem   its certificate
//! KEYS/authority.pem     the certificate of the pool's authority
//! KEYS/revoked           members whose keys are accepted no more, as far as the manager has told this one
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};
use stdchk_model::message::handshake::{MemberId, Role};
use stdchk_model::user::{CERTIFIED_GROUPS_MAX, User};
use stdchk_model::{Maker, PoolId};
use tokio::sync::watch;

use crate::own::{self, Access};

/// Name under which every member's certificate is valid, before its pool.
const MEMBER: &str = "member";
/// What names in certificates end with; no name of the network does.
const DOMAIN: &str = "stdchk";
/// What the name of a client has before its pool that acts for one user.
const USER: &str = "user";
const KEY_FILE: &str = "key.pem";
const CERTIFICATE_FILE: &str = "certificate.pem";
const AUTHORITY_FILE: &str = "authority.pem";
const REVOKED_FILE: &str = "revoked";
/// Permissions that a key must not give: any to the group or others.
const OTHERS: u32 = 0o077;

/// Why there are no keys, or why they can't be used.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The system refused something.
    #[error("can't {action} {path}: {cause}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// They say something else than keys of a pool do.
    #[error("{path} can't be used: {cause}")]
    Unusable {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// They could not be made.
    #[error("keys can't be made: {0}")]
    Make(String),
}

impl KeysError {
    pub(crate) fn io(action: &'static str, path: &Path, cause: io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), cause }
    }

    pub(crate) fn unusable(path: &Path, cause: impl fmt::Display) -> Self {
        Self::Unusable { path: path.to_owned(), cause: cause.to_string() }
    }

    pub(crate) fn make(cause: impl fmt::Display) -> Self {
        Self::Make(cause.to_string())
    }
}

/// The name of a certificate in the pool.
pub(crate) fn name_of(role: Option<Role>, pool: PoolId) -> String {
    let role = match role {
        None => MEMBER,
        Some(Role::Client) => "client",
        Some(Role::Benefactor) => "benefactor",
        Some(Role::Manager) => "manager",
        Some(Role::Operator) => "operator",
    };
    format!("{role}.{pool}.{DOMAIN}")
}

/// The name of a certificate with which one acts for a user: it is the role of a client, for that user alone.
pub(crate) fn name_of_user(user: &User, pool: PoolId) -> Result<String, KeysError> {
    if user.others.len() >= CERTIFIED_GROUPS_MAX {
        let count = user.others.len() + 1;
        return Err(KeysError::make(format!(
            "a certificate names at most {CERTIFIED_GROUPS_MAX} groups, not {count}"
        )));
    }
    let groups: String = [user.gid].iter().chain(&user.others).map(|gid| format!("g{gid}.")).collect();
    Ok(format!("u{}.{groups}{USER}.{pool}.{DOMAIN}", user.uid))
}

/// The user in such a name; `None`: it is another name. Who acts for a user that can't be read acts for nobody.
fn user_in(name: &str, pool: PoolId) -> Option<Result<User, webpki::Error>> {
    let numbers = name.strip_suffix(&format!(".{USER}.{pool}.{DOMAIN}"))?;
    let read = || {
        let (uid, groups) = numbers.split_once('.')?;
        let groups: Option<Vec<u32>> =
            groups.split('.').map(|gid| gid.strip_prefix('g')?.parse().ok()).collect();
        User::of_groups(uid.strip_prefix('u')?.parse().ok()?, &groups?)
    };
    Some(read().ok_or(webpki::Error::BadDer))
}

/// What a certificate says of its owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Which of all.
    pub id: MemberId,
    /// What it may be.
    pub roles: Vec<Role>,
    /// For whom it acts as a client; `None`: as whom it says.
    pub user: Option<User>,
}

impl Member {
    /// What this certificate says, which is one of the pool.
    pub(crate) fn of(certificate: &CertificateDer<'_>, pool: PoolId) -> Result<Self, webpki::Error> {
        let parsed = webpki::EndEntityCert::try_from(certificate)?;
        let names: Vec<&str> = parsed.valid_dns_names().collect();
        let roles = [Role::Client, Role::Benefactor, Role::Manager, Role::Operator];
        let roles = roles.into_iter().filter(|role| names.contains(&name_of(Some(*role), pool).as_str()));
        let mut roles: Vec<Role> = roles.collect();
        let user = names.iter().find_map(|name| user_in(name, pool)).transpose()?;
        if user.is_some() && !roles.contains(&Role::Client) {
            roles.push(Role::Client);
        }
        let hash = blake3::hash(&parsed.subject_public_key_info());
        let (id, _) =
            hash.as_bytes().split_first_chunk().unwrap_or_else(|| unreachable!("a hash has 32 bytes"));
        Ok(Self { id: MemberId(*id), roles, user })
    }

    /// As whom it codes fragments.
    #[must_use]
    pub fn maker(&self) -> Maker {
        Maker::of(self.id, self.user.as_ref().map(|user| user.uid))
    }

    /// Whether it may act in this role: an operator may do what clients do.
    pub fn may_be(&self, role: Role) -> bool {
        self.roles.contains(&role) || (role == Role::Client && self.roles.contains(&Role::Operator))
    }
}

/// The keys of a member of a pool.
pub struct Keys {
    pool: PoolId,
    member: Member,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    /// Whose keys are accepted no more.
    revoked: watch::Sender<BTreeSet<MemberId>>,
    /// Where that is written down, if it is.
    folder: Option<PathBuf>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Keys")
            .field("pool", &self.pool)
            .field("member", &self.member)
            .finish_non_exhaustive()
    }
}

/// Keys before they are put to use: what is in the files.
pub struct Parts {
    pub(crate) key: PrivateKeyDer<'static>,
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) authority: CertificateDer<'static>,
}

impl Parts {
    /// Reads the keys in a folder.
    ///
    /// # Errors
    /// There are none, others may read the key, or they are damaged.
    pub fn load(folder: &Path) -> Result<Self, KeysError> {
        Ok(Self {
            key: read_key(&folder.join(KEY_FILE))?,
            certificate: read_certificate(&folder.join(CERTIFICATE_FILE))?,
            authority: read_certificate(&folder.join(AUTHORITY_FILE))?,
        })
    }

    /// Writes the keys into a folder, which is made; durable on return.
    ///
    /// # Errors
    /// The system refuses.
    pub fn save(&self, folder: &Path) -> Result<(), KeysError> {
        make_folder(folder)?;
        // The key comes last: without it there are no keys.
        write(&folder.join(AUTHORITY_FILE), &pem("CERTIFICATE", &self.authority))?;
        write(&folder.join(CERTIFICATE_FILE), &pem("CERTIFICATE", &self.certificate))?;
        write(&folder.join(KEY_FILE), &pem("PRIVATE KEY", self.key.secret_der()))
    }

    /// Puts the keys to use. `source`: what is named if they can't be used.
    ///
    /// # Errors
    /// They don't belong together, or to no pool.
    pub fn keys(&self, source: &Path) -> Result<Keys, KeysError> {
        let unusable = |error: &dyn fmt::Display| KeysError::unusable(source, error);
        let pool = pool_of(&self.certificate).ok_or_else(|| unusable(&"its certificate is of no pool"))?;
        let member = Member::of(&self.certificate, pool).map_err(|error| unusable(&error))?;
        let roots = Arc::new(roots_of(&self.authority).map_err(|error| unusable(&error))?);
        let chain = || vec![self.certificate.clone(), self.authority.clone()];
        let client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| unusable(&error))?
            .with_root_certificates(Arc::clone(&roots))
            .with_client_auth_cert(chain(), self.key.clone_key())
            .map_err(|error| unusable(&error))?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
        // Who has no certificate yet gets one from the manager.
        let verifier = if member.may_be(Role::Manager) { verifier.allow_unauthenticated() } else { verifier };
        let verifier = verifier.build().map_err(|error| unusable(&error))?;
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| unusable(&error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain(), self.key.clone_key())
            .map_err(|error| unusable(&error))?;
        // Connections last: nothing is gained by what would shorten the next greeting.
        server.send_tls13_tickets = 0;
        let revoked = watch::Sender::new(BTreeSet::new());
        Ok(Keys { pool, member, client: Arc::new(client), server: Arc::new(server), revoked, folder: None })
    }
}

impl Keys {
    /// The keys in a folder.
    ///
    /// # Errors
    /// Those of [`Parts::load`] and [`Parts::keys`].
    pub fn load(folder: &Path) -> Result<Self, KeysError> {
        let keys = Parts::load(folder)?.keys(folder)?;
        keys.revoked.send_replace(revoked_in(folder)?);
        Ok(Self { folder: Some(folder.to_owned()), ..keys })
    }

    /// Accepts the keys of these members no more: their connections end, and they get no new ones. Written down for the next start
    /// if the keys are those of a folder, beside what other processes with them have written. Blocks.
    ///
    /// # Errors
    /// It can't be written down; it holds until the process ends.
    pub fn revoke(&self, members: &[MemberId]) -> Result<(), KeysError> {
        let has_come = |revoked: &mut BTreeSet<MemberId>| {
            let before = revoked.len();
            revoked.extend(members);
            revoked.len() > before
        };
        if !self.revoked.send_if_modified(has_come) {
            return Ok(());
        }
        let Some(folder) = &self.folder else { return Ok(()) };
        let known = add_revoked(folder, &self.revoked_members())?;
        self.revoked.send_modify(|revoked| revoked.extend(known));
        Ok(())
    }

    /// Whose keys are accepted no more.
    #[must_use]
    pub fn revoked_members(&self) -> Vec<MemberId> {
        self.revoked.borrow().iter().copied().collect()
    }

    pub(crate) fn is_revoked(&self, member: MemberId) -> bool {
        self.revoked.borrow().contains(&member)
    }

    /// Ends once the keys of a member are accepted no more.
    pub(crate) async fn revoked(&self, member: MemberId) {
        let mut revoked = self.revoked.subscribe();
        // The sender is as old as these keys.
        let _ = revoked.wait_for(|revoked| revoked.contains(&member)).await;
    }

    /// Whether a folder has keys, or what is left of them.
    #[must_use]
    pub fn are_in(folder: &Path) -> bool {
        // It is written last.
        fs::symlink_metadata(folder.join(KEY_FILE)).is_ok()
    }

    /// The folder in which they lie, if they do.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The pool to which they belong.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// What their own certificate says.
    pub fn member(&self) -> &Member {
        &self.member
    }

    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.client)
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    /// The name that every member's certificate has.
    pub(crate) fn server_name(&self) -> ServerName<'static> {
        server_name(self.pool)
    }

    /// What the other side's certificate says. It was verified.
    pub(crate) fn member_of(&self, chain: Option<&[CertificateDer<'_>]>) -> io::Result<Option<Member>> {
        let Some(certificate) = chain.and_then(<[_]>::first) else { return Ok(None) };
        let member = Member::of(certificate, self.pool);
        member.map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
    }
}

pub(crate) fn server_name(pool: PoolId) -> ServerName<'static> {
    let Ok(name) = ServerName::try_from(name_of(None, pool)) else {
        unreachable!("letters and digits make a name");
    };
    name
}

/// The pool for which a certificate is valid.
pub(crate) fn pool_of(certificate: &CertificateDer<'_>) -> Option<PoolId> {
    let parsed = webpki::EndEntityCert::try_from(certificate).ok()?;
    let pool = |name: &str| {
        let (role, rest) = name.split_once('.')?;
        (role == MEMBER).then_some(rest.strip_suffix(DOMAIN)?.strip_suffix('.')?)?.parse().ok()
    };
    parsed.valid_dns_names().find_map(pool)
}

/// The cryptography: of the ciphers of TLS 1.3 the one that costs least on processors with instructions for AES comes first.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    use rustls::crypto::ring::cipher_suite;
    let cipher_suites = vec![
        cipher_suite::TLS13_AES_128_GCM_SHA256,
        cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        cipher_suite::TLS13_AES_256_GCM_SHA384,
    ];
    Arc::new(CryptoProvider { cipher_suites, ..rustls::crypto::ring::default_provider() })
}

fn roots_of(authority: &CertificateDer<'static>) -> Result<RootCertStore, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone())?;
    Ok(roots)
}

/// Verifies a manager by the fingerprint of its pool's authority, which is all that a token tells.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) fingerprint: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl Pinned {
    /// What a client without keys connects with.
    pub(crate) fn client(fingerprint: [u8; 32]) -> Result<ClientConfig, rustls::Error> {
        let verifier = Arc::new(Self { fingerprint, provider: provider() });
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        Ok(config)
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        stapled: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let is_pinned =
            |authority: &&CertificateDer<'_>| *blake3::hash(authority).as_bytes() == self.fingerprint;
        let authority = intermediates.iter().find(is_pinned);
        let unknown = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let roots = roots_of(&authority.ok_or(unknown)?.clone().into_owned())?;
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider))
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?
            .verify_server_cert(certificate, intermediates, name, stapled, now)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::PeerIncompatible::Tls12NotOfferedOrEnabled.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Whose keys are accepted no more, as a folder says.
pub(crate) fn revoked_in(folder: &Path) -> Result<BTreeSet<MemberId>, KeysError> {
    read_revoked(&folder.join(REVOKED_FILE))
}

/// Adds members to those of a folder whose keys are accepted no more; all of them. Durable on return. One process does so at a time.
pub(crate) fn add_revoked(folder: &Path, members: &[MemberId]) -> Result<BTreeSet<MemberId>, KeysError> {
    let one = fs::File::open(folder).and_then(|one| one.lock().map(|()| one));
    let _one = one.map_err(|cause| KeysError::io("lock", folder, cause))?;
    let mut revoked = revoked_in(folder)?;
    let before = revoked.len();
    revoked.extend(members);
    if revoked.len() > before {
        let lines: String = revoked.iter().map(|member| format!("{member}\n")).collect();
        write(&folder.join(REVOKED_FILE), &lines)?;
    }
    Ok(revoked)
}

fn read_revoked(path: &Path) -> Result<BTreeSet<MemberId>, KeysError> {
    match own::text(path) {
        Ok(lines) => {
            lines.lines().map(|line| line.parse().map_err(|error| KeysError::unusable(path, error))).collect()
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(error) => Err(KeysError::io("read", path, error)),
    }
}

pub(crate) fn read_certificate(path: &Path) -> Result<CertificateDer<'static>, KeysError> {
    let text = own::text(path).map_err(|cause| KeysError::io("read", path, cause))?;
    CertificateDer::from_pem_slice(text.as_bytes()).map_err(|error| of_pem(error, path))
}

/// A key that others may read is no secret.
pub(crate) fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, KeysError> {
    let io = |cause| KeysError::io("read", path, cause);
    let folder = own::Folder::look_into(path.parent().unwrap_or(Path::new("."))).map_err(io)?;
    let mut file = folder.file(path.file_name().unwrap_or_default(), Access::Read).map_err(io)?;
    if file.metadata().map_err(io)?.mode() & OTHERS != 0 {
        let what = "other users may read it; `chmod 600` it, and ask for new keys if somebody did";
        return Err(KeysError::unusable(path, what));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(io)?;
    PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|error| of_pem(error, path))
}

fn of_pem(error: rustls::pki_types::pem::Error, path: &Path) -> KeysError {
    match error {
        rustls::pki_types::pem::Error::Io(cause) => KeysError::io("read", path, cause),
        error => KeysError::unusable(path, error),
    }
}

/// Makes a folder for secrets.
pub(crate) fn make_folder(folder: &Path) -> Result<(), KeysError> {
    own::Folder::make(folder).map(drop).map_err(|cause| KeysError::io("make", folder, cause))
}

/// Writes a secret: a crash leaves none or a whole one.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), KeysError> {
    own::replace(path, text, own::OWNER_ONLY_FILE).map_err(|cause| KeysError::io("write", path, cause))
}

/// A text with these bytes as RFC 7468 has it.
pub(crate) fn pem(label: &str, bytes: &[u8]) -> String {
    use base64::Engine as _;
    let mut text = format!("-----BEGIN {label}-----\n");
    let line_bytes = 48; // 64 digits
    for line in bytes.chunks(line_bytes) {
        base64::engine::general_purpose::STANDARD.encode_string(line, &mut text);
        text.push('\n');
    }
    text + &format!("-----END {label}-----\n")
}
