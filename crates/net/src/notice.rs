//! Whether this machine is said to go soon: a file that an agent makes, or an HTTP endpoint such as those of clouds.
//!
//! Who gives machines that they may take back says so shortly before: Amazon's service of metadata two minutes, Google's half a minute.
//! Elsewhere an administrator's agent, or a batch system's hook, makes a file. So a source is asked again and again. What it said last
//! holds while it can't be asked.
//!
//! | source | says that the machine goes | says that it stays |
//! |---|---|---|
//! | a file | it is there | it isn't there, or says `false`, `none` or `0` |
//! | a URL | 200 with a body | 404, or a body that is empty or says `false`, `none` or `0` |
//! | `aws` | 200 for the instance action of a spot instance | 404 |
//! | `gcp` | `TRUE` | `FALSE` |
//!
//! What is asked for over HTTP is a few lines from this machine or its host: HTTP/1.0 in clear, so that no library is needed, with
//! bounds on time and length.

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use stdchk_model::message::benefactor::Notice;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::elsewhere::elsewhere;

/// Pause between two looks for the file.
const LOOK: Duration = Duration::from_millis(500);
/// Pause between two questions to an endpoint: clouds ask for no more than one each five seconds.
const ASK: Duration = Duration::from_secs(5);
/// Time for an answer.
const ANSWER: Duration = Duration::from_secs(3);
/// Longest answer that is read, bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// So much of a file is read.
const FILE_BYTES_MAX: u64 = 64;

/// Where Amazon's and Google's services of metadata are.
const AWS: &str = "http://169.254.169.254";
const GCP: &str = "http://metadata.google.internal";
/// Time between their notice and the end, milliseconds.
const AWS_MS: u64 = 120_000;
const GCP_MS: u64 = 30_000;

/// Who says that this machine goes soon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// A file: it is there.
    File(PathBuf),
    /// An endpoint: it answers with a body.
    Url(Url),
    /// Amazon's service of metadata, there.
    Aws(Url),
    /// Google's service of metadata, there.
    Gcp(Url),
}

/// The address of an endpoint: `http://HOST[:PORT][/PATH]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Url {
    /// `HOST` or `HOST:PORT`.
    host: String,
    /// Empty, or from the slash on.
    path: String,
}

/// It is no source.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a path from the root on, `http://HOST:PORT/PATH`, `aws` or `gcp` is expected")]
pub struct NoSource;

impl FromStr for Url {
    type Err = NoSource;

    fn from_str(text: &str) -> Result<Self, NoSource> {
        let rest = text.strip_prefix("http://").ok_or(NoSource)?;
        let (host, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
        let is_plain = |part: &str| part.chars().all(|letter| letter.is_ascii_graphic());
        let is_host = !host.is_empty() && !host.contains(['@', '?', '#']);
        if !is_host || !is_plain(host) || !is_plain(path) {
            return Err(NoSource);
        }
        Ok(Self { host: host.to_owned(), path: path.to_owned() })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.host, self.path)
    }
}

impl FromStr for Source {
    type Err = NoSource;

    fn from_str(text: &str) -> Result<Self, NoSource> {
        let at = |rest: &str, usual: &str| match rest {
            "" => usual.parse(),
            rest => rest.strip_prefix(':').ok_or(NoSource)?.parse(),
        };
        if text.starts_with('/') {
            Ok(Self::File(PathBuf::from(text)))
        } else if let Some(rest) = text.strip_prefix("aws") {
            at(rest, AWS).map(Self::Aws)
        } else if let Some(rest) = text.strip_prefix("gcp") {
            at(rest, GCP).map(Self::Gcp)
        } else {
            text.parse().map(Self::Url)
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Url(url) => write!(f, "{url}"),
            Self::Aws(url) => write!(f, "aws:{url}"),
            Self::Gcp(url) => write!(f, "gcp:{url}"),
        }
    }
}

impl Source {
    fn pause(&self) -> Duration {
        if matches!(self, Self::File(_)) { LOOK } else { ASK }
    }

