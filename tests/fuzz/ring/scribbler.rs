//! A thread that writes the guest's memory while the device works on it.

use crate::world::World;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};

/// What is written, in turn: offset in the file, and bytes.
pub type Script = Vec<(usize, [u8; 8])>;

/// Writes from now until it is dropped.
pub struct Scribbler(&'static Thread);

struct Thread {
    stop: Arc<AtomicBool>,
    scripts: SyncSender<Script>,
    done: std::sync::Mutex<Receiver<()>>,
}

impl Scribbler {
    pub fn start(world: &'static World, script: Script) -> Self {
        static THREAD: OnceLock<Thread> = OnceLock::new();
        let thread = THREAD.get_or_init(|| Thread::new(world));
        thread.stop.store(false, Ordering::Relaxed);
        thread.scripts.send(script).expect("the thread lives");
        Scribbler(thread)
    }
}

impl Drop for Scribbler {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
        if let Ok(done) = self.0.done.lock() {
            let _ = done.recv();
        }
    }
}

impl Thread {
    fn new(world: &'static World) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (scripts, script) = sync_channel::<Script>(0);
        let (finished, done) = sync_channel(0);
        let flag = Arc::clone(&stop);
        std::thread::spawn(move || {
            for script in script {
                while !flag.load(Ordering::Relaxed) {
                    for (at, bytes) in &script {
                        world.write(*at, bytes);
                    }
                }
                if finished.send(()).is_err() {
                    return;
                }
            }
        });
        Thread { stop, scripts, done: done.into() }
    }
}
