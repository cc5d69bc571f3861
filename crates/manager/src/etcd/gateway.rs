//! Questions to etcd's gateway for JSON (`/v3/...`), of whichever member answers.

use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::place::{Login, member};

/// Time for a connection: a member that takes longer is as good as gone.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(700);

/// How etcd gets room again.
pub const MAKE_ROOM: &str = "let etcd compact and defragment its data, or give it more room (--quota-backend-bytes), then end the alarm with \
                             `etcdctl alarm disarm`";

/// Why etcd gave no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody answered, or nobody could: what was asked may be done, now or later.
    #[error("etcd doesn't answer: {0}")]
    Away(String),
    /// It was refused, and isn't done.
    #[error("etcd refuses: {0}")]
    Refused(String),
    /// It was refused since etcd's room is used up, and isn't done.
    #[error("etcd refuses: {0}")]
    Full(String),
    /// The token of the login is over, and nothing was done.
    #[error("etcd doesn't know who asks: {0}")]
    Unknown(String),
}

/// A way to the members of etcd.
pub struct Gateway {
    endpoints: Vec<String>,
    http: reqwest::Client,
    login: Option<Login>,
    /// What etcd gave for the login last.
    token: Mutex<Option<String>>,
    /// The member that is asked first: the one that answered last.
    first: AtomicUsize,
}

impl Gateway {
    /// A way to members at these URLs.
    pub fn new(endpoints: &[String], login: Option<Login>) -> Result<Self, reqwest::Error> {
        use_ring();
        // A proxy of the environment is for the web.
        let http = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).no_proxy().build()?;
        Ok(Self {
            endpoints: endpoints.to_vec(),
            http,
            login,
            token: Mutex::default(),
            first: AtomicUsize::new(0),
        })
    }

    /// Asks one member after the other until one answers, for at most `limit` altogether. What is asked may be done several times.
    pub async fn ask(&self, call: &str, question: &Value, limit: Duration) -> Result<Value, AskError> {
        let body = question.to_string();
        let each = limit / u32::try_from(self.endpoints.len()).unwrap_or(u32::MAX).max(1);
        let first = self.first.load(Ordering::Relaxed);
        let mut away = Vec::new();
        for step in 0..self.endpoints.len() {
            let index = (first + step) % self.endpoints.len();
            let Some(endpoint) = self.endpoints.get(index) else { break };
            match self.ask_known(endpoint, call, &body, each).await {
                Err(AskError::Away(cause)) => away.push((member(endpoint), cause)),
                answer => {
                    self.first.store(index, Ordering::Relaxed);
                    return answer;
                }
            }
        }
        Err(AskError::Away(causes(&away)))
    }

    /// Its members, `host:port`.
    pub fn members(&self) -> Vec<String> {
        self.endpoints.iter().map(|endpoint| member(endpoint).to_owned()).collect()
    }

    /// The members that don't say within `limit` that they are well, each with the cause. All are asked at once.
    pub async fn silent_members(&self, limit: Duration) -> Vec<(String, String)> {
        let mut asked = JoinSet::new();
        for endpoint in self.endpoints.clone() {
            let http = self.http.clone();
            asked.spawn(async move {
                let cause = health(&http, &endpoint, limit).await.err()?;
                Some((member(&endpoint).to_owned(), cause))
            });
        }
        let mut silent: Vec<_> = asked.join_all().await.into_iter().flatten().collect();
        silent.sort();
        silent
    }

    /// Whether one of its members says that its room is used up.
    pub async fn is_full(&self, limit: Duration) -> Result<bool, AskError> {
        let alarms = self.ask("maintenance/alarm", &json!({"action": "GET"}), limit).await?;
        let is_full = |alarm: &Value| alarm.get("alarm").and_then(Value::as_str) == Some("NOSPACE");
        Ok(list(&alarms, "alarms").iter().any(is_full))
    }

    /// Asks one member as whom it knows, if there is a login. Its tokens end after minutes without a question.
    async fn ask_known(
        &self,
        endpoint: &str,
        call: &str,
        body: &str,
        limit: Duration,
    ) -> Result<Value, AskError> {
        let Some(login) = &self.login else { return self.ask_one(endpoint, call, body, None, limit).await };
        let known = self.token.lock().clone();
        if let Some(known) = known {
            match self.ask_one(endpoint, call, body, Some(&known), limit).await {
                Err(AskError::Unknown(_)) => {}
                answer => return answer,
            }
        }
        let question = json!({"name": login.name, "password": login.password}).to_string();
        let answer = self.ask_one(endpoint, "auth/authenticate", &question, None, limit).await?;
        let token = answer.get("token").and_then(Value::as_str).map(str::to_owned);
        let token = token.ok_or_else(|| AskError::Away("it gives no token for the login".to_owned()))?;
        *self.token.lock() = Some(token.clone());
        match self.ask_one(endpoint, call, body, Some(&token), limit).await {
            // Another member may learn of the token a moment later.
            Err(AskError::Unknown(error)) => Err(AskError::Away(error)),
            answer => answer,
        }
    }

    async fn ask_one(
        &self,
        endpoint: &str,
        call: &str,
        body: &str,
        token: Option<&str>,
        limit: Duration,
    ) -> Result<Value, AskError> {
        let away = |error: reqwest::Error| AskError::Away(shown(&error));
        let url = format!("{endpoint}/v3/{call}");
        let request = self.http.post(url).header("content-type", "application/json").timeout(limit);
        let request = match token {
            Some(token) => request.header("authorization", token),
            None => request,
        };
        let answer = request.body(body.to_owned()).send().await.map_err(away)?;
        let is_good = answer.status().is_success();
        let text = answer.bytes().await.map_err(away)?;
        let value: Value = serde_json::from_slice(&text).map_err(|_| {
            AskError::Away("what answers there is no etcd with a gateway for JSON".to_owned())
        })?;
        match value.get("error") {
            None if is_good => Ok(value),
            error => Err(refusal(&value, error)),
        }
    }
}