    /// What it says now.
    ///
    /// # Errors
    /// It can't be asked, or answers with something else.
    pub async fn ask(&self) -> io::Result<Option<Notice>> {
        let notice = |is_given: bool, in_ms| is_given.then_some(Notice { in_ms });
        match self {
            Self::File(path) => {
                let path = path.clone();
                let read = elsewhere(move || read_file(&path)).await.map_err(io::Error::other)?;
                match read {
                    Ok(said) => Ok(notice(said.trim_ascii().is_empty() || is_yes(&said), None)),
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(error),
                }
            }
            Self::Url(url) => Ok(notice(says_so(&get(url, &url.path, &[]).await?)?, None)),
            Self::Aws(url) => {
                let seconds = [("X-aws-ec2-metadata-token-ttl-seconds", "60")];
                let token = request("PUT", url, "/latest/api/token", &seconds).await?;
                let token = String::from_utf8(token.body).ok().filter(|_| token.status == 200);
                let token = token.filter(|token| token.chars().all(|letter| letter.is_ascii_graphic()));
                let token = token.ok_or_else(|| odd("no token"))?;
                let path = "/latest/meta-data/spot/instance-action";
                let answer = get(url, path, &[("X-aws-ec2-metadata-token", &token)]).await?;
                Ok(notice(says_so(&answer)?, Some(AWS_MS)))
            }
            Self::Gcp(url) => {
                let path = "/computeMetadata/v1/instance/preempted";
                let answer = get(url, path, &[("Metadata-Flavor", "Google")]).await?;
                Ok(notice(says_so(&answer)?, Some(GCP_MS)))
            }
        }
    }
}

/// Asks a source for ever, and tells what it says when that changes.
pub async fn follow(source: Source, tell: impl Fn(Option<Notice>)) {
    let (mut known, mut is_odd) = (None, false);
    loop {
        match source.ask().await {
            Ok(said) => {
                if said != known {
                    tell(said);
                }
                (known, is_odd) = (said, false);
            }
            Err(error) if !is_odd => {
                is_odd = true;
                tracing::warn!(%source, %error, "it can't be asked whether this machine goes soon: what it said last holds");
            }
            Err(_) => {}
        }
        sleep(source.pause()).await;
    }
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut said = Vec::new();
    // A pipe would wait for its writer, and keep this process from ending.
    let file = File::from(open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no plain file"));
    }
    file.take(FILE_BYTES_MAX).read_to_end(&mut said)?;
    Ok(said)
}

fn odd(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("it answers with {what}"))
}

/// Whether a text says more than that nothing is.
fn is_yes(said: &[u8]) -> bool {
    let said = said.trim_ascii();
    let no: [&[u8]; 4] = [b"", b"false", b"none", b"0"];
    !no.iter().any(|no| said.eq_ignore_ascii_case(no))
}

/// An answer.
#[derive(Debug)]
struct Answer {
    status: u16,
    body: Vec<u8>,
}

fn says_so(answer: &Answer) -> io::Result<bool> {
    match answer.status {
        200 => Ok(is_yes(&answer.body)),
        404 => Ok(false),
        status => Err(odd(&format!("status {status}"))),
    }
}

async fn get(url: &Url, path: &str, headers: &[(&str, &str)]) -> io::Result<Answer> {
    request("GET", url, path, headers).await
}

