//! What a mount asks the manager: a relay between the two that notes every request.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::thread;

use stdchk_model::cbor;
use stdchk_model::message::manager::ManagerRequest;
use stdchk_net::transport::{socket_of, unix_address};
use tempfile::TempDir;

/// Length of a frame's head, and where the lengths of its body and payload stand (docs/PROTOCOL.md, frames).
const HEAD_BYTES: usize = 32;
const LENGTHS: [std::ops::Range<usize>; 2] = [16..20, 20..24];

/// A relay to a manager. Lives as long as the test's process.
pub struct Relay {
    pub address: String,
    asked: Arc<Mutex<Vec<ManagerRequest>>>,
    _folder: TempDir,
}

impl Relay {
    pub fn to(manager: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let socket = folder.path().join("relay");
        let listener = UnixListener::bind(&socket).unwrap();
        let (address, manager) = (unix_address(&socket), socket_of(manager).unwrap().to_owned());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&asked);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, manager) = (client.unwrap(), UnixStream::connect(&manager).unwrap());
                let (mut answers, mut to) = (manager.try_clone().unwrap(), client.try_clone().unwrap());
                let noted = Arc::clone(&noted);
                thread::spawn(move || io::copy(&mut answers, &mut to));
                // An end of the connection ends the thread.
                thread::spawn(move || pass_on(client, manager, &noted));
            }
        });
        Self { address, asked, _folder: folder }
    }

    /// The names of the requests since the last call, without signs of life.
    pub fn asked(&self) -> Vec<String> {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        let is_sign_of_life = |request: &&ManagerRequest| {
            use ManagerRequest as Q;
            matches!(request, Q::KeepAlive(_) | Q::Attend { .. } | Q::Leave(_))
        };
        let asked = asked.iter().filter(|request| !is_sign_of_life(request));
        asked.map(|request| format!("{request:?}").split(['(', ' ']).next().unwrap().to_owned()).collect()
    }
}

fn pass_on(
    mut client: UnixStream,
    mut manager: UnixStream,
    noted: &Mutex<Vec<ManagerRequest>>,
) -> io::Result<()> {
    // The greeting comes first.
    frame(&mut client, &mut manager, |_| {})?;
    loop {
        frame(&mut client, &mut manager, |body| noted.lock().unwrap().push(cbor::decode(body).unwrap()))?;
    }
}

/// Passes on one frame, after its body was noted: who has the answer finds the question there.
fn frame(from: &mut UnixStream, to: &mut UnixStream, note: impl FnOnce(&[u8])) -> io::Result<()> {
    let mut head = [0; HEAD_BYTES];
    from.read_exact(&mut head)?;
    let length =
        |at: std::ops::Range<usize>| u32::from_le_bytes(head.get(at).unwrap().try_into().unwrap()) as usize;
    let [body, payload] = LENGTHS.map(length);
    let mut rest = vec![0; body + payload];
    from.read_exact(&mut rest)?;
    note(rest.get(..body).unwrap());
    to.write_all(&head)?;
    to.write_all(&rest)
}