/// Whether a member is well. Anybody may ask that.
async fn health(http: &reqwest::Client, endpoint: &str, limit: Duration) -> Result<(), String> {
    let asked = http.get(format!("{endpoint}/health")).timeout(limit).send().await;
    let text = asked.map_err(|error| shown(&error))?.bytes().await.map_err(|error| shown(&error))?;
    // Another kind of answer comes from a gateway that doesn't pass the question on.
    let said = serde_json::from_slice::<Value>(&text).ok();
    let said = |field: &str| said.as_ref().and_then(|said| said.get(field)).and_then(Value::as_str);
    match said("health") {
        // It knows no leader, can't write to its disk, or has an alarm.
        Some("false") => Err(format!("it is not well: {}", said("reason").unwrap_or("it gives no reason"))),
        _ => Ok(()),
    }
}

/// What an answer that is an error means.
fn refusal(value: &Value, error: Option<&Value>) -> AskError {
    // A stream's error is an object of its own.
    let inner = error.filter(|error| error.is_object()).unwrap_or(value);
    let text = |name: &str| inner.get(name).and_then(Value::as_str);
    let message = text("message").or_else(|| text("error")).unwrap_or("no reason").to_owned();
    let code = ["code", "grpc_code"].iter().find_map(|name| inner.get(name)).and_then(Value::as_u64);
    match code {
        // Resources are exhausted: for ever, or by too many requests.
        Some(8) if message.contains("space") => AskError::Full(format!("{message}; {MAKE_ROOM}")),
        // Cancelled, unknown, late, exhausted, internal, unavailable.
        Some(1 | 2 | 4 | 8 | 13 | 14) => AskError::Away(message),
        // Users were changed since the token was given, or it has none.
        Some(3)
            if ["auth store is old", "user name is empty"].iter().any(|known| message.contains(known)) =>
        {
            AskError::Unknown(message)
        }
        // Unauthenticated; a login that is wrong is an invalid argument.
        Some(16) => AskError::Unknown(message),
        _ => AskError::Refused(message),
    }
}

