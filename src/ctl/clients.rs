//! Who is connected, and who has to go when there are too many.
//!
//! Promises: at most [`MOST`] at a time, of whom at most [`MOST_FOLLOWERS`] follow the events;
//! one more takes the place of the one that has been idle for longest, so that clients that
//! hang keep no operator out. Used by the server.

#![forbid(unsafe_code)]

use super::Answer;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Most clients.
pub const MOST: usize = 32;
/// Most followers.
pub const MOST_FOLLOWERS: usize = 16;

/// Too many of them.
#[derive(Debug, thiserror::Error)]
pub enum TooMany {
    /// All are busy.
    #[error("{MOST} clients are busy on this socket; try again later")]
    Clients,
    /// All others are busy, and this one was not.
    #[error("closed, because there are more than {MOST} clients and this one was idle")]
    Idle,
    /// Of the events.
    #[error("{MOST_FOLLOWERS} clients follow the events already; close one of them")]
    Followers,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// No whole request has come since.
    Idle(Instant),
    Busy,
    Following,
}

#[derive(Debug)]
struct Client {
    stream: Arc<UnixStream>,
    doing: Doing,
}

/// All clients.
#[derive(Debug, Default)]
pub struct Clients(Mutex<Vec<Client>>);

impl Clients {
    /// One more, if there is or can be made a place for it; whoever has to go is told.
    pub fn admit(&self, stream: &Arc<UnixStream>) -> bool {
        let mut clients = self.lock();
        if clients.len() >= MOST {
            let idle = |client: &Client| match client.doing {
                Doing::Idle(since) => Some(since),
                _ => None,
            };
            let idlers = clients.iter().enumerate().filter_map(|(i, c)| Some((idle(c)?, i)));
            let Some((_, longest)) = idlers.min() else {
                send_away(stream, &TooMany::Clients);
                return false;
            };
            send_away(&clients.swap_remove(longest).stream, &TooMany::Idle);
        }
        clients.push(Client { stream: Arc::clone(stream), doing: Doing::Idle(Instant::now()) });
        true
    }

    /// A request of the client's is being done. False: it was sent away.
    pub fn busy(&self, stream: &Arc<UnixStream>) -> bool {
        self.set(stream, Doing::Busy)
    }

    /// The client's request was answered.
    pub fn idle(&self, stream: &Arc<UnixStream>) {
        self.set(stream, Doing::Idle(Instant::now()));
    }

    /// The client follows the events from now on.
    pub fn follow(&self, stream: &Arc<UnixStream>) -> Result<(), TooMany> {
        let mut clients = self.lock();
        let followers = clients.iter().filter(|client| client.doing == Doing::Following).count();
        if followers >= MOST_FOLLOWERS {
            return Err(TooMany::Followers);
        }
        set(&mut clients, stream, Doing::Following);
        Ok(())
    }

    /// The client is gone.
    pub fn leave(&self, stream: &Arc<UnixStream>) {
        self.lock().retain(|client| !Arc::ptr_eq(&client.stream, stream));
        // Whoever else holds it shall not keep the peer waiting.
        let _ = stream.shutdown(Shutdown::Both);
    }

    /// All have to go.
    pub fn close(&self) {
        for client in self.lock().drain(..) {
            // Only for reading: who asked for the end still gets its answer. It fails if the
            // client was faster.
            let _ = client.stream.shutdown(Shutdown::Read);
        }
    }

    fn set(&self, stream: &Arc<UnixStream>, doing: Doing) -> bool {
        set(&mut self.lock(), stream, doing)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Client>> {
        // Nothing that panics runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn set(clients: &mut [Client], stream: &Arc<UnixStream>, doing: Doing) -> bool {
    let client = clients.iter_mut().find(|client| Arc::ptr_eq(&client.stream, stream));
    client.map(|client| client.doing = doing).is_some()
}

/// Say why, if there is room for it, and hang up.
fn send_away(stream: &Arc<UnixStream>, why: &TooMany) {
    // An idle client's thread may hold the same stream, but it only reads.
    let _ = stream.set_nonblocking(true);
    let answer = serde_json::to_string(&Answer::Error(why.to_string())).unwrap_or_default();
    let _ = (&**stream).write_all(format!("{answer}\n").as_bytes());
    let _ = stream.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    fn stream() -> (Arc<UnixStream>, BufReader<UnixStream>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Arc::new(ours), BufReader::new(theirs))
    }

    fn told(theirs: &mut BufReader<UnixStream>) -> String {
        let mut line = String::new();
        theirs.read_line(&mut line).unwrap();
        line
    }

    #[test]
    fn the_longest_idle_one_goes_first_and_the_busy_ones_stay() {
        let clients = Clients::default();
        let mut all: Vec<_> = (0..MOST).map(|_| stream()).collect();
        assert!(all.iter().all(|(ours, _)| clients.admit(ours)));
        assert!(clients.busy(&all[0].0));
        let (ours, mut theirs) = stream();
        assert!(clients.admit(&ours));
        assert!(told(&mut all[1].1).contains("this one was idle"));
        assert!(!clients.busy(&all[1].0), "it is none any more");
        for (ours, _) in &all[2..] {
            assert!(clients.busy(ours));
        }
        clients.busy(&ours);
        let (late, mut theirs_late) = stream();
        assert!(!clients.admit(&late));
        assert!(told(&mut theirs_late).contains("32 clients are busy"));
        clients.leave(&all[2].0);
        assert!(clients.admit(&stream().0));
        clients.close();
        drop(ours);
        assert_eq!(told(&mut theirs), "");
    }

    #[test]
    fn followers_leave_room_for_others() {
        let clients = Clients::default();
        let all: Vec<_> = (0..=MOST_FOLLOWERS).map(|_| stream()).collect();
        for (i, (ours, _)) in all.iter().enumerate() {
            assert!(clients.admit(ours));
            assert_eq!(clients.follow(ours).is_ok(), i < MOST_FOLLOWERS);
        }
        clients.leave(&all[0].0);
        assert!(clients.follow(&all[MOST_FOLLOWERS].0).is_ok());
    }
}
