//! A dedicated checkpoint server, as batch systems have one: it keeps whole files that it gets over TCP, one connection for each.
//!
//! The peer of the paper's figures, as fast as it can be made: nothing is compressed, coded, hashed or encrypted, the kernel copies
//! from file to socket and back, and a file is acknowledged once it is on the disk.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use clap::Subcommand;

use crate::Error;

/// What the server says once it has a file on its disk.
const KEPT: &str = "kept\n";
/// Longest first line of a connection, bytes.
const LINE_BYTES_MAX: u64 = 4096;

/// The server and its clients.
#[derive(Subcommand)]
pub enum Dedicated {
    /// Serves until its standard input ends
    Serve {
        /// HOST:PORT
        address: String,
        /// Where it keeps files
        folder: PathBuf,
    },
    /// Sends a file and waits until it is kept
    Send {
        /// HOST:PORT
        address: String,
        /// The file
        file: PathBuf,
        /// What it is called at the server
        name: String,
    },
    /// Fetches a file
    Fetch {
        /// HOST:PORT
        address: String,
        /// What it is called at the server
        name: String,
        /// Where to
        file: PathBuf,
    },
}

impl Dedicated {
    /// Does it.
    pub fn run(&self) -> Result<(), Error> {
        match self {
            Self::Serve { address, folder } => serve(address, folder),
            Self::Send { address, file, name } => send(address, file, name),
            Self::Fetch { address, name, file } => fetch(address, name, file),
        }
    }
}

fn serve(address: &str, folder: &Path) -> Result<(), Error> {
    let (listener, folder) = (TcpListener::bind(address)?, folder.to_owned());
    println!("ready");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let folder = folder.clone();
            std::thread::spawn(move || {
                if let Err(error) = stream.map_err(Error::from).and_then(|stream| answer(&stream, &folder)) {
                    eprintln!("stdchk-bench: the dedicated server: {error}");
                }
            });
        }
    });
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}

/// The first line of a connection is `put NAME BYTES`, upon which the bytes follow, or `get NAME`.
fn answer(mut stream: &TcpStream, folder: &Path) -> Result<(), Error> {
    // Without a buffer of more than the line: what follows goes from socket to file.
    let mut line = String::new();
    BufReader::with_capacity(1, stream).take(LINE_BYTES_MAX).read_line(&mut line)?;
    match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["put", name, bytes] => {
            let (bytes, mut file) = (bytes.parse()?, File::create(folder.join(name))?);
            let got = std::io::copy(&mut stream.take(bytes), &mut file)?;
            if got != bytes {
                // Whoever sent it was evicted.
                return Ok(std::fs::remove_file(folder.join(name))?);
            }
            file.sync_all()?;
            Ok(stream.write_all(KEPT.as_bytes())?)
        }
        ["get", name] => {
            std::io::copy(&mut File::open(folder.join(name))?, &mut stream)?;
            Ok(())
        }
        _ => Err(Error(format!("`{}` is not understood", line.trim()))),
    }
}

fn send(address: &str, file: &Path, name: &str) -> Result<(), Error> {
    let (mut file, mut stream) = (File::open(file)?, TcpStream::connect(address)?);
    stream.write_all(format!("put {name} {}\n", file.metadata()?.len()).as_bytes())?;
    std::io::copy(&mut file, &mut stream)?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    if said == KEPT { Ok(()) } else { Err(Error(format!("the server did not keep {name}"))) }
}

fn fetch(address: &str, name: &str, to: &Path) -> Result<(), Error> {
    let (mut stream, mut file) = (TcpStream::connect(address)?, File::create(to)?);
    stream.write_all(format!("get {name}\n").as_bytes())?;
    std::io::copy(&mut stream, &mut file)?;
    Ok(file.sync_all()?)
}