/// Why no member answers: one cause if it is that of all.
fn causes(away: &[(&str, String)]) -> String {
    match away {
        [(_, first), others @ ..] if others.iter().all(|(_, cause)| cause == first) => first.clone(),
        _ => Vec::from_iter(away.iter().map(|(member, cause)| format!("{member}: {cause}"))).join(", "),
    }
}

/// The last cause of an error.
fn shown(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(error) = cause.source() {
        cause = error;
    }
    cause.to_string()
}

/// Names the library that TLS calculates with; it is the one that the pool's own TLS calculates with.
fn use_ring() {
    static ONCE: Once = Once::new();
    // Whoever chose another one before had a reason.
    ONCE.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}

/// Bytes as JSON has them.
pub fn text(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// The bytes of a field; none if it is absent, as etcd leaves out what is empty.
pub fn bytes(value: &Value, field: &str) -> Result<Vec<u8>, AskError> {
    let odd = || AskError::Away(format!("its answer has a field `{field}` that can't be read"));
    match value.get(field) {
        None => Ok(Vec::new()),
        Some(field) => STANDARD.decode(field.as_str().ok_or_else(odd)?).map_err(|_| odd()),
    }
}

/// A number, which JSON has as text; 0 if it is absent.
pub fn number(value: &Value, field: &str) -> Result<u64, AskError> {
    let odd = || AskError::Away(format!("its answer has a field `{field}` that can't be read"));
    match value.get(field) {
        None => Ok(0),
        Some(Value::Number(number)) => number.as_u64().ok_or_else(odd),
        Some(field) => field.as_str().and_then(|text| text.parse().ok()).ok_or_else(odd),
    }
}

/// A list; empty if it is absent.
pub fn list<'v>(value: &'v Value, field: &str) -> &'v [Value] {
    value.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The question for the keys from `from` on and before `to`.
pub fn range(from: &[u8], to: &[u8], limit: usize, revision: u64) -> Value {
    json!({"key": text(from), "range_end": text(to), "limit": limit.to_string(), "revision": revision.to_string()})
}

/// The first key behind all that begin with `prefix`.
pub fn behind(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // All keys: there is no prefix.
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_tried_again_is_told_from_what_is_refused() {
        let of = |value: Value| refusal(&value, value.get("error"));
        assert!(matches!(of(json!({"error": "etcdserver: no leader", "code": 14})), AskError::Away(_)));
        let full = of(json!({"error": "etcdserver: mvcc: database space exceeded", "code": 8}));
        assert!(matches!(full, AskError::Full(_)), "{full}");
        assert!(matches!(
            of(json!({"error": "etcdserver: too many requests", "code": 8})),
            AskError::Away(_)
        ));
        let stream = json!({"error": {"grpc_code": 5, "message": "requested lease not found"}});
        assert!(matches!(of(stream), AskError::Refused(_)));
    }

    #[test]
    fn a_cause_that_all_members_have_is_told_once() {
        let causes = |all: &[(&str, &str)]| {
            causes(&Vec::from_iter(all.iter().map(|(member, cause)| (*member, (*cause).to_owned()))))
        };
        assert_eq!(causes(&[("a:1", "refused"), ("b:1", "refused")]), "refused");
        assert_eq!(causes(&[("a:1", "refused"), ("b:1", "late")]), "a:1: refused, b:1: late");
    }

    #[test]
    fn the_end_of_a_prefix_is_behind_all_its_keys() {
        assert_eq!(behind(b"pool/r/"), b"pool/r0");
        assert_eq!(behind(&[1, 255, 255]), [2]);
    }
}
