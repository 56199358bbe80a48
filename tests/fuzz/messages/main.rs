//! A whole vhost-user session, from the first byte of a frontend that may send anything, with
//! fds of every kind, to its end.
//!
//! An input is a list of steps (`frontend`): honest ones, so that rings run; dishonest ones; and
//! bytes. All is sent before the session begins, which runs on this thread and reads until the
//! end; its rings are run by `workers`. After each input: the session has returned, every ring
//! was given back, and neither an fd nor a mapping is left.

#![no_main]

mod fds;
mod frontend;
mod workers;

use arbitrary::Unstructured;
use fds::Fds;
use frontend::Frontend;
use libfuzzer_sys::fuzz_target;
use ringbridge::vhost_user::{Device, run_session};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use workers::Workers;

struct Process {
    fds: Fds,
    memory: Vec<u8>,
}

fn process() -> &'static Process {
    static PROCESS: OnceLock<Process> = OnceLock::new();
    PROCESS.get_or_init(|| {
        // As Rust's own main does.
        // SAFETY: ignoring a signal.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        // What is opened once, and stays.
        ringbridge::sys::bell::prepare();
        let (fds, memory) = (Fds::new(), frontend::memory());
        Process { fds, memory }
    })
}

fuzz_target!(|data: &[u8]| {
    let Process { fds, memory } = process();
    let open = fds::open();
    fds.write(0, memory);
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let mut frontend = Frontend::new(fds, ours.try_clone().expect("an fd"));
    // What was said before the bytes ran out counts.
    let _ = frontend.run(&mut Unstructured::new(data));
    ours.shutdown(Shutdown::Write).expect("shut down");
    let scribbles = std::mem::take(&mut frontend.scribbles);
    let workers = Workers::new(fds, scribbles);
    let device = Device { journal: Default::default(), queues: 2, offer: Offer::ALL };
    run_session(&theirs, &device, &workers);
    assert_eq!(workers.left(), 0, "rings were not asked back");
    drop((frontend, ours, theirs));
    assert_eq!(fds::open(), open, "fds are left: {}", fds::list());
    assert!(!fds::mapped(), "mappings are left");
});
