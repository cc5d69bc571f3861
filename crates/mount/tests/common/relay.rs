//! What a mount asks the manager: a relay between the two that notes every request.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use stdchk_model::cbor;
use stdchk_model::message::manager::ManagerRequest;

/// Length of a frame's head, and where the lengths of its body and payload stand (docs/PROTOCOL.md, frames).
const HEAD_BYTES: usize = 32;
const LENGTHS: [std::ops::Range<usize>; 2] = [16..20, 20..24];

/// A relay to a manager. Lives as long as the test's process.
pub struct Relay {
    pub address: String,
    asked: Arc<Mutex<Vec<ManagerRequest>>>,
}

impl Relay {
    pub fn to(manager: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, manager) = (listener.local_addr().unwrap().to_string(), manager.to_owned());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&asked);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, manager) = (client.unwrap(), TcpStream::connect(&manager).unwrap());
                let (mut answers, mut to) = (manager.try_clone().unwrap(), client.try_clone().unwrap());
                let noted = Arc::clone(&noted);
                thread::spawn(move || io::copy(&mut answers, &mut to));
                // An end of the connection ends the thread.
                thread::spawn(move || pass_on(client, manager, &noted));
            }
        });
        Self { address, asked }
    }

    /// The names of the requests since the last call, without signs of life.
    pub fn asked(&self) -> Vec<String> {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        let asked = asked.iter().filter(|request| !matches!(request, ManagerRequest::KeepAlive(_)));
        asked.map(|request| format!("{request:?}").split(['(', ' ']).next().unwrap().to_owned()).collect()
    }
}

fn pass_on(
    mut client: TcpStream,
    mut manager: TcpStream,
    noted: &Mutex<Vec<ManagerRequest>>,
) -> io::Result<()> {
    // The greeting comes first: Hello and Proof.
    frame(&mut client, &mut manager)?;
    frame(&mut client, &mut manager)?;
    loop {
        let body = frame(&mut client, &mut manager)?;
        noted.lock().unwrap().push(cbor::decode(&body).unwrap());
    }
}

/// Passes on one frame; returns its body.
fn frame(from: &mut TcpStream, to: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = [0; HEAD_BYTES];
    from.read_exact(&mut head)?;
    let length =
        |at: std::ops::Range<usize>| u32::from_le_bytes(head.get(at).unwrap().try_into().unwrap()) as usize;
    let [body, payload] = LENGTHS.map(length);
    let mut rest = vec![0; body + payload];
    from.read_exact(&mut rest)?;
    to.write_all(&head)?;
    to.write_all(&rest)?;
    rest.truncate(body);
    Ok(rest)
}