async fn request(method: &str, url: &Url, path: &str, headers: &[(&str, &str)]) -> io::Result<Answer> {
    let asked = timeout(ANSWER, async {
        let has_port = url.host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let address = if has_port { url.host.clone() } else { format!("{}:80", url.host) };
        let mut stream = TcpStream::connect(address).await?;
        let path = if path.is_empty() { "/" } else { path };
        let mut head = format!("{method} {path} HTTP/1.0\r\nHost: {}\r\n", url.host);
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let length = if method == "PUT" { "Content-Length: 0\r\n" } else { "" };
        head.push_str(length);
        head.push_str("Connection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        let (mut bytes, mut stream) = (Vec::new(), AsyncReadExt::take(stream, ANSWER_BYTES_MAX));
        // Some keep the connection, whatever they were asked.
        while answer(&bytes).is_none() && stream.read_buf(&mut bytes).await? > 0 {}
        answer(&bytes).or_else(|| unended(&bytes)).ok_or_else(|| odd("something else than HTTP"))
    });
    asked.await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}

/// The answer in these bytes, if it says where it ends and that has come.
fn answer(bytes: &[u8]) -> Option<Answer> {
    let (status, length, body) = parts(bytes)?;
    Some(Answer { status, body: body.get(..length?)?.to_vec() })
}

/// The answer in these bytes, which ends with them: it doesn't say where.
fn unended(bytes: &[u8]) -> Option<Answer> {
    let (status, length, body) = parts(bytes)?;
    length.is_none().then(|| Answer { status, body: body.to_vec() })
}

/// Status, length of the body as far as it is said, and what has come of the body. `None` also for one that comes in chunks, which nobody asked for.
fn parts(bytes: &[u8]) -> Option<(u16, Option<usize>, &[u8])> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let (head, body) = bytes.split_at_checked(end)?;
    let mut lines = std::str::from_utf8(head).ok()?.split("\r\n");
    let mut words = lines.next()?.split(' ');
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    let status = words.next()?.parse().ok()?;
    let mut length = None;
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return None;
        }
        if name.eq_ignore_ascii_case("content-length") {
            length = Some(value.trim().parse().ok()?);
        }
    }
    Some((status, length, body.get(4..)?))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use parking_lot::Mutex;
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn sources_are_read_as_people_write_them_and_printed_so_that_they_are_read_again() {
        for text in ["/run/notice", "http://127.0.0.1:81/going", "http://agent", "aws:http://[fd00::1]:80"] {
            assert_eq!(text.parse::<Source>().unwrap().to_string(), text);
        }
        for (text, printed) in
            [("aws", "aws:http://169.254.169.254"), ("gcp", "gcp:http://metadata.google.internal")]
        {
            assert_eq!(text.parse::<Source>().unwrap().to_string(), printed);
            assert_eq!(printed.parse::<Source>(), text.parse());
        }
        for text in [
            "",
            "notice",
            "https://a/b",
            "http://",
            "http:///b",
            "http://a b",
            "http://a/\r\nX: y",
            "awsx",
            "http://u@h",
        ] {
            assert_eq!(text.parse::<Source>(), Err(NoSource), "{text:?}");
        }
    }

    #[test]
    fn answers_are_read_whatever_they_are() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nTRUE\r\n";
        assert!(answer(whole).is_none() && says_so(&unended(whole).unwrap()).unwrap());
        for end in 0..whole.len() {
            // Cut off anywhere it is no answer, or one of fewer bytes.
            assert!(unended(&whole[..end]).is_none_or(|answer| says_so(&answer).is_ok()));
        }
        let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nFALSE and more";
        assert!(!says_so(&answer(whole).unwrap()).unwrap());
        for end in 0..whole.len() - " and more".len() {
            assert!(answer(&whole[..end]).is_none());
        }
        assert!(unended(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nFALSE\r\n").is_none());
        for said in [&b"FALSE"[..], b" none \n", b"0", b""] {
            assert!(!is_yes(said));
        }
        for bytes in [
            &b""[..],
            b"\r\n\r\n",
            b"SSH-2.0\r\n\r\n",
            b"HTTP/1.1\r\n\r\n",
            b"HTTP/1.1 2x0 OK\r\n\r\n",
            &[0xff; 300],
        ] {
            assert!(answer(bytes).is_none() && unended(bytes).is_none());
        }
    }

    /// What is answered to a request that begins so and contains that.
    type Answers = Arc<Mutex<Vec<(&'static str, &'static str, String)>>>;

    /// Serves answers, whole texts, until the test ends.
    async fn serve(answers: Answers) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut asked = Vec::new();
                while !asked.ends_with(b"\r\n\r\n") {
                    asked.push(stream.read_u8().await.unwrap());
                }
                let asked = String::from_utf8(asked).unwrap();
                let said = answers.lock().iter().find_map(|(begins, contains, answer)| {
                    (asked.starts_with(begins) && asked.contains(contains)).then(|| answer.clone())
                });
                let said = said.unwrap_or_else(|| "HTTP/1.0 404 Not Found\r\n\r\nno".to_owned());
                stream.write_all(said.as_bytes()).await.unwrap();
            }
        });
        address
    }

    fn ok(body: &str) -> String {
        format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    }

    #[tokio::test]
    async fn endpoints_as_those_of_clouds_are_asked_as_they_want_it() {
        let answers = Arc::new(Mutex::new(vec![("PUT /latest/api/token ", "ttl-seconds: 60", ok("secret"))]));
        let address = serve(Arc::clone(&answers)).await;
        let [aws, gcp, url] =
            [format!("aws:{address}"), format!("gcp:{address}"), format!("{address}/going?soon=1")]
                .map(|text| text.parse::<Source>().unwrap());
        for source in [&aws, &gcp, &url] {
            assert_eq!(source.ask().await.unwrap(), None);
        }
        let action = ok(r#"{"action": "terminate", "time": "2026-09-18T08:22:00Z"}"#);
        answers.lock().extend([
            ("GET /latest/meta-data/spot/instance-action ", "X-aws-ec2-metadata-token: secret\r\n", action),
            ("GET /computeMetadata/v1/instance/preempted ", "Metadata-Flavor: Google\r\n", ok("TRUE")),
            ("GET /going?soon=1 ", "Host: 127.0.0.1", ok("yes")),
        ]);
        assert_eq!(aws.ask().await.unwrap(), Some(Notice { in_ms: Some(120_000) }));
        assert_eq!(gcp.ask().await.unwrap(), Some(Notice { in_ms: Some(30_000) }));
        assert_eq!(url.ask().await.unwrap(), Some(Notice { in_ms: None }));
        // An endpoint in trouble says nothing, rather than that the machine stays.
        answers.lock().insert(0, ("", "", "HTTP/1.1 503 Unavailable\r\n\r\nlater".to_owned()));
        for source in [&aws, &gcp, &url] {
            assert!(source.ask().await.is_err());
        }
    }

    #[tokio::test]
    async fn who_does_not_answer_is_not_waited_for_and_who_says_too_much_is_not_read_to_the_end() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let source: Source = format!("http://{}", silent.local_addr().unwrap()).parse().unwrap();
        assert_eq!(source.ask().await.unwrap_err().kind(), ErrorKind::TimedOut);
        drop(silent);
        assert_eq!(source.ask().await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let long = Arc::new(Mutex::new(vec![("", "", ok(&"x".repeat(60 << 10)))]));
        let source: Source = serve(long).await.parse().unwrap();
        assert!(source.ask().await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_file_is_a_notice_while_it_is_there_and_each_change_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notice");
        let source: Source = path.to_str().unwrap().parse().unwrap();
        let (told, is_there) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(false)));
        let (count, there) = (Arc::clone(&told), Arc::clone(&is_there));
        let following = tokio::spawn(follow(source, move |notice| {
            count.fetch_add(1, Ordering::Relaxed);
            *there.lock() = notice.is_some();
        }));
        let until = async |is_wanted: bool| {
            while *is_there.lock() != is_wanted {
                sleep(Duration::from_millis(20)).await;
            }
        };
        for (text, is_wanted) in [("", true), ("none\n", false), ("\n", true)] {
            std::fs::write(&path, text).unwrap();
            until(is_wanted).await;
        }
        std::fs::remove_file(&path).unwrap();
        until(false).await;
        sleep(2 * LOOK).await;
        assert_eq!(told.load(Ordering::Relaxed), 4);
        following.abort();
    }
}
