//! A way between two parts that can be cut in either direction, or made slow, while connections stay open.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// How often whoever waits looks again.
const LOOK: Duration = Duration::from_millis(5);
/// What is read at once where reading is slow: a few messages.
const SIP: usize = 256;

/// The way of one direction.
#[derive(Debug, Default)]
pub(crate) struct Way {
    /// Nothing moves; connections stay, as on a path whose packets are lost.
    pub(crate) shut: AtomicBool,
    /// Milliseconds for each [`SIP`] bytes.
    pub(crate) slow_ms: AtomicU64,
}

/// Stands between those who connect to it and what it was opened for. Ends with its last connection, or when dropped.
#[derive(Debug)]
pub(crate) struct Valve {
    pub(crate) address: SocketAddr,
    /// What those who connect say.
    pub(crate) to: Arc<Way>,
    /// What they hear.
    pub(crate) from: Arc<Way>,
    ended: Arc<AtomicBool>,
}

impl Valve {
    pub(crate) fn open(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let valve = Self {
            address: listener.local_addr().unwrap(),
            to: Arc::default(),
            from: Arc::default(),
            ended: Arc::default(),
        };
        let (to, from, ended) = (
            Arc::clone(&valve.to),
            Arc::clone(&valve.from),
            Arc::clone(&valve.ended),
        );
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(server) = TcpStream::connect(upstream) else {
                    continue;
                };
                let (Ok(client_out), Ok(server_out)) = (client.try_clone(), server.try_clone()) else {
                    continue;
                };
                pump(client, server_out, Arc::clone(&to), Arc::clone(&ended));
                pump(server, client_out, Arc::clone(&from), Arc::clone(&ended));
            }
        });
        valve
    }

    /// Everything flows.
    pub(crate) fn mend(&self) {
        for way in [&self.to, &self.from] {
            way.shut.store(false, Ordering::Relaxed);
            way.slow_ms.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for Valve {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // Wakes whoever waits for connections.
        drop(TcpStream::connect(self.address));
    }
}

/// Passes on what comes, as far as the way is open.
fn pump(mut source: TcpStream, mut sink: TcpStream, way: Arc<Way>, ended: Arc<AtomicBool>) {
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        drop(source.set_read_timeout(Some(Duration::from_millis(200))));
        while !ended.load(Ordering::Relaxed) {
            if way.shut.load(Ordering::Relaxed) {
                thread::sleep(LOOK);
                continue;
            }
            let slow = way.slow_ms.load(Ordering::Relaxed);
            let most = if slow > 0 { SIP } else { buffer.len() };
            let read = match source.read(&mut buffer[..most]) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error)
                    if matches!(
                        error.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                    ) =>
                {
                    continue;
                }
                Err(_) => break,
            };
            // What was read while it was shut waits.
            while way.shut.load(Ordering::Relaxed) && !ended.load(Ordering::Relaxed) {
                thread::sleep(LOOK);
            }
            thread::sleep(Duration::from_millis(slow));
            if sink.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        drop(source.shutdown(Shutdown::Both));
        drop(sink.shutdown(Shutdown::Both));
    });
}
