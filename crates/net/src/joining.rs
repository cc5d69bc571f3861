//! Joining a pool with a token: a host makes a key, shows the token to the manager, and gets a certificate.
//!
//! The key is written down before the token is shown, and stays until the host has written down that it is a member. So a host that was
//! interrupted joins again as the same member, which costs no second use of the token.
//!
//! ```text
//! KEYS/joining           for which token a key was made, by the token's hash, and the key; there only while the host joins
//! ```

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use stdchk_model::message::handshake::{Grant, HOST_NAME_BYTES_MAX, Join, JoinKey, Joined, Role};
use stdchk_model::{ErrorCode, Failure, cbor};
use tokio::io::BufReader;
use tokio::time::timeout;

use crate::authority::{PREFIX, Told};
use crate::connection::say;
use crate::eyeballs;
use crate::keys::{self, KeysError, Parts, Pinned, pem, server_name};
use crate::machine;
use crate::managers::Managers;
use crate::own;
use crate::patience::{PATIENCE, Patient};
use crate::retry::Retry;
use crate::transport;

/// Time for one try to join: the manager makes it durable before it answers.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Time in which a host tries to join again when it gets no answer.
const JOIN_TIME: Duration = Duration::from_secs(10);
/// Shortest and longest pause between two tries.
const JOIN_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// File in the folder of keys that holds the key with which a host joins.
const JOINING_FILE: &str = "joining";

/// The key with which a host joins.
pub struct JoiningKey {
    key: KeyPair,
    path: PathBuf,
}

impl JoiningKey {
    /// The key with which the host of the keys in `folder` joins with this token: the one of an attempt that was interrupted, or a new one, which
    /// is durable on return.
    ///
    /// # Errors
    /// The system refuses, or what an earlier attempt left is damaged.
    pub fn of(folder: &Path, token: &Token) -> Result<Self, KeysError> {
        let path = folder.join(JOINING_FILE);
        let token = blake3::hash(&cbor::encode(&token.0)).to_hex();
        let left = match own::text(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            text => Some(text.map_err(|cause| KeysError::io("read", &path, cause))?),
        };
        // That of another token may be a member already, which may be shut out.
        if let Some(text) = left.and_then(|text| text.strip_prefix(token.as_str()).map(str::to_owned)) {
            let key = PrivateKeyDer::from_pem_slice(text.as_bytes())
                .map_err(|error| KeysError::unusable(&path, error))?;
            let key = KeyPair::try_from(&key).map_err(|error| KeysError::unusable(&path, error))?;
            return Ok(Self { key, path });
        }
        let key = KeyPair::generate().map_err(KeysError::make)?;
        keys::make_folder(folder)?;
        keys::write(&path, &format!("{token}\n{}", pem("PRIVATE KEY", &key.serialize_der())))?;
        Ok(Self { key, path })
    }

    /// The host has joined, and its keys are written down.
    ///
    /// # Errors
    /// The system refuses.
    pub fn forget(self) -> Result<(), KeysError> {
        std::fs::remove_file(&self.path).map_err(|cause| KeysError::io("remove", &self.path, cause))
    }
}

/// The token that a host was given to join with.
pub struct Token(Told);

impl Token {
    /// The token in a text, for a host that joins in this role.
    ///
    /// # Errors
    /// [`ErrorCode::Invalid`]: it is no token, or one for another role.
    pub fn read(text: &str, role: Role) -> Result<Self, Failure> {
        let told = text.trim().strip_prefix(PREFIX).and_then(|digits| URL_SAFE_NO_PAD.decode(digits).ok());
        let told: Option<Told> = told.and_then(|bytes| cbor::decode(&bytes).ok());
        let told = told.ok_or_else(|| {
            let message = format!("this is no token: one begins with `{PREFIX}` and is one line");
            Failure::new(ErrorCode::Invalid, message)
                .then("copy it whole from what `stdchk pool token` printed")
        })?;
        refuse_other_role(&told.grant, role)?;
        Ok(Self(told))
    }
}

/// Joins the pool of the manager at this address with a token; the new member's keys.
///
/// # Errors
/// [`ErrorCode::Unavailable`]: the manager isn't reached. [`ErrorCode::Denied`]: who answers is not the one that gave the token, or the
/// token is used up, or over.
pub async fn join(address: &str, token: &Token, key: &JoiningKey) -> Result<Parts, Failure> {
    let failed = |error: rcgen::Error| Failure::new(ErrorCode::Internal, error.to_string());
    let unreachable =
        |cause: String| Failure::new(ErrorCode::Unavailable, format!("no connection to {address}: {cause}"));
    let managers = Managers::new(address);
    let addresses = managers.addresses();
    let mut addresses = addresses.iter().cycle();
    let key = &key.key;
    let request = CertificateParams::default().serialize_request(key).map_err(failed)?.der().to_vec();
    let mut retry = Retry::new(JOIN_TIME, JOIN_PAUSES);
    loop {
        let Some(address) = addresses.next() else { unreachable!("there is always one more") };
        let cause = match timeout(JOIN_TIMEOUT, join_with(address, &token.0, key, &request)).await {
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
